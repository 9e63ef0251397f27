"""Limits that a client holds a recipe to, ``[bounds]``: hygiene against a curious server, no proof against a hostile one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from unisono.config import Config
from unisono.core.method import Method, RunInfo
from unisono.core.payload import Payload, Reduce, Reveals
from unisono.data.views import make_views
from unisono.deploy.directories import ClientConfig
from unisono.deploy.ledger import Ledger
from unisono.deploy.policy_tables import BoundsTable
from unisono.deploy.refusal import RefusedError
from unisono.deploy.resources import check_time
from unisono.engines.flower.messages import Request
from unisono.evaluation.config import is_due
from unisono.privacy.local_dp import LocalDp

MOST_CLIENTS = 100_000
LARGEST_FACT, SMALLEST_STD = 1e6, 1e-6
"""Of the mean and deviation that a server names; samples lie in [0, 1] or are measured in sensible units."""


def check_bounds(config: Config, method: Method, bounds: BoundsTable) -> None:
    """Refuse a recipe that exceeds a limit, by the name of the key.

    Args:
        config: the run's, without "auto".
        method: what is learnt.
        bounds: the owner's.
    """
    for key, sentence in (*_training(config, bounds), *_sizes(config, bounds)):
        raise RefusedError(f"bounds.{key} {sentence}", f"bounds.{key}")
    sends_gradients = any(
        share.reduce is not Reduce.STACK and share.reveals is Reveals.PARAMETERS for share in method.shares.values()
    )
    if sends_gradients and not bounds.plain_views and _are_plain(config, method):
        raise RefusedError("bounds.plain_views is false, and the views of this recipe are the samples.", "bounds.plain_views")
    number = num_parameters(method)
    if number > bounds.max_parameters:
        raise RefusedError(
            f"bounds.max_parameters is {bounds.max_parameters:,}, and the networks have {number:,}.", "bounds.max_parameters"
        )


def check_place(config: Config, method: Method, request: Request, is_training: bool) -> None:
    """Refuse rounds and phases that the run does not have, and scores that nobody asked for: each would be one more answer."""
    rounds = config.federation.rounds
    if not 0 <= request.round < rounds:
        raise RefusedError(f"this run has {rounds} rounds, and the request names another")
    if is_training and request.phase not in method.phase_names:
        raise RefusedError(f"method {method.name!r} has the phases {', '.join(method.phase_names)}, and no other")
    if not is_training and not is_due(config.evaluation.probe_every, request.round + 1, rounds):
        raise RefusedError(f"the recipe asks for scores every {config.evaluation.probe_every} rounds and after the last")
    if not 0 <= request.seed < 2**63:
        raise RefusedError("the seed of a run is a whole number below 2^63")


def check_run_info(info: RunInfo, config: Config) -> None:
    """Refuse facts about a run that differ from its recipe, or that would make numbers of the samples huge."""
    numbers = (*info.mean, *info.std)
    are_numbers = all(isinstance(x, int | float) and math.isfinite(x) and abs(x) <= LARGEST_FACT for x in numbers)
    if not are_numbers or len(info.mean) != len(info.std) or not all(x >= SMALLEST_STD for x in info.std):
        raise RefusedError("the run's mean and deviation of the samples are no sensible numbers")
    if type(info.num_clients) is not int or not 1 <= info.num_clients <= MOST_CLIENTS:
        raise RefusedError(f"a federation has at most {MOST_CLIENTS:,} clients, and the run says otherwise")
    if info.num_rounds != config.federation.rounds:
        raise RefusedError(f"the recipe has {config.federation.rounds} rounds, and the run says otherwise")


def check_question(config: Config, owner: ClientConfig, ledger: Ledger) -> str:
    """Refuse a question about the data before the data is touched; return the image size and channels that it asks for.

    Args:
        config: the run's.
        owner: the table of the client.
        ledger: knows what was told before.
    """
    check_time(owner.resources)
    for key, sentence in _image_sizes(config, owner.bounds):
        raise RefusedError(f"bounds.{key} {sentence}", f"bounds.{key}")
    size, known, bounds = f"{config.data.image_size}|{config.data.channels}", ledger.sizes(), owner.bounds
    if size not in known and len(known) >= bounds.max_sizes:
        key = "bounds.max_sizes"
        raise RefusedError(f"{key} is {bounds.max_sizes}, and statistics were told for as many sizes.", key)
    if ledger.descriptions(datetime.now(UTC) - timedelta(days=1)) >= bounds.max_descriptions:
        key = "bounds.max_descriptions"
        raise RefusedError(f"{key} is {bounds.max_descriptions}, and so many were told within a day.", key)
    return size


def check_release(method: Method, bounds: BoundsTable, num_samples: int) -> None:
    """Refuse noise on centroids that is too weak for a client of this size."""
    guarantee = method.release_guarantee()
    if not isinstance(guarantee, LocalDp):
        return
    limits = {"epsilon": bounds.max_release_epsilon, "delta": bounds.max_release_delta or 1 / max(1, num_samples)}
    for name, limit in limits.items():
        if getattr(guarantee, name) > limit:
            key = f"bounds.max_release_{name}"
            raise RefusedError(f"{key} is {limit:.3g}, and method.{name} is {getattr(guarantee, name):g}.", key)


def check_received(received: Payload, bounds: BoundsTable) -> None:
    """Refuse networks with numbers that are not finite or very large: what fails then could depend on a sample."""
    for name, tensor in received.tensors():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        largest = float(torch.stack(tensor.detach().aminmax()).double().abs().amax())
        if not largest <= bounds.max_weight_abs:  # also for NaN
            raise RefusedError(
                f"bounds.max_weight_abs is {bounds.max_weight_abs:g}, and {name} holds {largest:.3g}.", "bounds.max_weight_abs"
            )


def num_parameters(method: Method) -> int:
    """Return the number of weights in all networks, without memory for them where torch can do without."""
    try:
        with torch.device("meta"), _NoDraws():
            nets = method.build_networks()
    except (NotImplementedError, RuntimeError):  # a network that looks at numbers while it is built
        nets = method.build_networks()
    return sum(tensor.numel() for tensor in nets.state_dict().values())


class _NoDraws(TorchFunctionMode):
    """Mode in which weights are not drawn: for tensors without numbers torch would import its compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws = getattr(func, "__name__", "").endswith(("normal_", "uniform_"))
        return (args[0] if args else kwargs["tensor"]) if draws else func(*args, **kwargs)


def _training(config: Config, bounds: BoundsTable) -> Iterator[tuple[str, str]]:
    training = config.local_training
    if training.batch_size < bounds.min_batch_size:
        yield "min_batch_size", f"is {bounds.min_batch_size}, and training.batch_size is {training.batch_size}."
    steps = training.local_steps
    if steps is not None and training.batch_size * steps < bounds.min_drawn:
        drawn = training.batch_size * steps
        yield "min_drawn", f"is {bounds.min_drawn}, and training.batch_size times local_steps is {drawn}."
    if steps is None and training.local_epochs > bounds.max_epochs:
        yield "max_epochs", f"is {bounds.max_epochs}, and training.local_epochs is {training.local_epochs}."
    if steps is not None and steps > bounds.max_steps:
        yield "max_steps", f"is {bounds.max_steps}, and training.local_steps is {steps}."
    low, high = bounds.learning_rate
    if not low <= training.learning_rate <= high:
        yield "learning_rate", f"is {low:g} to {high:g}, and training.learning_rate is {training.learning_rate:g}."
    if training.momentum > bounds.max_momentum:
        yield "max_momentum", f"is {bounds.max_momentum:g}, and training.momentum is {training.momentum:g}."
    if training.compile and not bounds.compile:
        yield "compile", "is false, and training.compile is true."
    if training.precision not in bounds.precision:
        yield "precision", f"does not list {training.precision!r}, which training.precision is."


def _sizes(config: Config, bounds: BoundsTable) -> Iterator[tuple[str, str]]:
    yield from _image_sizes(config, bounds)
    options = {**config.method.model_dump(), **config.model.options}
    for option, value in options.items():
        width = _largest(value) if option.endswith("_dim") or option == "widths" else 0
        if width > bounds.max_head_dim:
            yield "max_head_dim", f"is {bounds.max_head_dim}, and {option} is {width:g}."


def _image_sizes(config: Config, bounds: BoundsTable) -> Iterator[tuple[str, str]]:
    """Yield the key and the sentence for each size of images that is out of range."""
    low, high = bounds.image_size
    for option, size in (("data.image_size", config.data.image_size), ("model.input_size", config.model.input_size)):
        if size is not None and not low <= size <= high:
            yield "image_size", f"is {low:g} to {high:g}, and {option} is {size}."


def _largest(value: Any) -> float:
    numbers = value if isinstance(value, list | tuple) else [value]
    return max((number for number in numbers if isinstance(number, int | float)), default=0)


def _are_plain(config: Config, method: Method) -> bool:
    """Return whether a view of a sample is that sample."""
    x = torch.rand(4, *method.info.input_shape, generator=torch.Generator().manual_seed(0))
    views = make_views(config.views, method.info.input_shape)
    return all(torch.equal(view, x) for view in views.pair(x, torch.Generator().manual_seed(1)))
