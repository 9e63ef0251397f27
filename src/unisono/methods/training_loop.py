"""The local training loop: what a client does with a loss, its samples and the table ``[training]``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import MethodError, UserError
from unisono.models.half_precision import Precision, rounded_once
from unisono.models.optimizers import Optimizer

T = TypeVar("T")
LossTerms = Mapping[str, Tensor]
"""Named scalars of a loss; the one called ``loss`` is minimised, the others are logged."""
Loss = Callable[["Batch", torch.Generator], Tensor | LossTerms]
"""The loss of a batch, or its terms; all randomness comes from the generator."""


class TrainingConfig(Section):
    """Local training of a client: the table ``[training]``."""

    local_epochs: int = Field(1, ge=1, description="passes over the client's samples per round")
    local_steps: int | None = Field(None, ge=1, description="number of batches per round; replaces local_epochs")
    batch_size: int = Field(16, ge=2, description="samples per step; a batch of one has nothing to compare")
    drop_last: bool = Field(
        False,
        description="leave out the last batch of an epoch if it is not full; a client with fewer samples than batch_size "
        "trains on all of them in one batch",
    )
    separate_views: bool = Field(
        True,
        description="the views of a batch pass a network with BatchNorm one after the other, each with statistics of its own; "
        "false: all at once, which is faster; nothing changes without BatchNorm",
    )
    micro_batch: int | None = Field(
        None, ge=1, description="views that pass through a network at a time: less memory, the same gradient, a third more time"
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the client's optimiser, made anew every round")
    keep_optimizer: bool = Field(
        False, description="a client's optimiser remembers its moments from one round to the next, as where one client trains"
    )
    learning_rate: float = Field(0.003, gt=0, description="step size in the first round")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate over rounds")
    schedule_rounds: int | None = Field(
        None, ge=1, description="rounds until the schedule ends, for a run that stops before; unset: federation.rounds"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty")
    proximal_weight: float = Field(
        0.0, ge=0, description="FedProx: half this times the squared distance to the received weights"
    )
    precision: Precision = Field(
        "fp32",
        description="number format inside networks; all else is fp32. auto: bf16 if that is faster",
    )
    channels_last: bool = Field(
        False, description="memory format of all weights; our backbones keep activations in it anyway, which is as fast"
    )
    compile: bool = Field(False, description="torch.compile the networks")
    epochs_tuned_for_clients: int | None = Field(
        None, ge=1, description="local_epochs is meant for this many clients, and grows linearly with their number"
    )
    lr_tuned_for_participation: float | None = Field(
        None, gt=0, le=1, description="learning_rate is meant for this share of clients per round; grows with its square root"
    )

    @model_validator(mode="after")
    def _steps_do_not_scale(self) -> TrainingConfig:
        if self.epochs_tuned_for_clients is not None and self.local_steps is not None:
            raise ValueError("epochs_tuned_for_clients scales local_epochs, which local_steps replaces: remove one of the two")
        return self

    def scaled(self, num_clients: int | None, participation: float) -> TrainingConfig:
        """Return the table as the clients of this federation follow it, by the rules of Orchestra's paper (C.4).

        "L_new = L K_new / K", to the nearest whole number from 1, for epochs L and K clients; and
        "eta_new = eta sqrt(R_new / R)" for learning rate eta and participation ratio R.

        Args:
            num_clients: size of the federation; None where it is not known yet.
            participation: share of the clients that a round asks.
        """
        changed: dict[str, float | None] = {}
        if self.epochs_tuned_for_clients is not None:
            if num_clients is None:
                raise UserError(
                    "training.epochs_tuned_for_clients needs a number of clients that the recipe gives, and partition.scheme = "
                    "'natural' takes it from the data: set training.local_epochs itself."
                )
            epochs = max(1, round(self.local_epochs * num_clients / self.epochs_tuned_for_clients))
            changed |= {"local_epochs": epochs, "epochs_tuned_for_clients": None}
        if self.lr_tuned_for_participation is not None:
            rate = self.learning_rate * math.sqrt(participation / self.lr_tuned_for_participation)
            changed |= {"learning_rate": rate, "lr_tuned_for_participation": None}
        return self.model_copy(update=changed) if changed else self

    def learning_rate_at(self, round: int, num_rounds: int) -> float:
        """Return the learning rate of a round."""
        if self.schedule == "constant":
            return self.learning_rate
        progress = min(round / (self.schedule_rounds or num_rounds), 1.0)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Batch:
    """Samples, positions and labels that a loss is given.

    Args:
        x: un-augmented samples, floats, shape (batch, *input_shape).
        positions: where they stand among the client's samples, shape (batch,).
        labels: visible labels, shape (batch,), -1 where hidden; None for methods that see none.
        instance_only: True if no sample of the batch may enter a loss of clusters.
    """

    x: Tensor
    positions: Tensor
    labels: Tensor | None
    instance_only: bool = False

    def __len__(self) -> int:
        return len(self.x)


def batches(
    data: ClientData, training: TrainingConfig, generator: torch.Generator, instance_pass: bool = False
) -> Iterator[Batch]:
    """Yield random batches for one round of local training: whole epochs, or ``local_steps`` batches.

    Args:
        data: the client's samples.
        training: epochs and batch size.
        generator: draws the order.
        instance_pass: begin every epoch with a pass over the samples that are for the instance loss only; otherwise they are
            among the others.
    """
    only = data.instance_only if instance_pass else torch.zeros(len(data), dtype=torch.bool)
    passes = [(part, instance_only) for part, instance_only in ((only, True), (~only, False)) if bool(part.any())]
    per_pass = [_num_batches(int(part.sum()), training) for part, _ in passes]
    per_epoch = sum(per_pass)
    num_batches = per_epoch * training.local_epochs if training.local_steps is None else training.local_steps
    while num_batches > 0 and per_epoch > 0:
        epoch: list[tuple[Tensor, bool]] = []
        for (part, instance_only), number in zip(passes, per_pass, strict=True):
            rows = part.nonzero().flatten()
            order = rows[torch.randperm(len(rows), generator=generator)]
            epoch += [(positions, instance_only) for positions in order.split(training.batch_size)[:number]]
        for positions, instance_only in epoch[:num_batches]:
            labels = None if data.labels is None else data.label_batch(positions)
            yield Batch(data.batch(positions), positions, labels, instance_only)
        num_batches -= per_epoch


def with_end(items: Iterator[T]) -> Iterator[tuple[T, bool]]:
    """Yield every item, and whether it is the last one."""
    waiting = list(islice(items, 1))
    for item in items:
        yield waiting.pop(), False
        waiting.append(item)
    yield from ((item, True) for item in waiting)


def _num_batches(num_samples: int, training: TrainingConfig) -> int:
    """Return the number of batches of one pass over so many samples."""
    full, rest = divmod(num_samples, training.batch_size)
    return full if rest == 0 or (training.drop_last and full > 0) else full + 1


def train_locally(
    parameters: list[nn.Parameter],
    loss: Loss,
    data: ClientData,
    training: TrainingConfig,
    ctx: Context,
    *,
    learning_rate: float,
    min_batch_size: int = 1,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[], None] = lambda: None,
    optimizer: Optimizer | None = None,
    anchor: Sequence[Tensor] | None = None,
    source: str = "loss",
    instance_pass: bool = False,
    keeps_moments: bool = True,
) -> dict[str, float]:
    """Train in place and return the mean of every term over the steps that have it.

    Args:
        parameters: what is trained.
        loss: the loss of a batch, or its terms; draws from the generator alone.
        data: the client's samples.
        training: epochs, batch size, optimiser.
        ctx: gives the order of samples and the views.
        learning_rate: step size of this round.
        min_batch_size: smaller batches are skipped and counted in ``skipped_batches``.
        before_step: called before the loss of every step, such as for a moving average that the loss is to see.
        after_step: called after every step, such as for a moving average.
        optimizer: continues with what it remembers, at its own learning rate; a new one where None.
        anchor: what FedProx pulls towards, in the order of ``parameters``; their present values where None.
        source: what the messages call the loss, such as ``simclr.loss``.
        instance_pass: as for ``batches``.
        keeps_moments: whether the caller reads what ``optimizer`` remembers.
    """
    forgets = optimizer is None or not keeps_moments
    optimizer = make_optimizer(training, parameters, learning_rate) if optimizer is None else optimizer
    scaler = torch.amp.GradScaler(ctx.device.type, enabled=training.precision == "fp16")
    pull = None
    if training.proximal_weight:
        start = [parameter.detach().clone() for parameter in parameters] if anchor is None else anchor
        pull = _pull(parameters, start, training.proximal_weight)
    # Parts of a batch add to the gradients one after the other, and fp16 looks at all of them before a step.
    stepping = training.precision != "fp16" and training.micro_batch is None and optimizer.is_large
    views = ctx.rng("views", ctx.device)
    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    num_steps = num_skipped = 0
    with optimizer.inside_backward(pull) if stepping else nullcontext():
        for batch, is_last in with_end(batches(data, training, ctx.rng("order"), instance_pass)):
            optimizer.is_last = is_last and forgets
            if len(batch) < min_batch_size:
                num_skipped += 1
                continue
            before_step()
            with rounded_once(training.precision, ctx.device):
                terms = loss_terms(loss(batch, views), source)
            if num_steps == 0:
                _check_first(terms["loss"], batch, ctx, source)
            optimizer.zero_grad()
            scaler.scale(terms["loss"]).backward()
            if pull is not None and not stepping:
                scaler.unscale_(optimizer)  # type: ignore[arg-type]
                for parameter in parameters:
                    pull(parameter)
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()
            after_step()
            num_steps += 1
            counts.update(terms.keys())
            for name, term in terms.items():
                sums[name] = sums[name] + term.detach() if name in sums else term.detach()
    optimizer.zero_grad()  # gradients are as large as the networks: no room for them while the update is made
    metrics = {name: float(value) / counts[name] for name, value in sums.items()}
    if num_skipped:
        metrics["skipped_batches"] = float(num_skipped)
    return metrics


def loss_terms(value: Any, source: str) -> LossTerms:
    """Return what a loss returned as named terms; a MethodError if it is none.

    Args:
        value: what the loss returned.
        source: what the message calls the loss.
    """
    terms = {"loss": value} if isinstance(value, Tensor) else value
    remedy = 'return a scalar tensor, or a dict with a scalar "loss".'
    if not isinstance(terms, Mapping):
        raise MethodError(f"{source} returned {_described(value)}; {remedy}")
    if "loss" not in terms:
        raise MethodError(f'{source} returned a dict without "loss", with {sorted(map(str, terms)) or "nothing"}; {remedy}')
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.dim() != 0:
            where = "" if isinstance(value, Tensor) else f' as "{name}"'
            raise MethodError(f"{source} returned {_described(term)}{where}; {remedy}")
    return terms


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "nothing"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _check_first(loss: Tensor, batch: Batch, ctx: Context, source: str) -> None:
    """Raise a MethodError if the loss of a client's first batch cannot be minimised.

    A loss that is not finite is the method's mistake in the first round only: later on, training may have diverged.
    """
    if not loss.requires_grad:
        raise MethodError(
            f"{source} returned a loss without gradients; compute it from trained networks, outside of torch.no_grad()."
        )
    if ctx.round == 0 and not bool(loss.isfinite()) and bool(batch.x.isfinite().all()):
        raise MethodError(f"{source} returned {float(loss.detach())} for the first batch; return a finite number.")


def make_optimizer(training: TrainingConfig, parameters: list[nn.Parameter], learning_rate: float) -> Optimizer:
    """Return the optimiser that the table ``[training]`` describes, with nothing to remember yet."""
    return Optimizer(training.optimizer, parameters, learning_rate, training.weight_decay, training.momentum)


def _pull(parameters: list[nn.Parameter], anchor: Sequence[Tensor], weight: float) -> Callable[[nn.Parameter], None]:
    """Return what adds the gradient of ``weight / 2 * |w - anchor|^2`` to that of a parameter."""
    starts = dict(zip(parameters, anchor, strict=True))

    def pull(parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - starts[parameter], alpha=weight)

    return pull
