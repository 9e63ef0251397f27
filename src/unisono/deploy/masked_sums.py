"""A client's masked sums: one at a time, in memory only, so that a restart is a drop-out and no secret is written down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unisono.config import Config
from unisono.core.context import Context
from unisono.core.forms import is_sealed
from unisono.core.method import Method
from unisono.core.payload import Payload, Update
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.identity import NodeIdentity
from unisono.deploy.policy import Books
from unisono.deploy.policy_tables import num_bytes
from unisono.deploy.refusal import RefusedError
from unisono.engines.flower.messages import Request
from unisono.engines.flower.sums import as_hex, from_hex, masked_groups, masked_payload, read_cards, sum_layout, sum_terms
from unisono.privacy.masked_vector import Template
from unisono.privacy.ring import Words
from unisono.privacy.secure_sum import SumRefusedError
from unisono.privacy.secure_sum_client import ClientSum

log = logging.getLogger("unisono.client")
LIFETIME = 900.0
"""Seconds after which a sum that was not finished is forgotten, besides those that the others may train for."""
Answer = tuple[dict[str, Any], Payload]


@dataclass(frozen=True)
class _OpenSum:
    part: ClientSum
    nonce: str
    place: tuple[str, int, str]
    intent: Mapping[str, Any]
    began: float


class MaskedSums:
    """The masked sum that this client takes part in, if any.

    Args:
        directory: the client's.
        books: where reveals and what leaves are written down.
        now: a clock.
    """

    def __init__(self, directory: ClientDirectory, books: Books, now: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._books = books
        self._now = now
        self._open: _OpenSum | None = None

    @property
    def _identity(self) -> NodeIdentity:
        """The client's key and those of the others, as they are now: sites join while this process runs."""
        return NodeIdentity(self._directory.key, self._directory.keys)

    def begin(
        self,
        run: str,
        request: Request,
        update: Update,
        ctx: Context,
        config: Config,
        method: Method,
        intent: Mapping[str, Any],
    ) -> tuple[Update, dict[str, Any]]:
        """Return what leaves of an update before the sum, without any averaged group, weight or metric, and the card.

        Args:
            run: names the run.
            request: as it came from the server.
            update: as it may leave; differences where the recipe clips them, else absolute values.
            ctx: of the client's step.
            config: the run's.
            method: what is learnt.
            intent: the line of the ledger.
        """
        self._open = None
        for name, tensor in request.routed.tensors():
            if not is_sealed(tensor):
                raise RefusedError(f"under masks a model comes to all clients alike, and this client alone was sent {name}")
        if request.routed.scalars or request.routed.groups.keys() & request.broadcast.groups.keys():
            raise RefusedError("under masks everything comes to all clients alike, and this client alone was sent more")
        groups = masked_groups(method, ctx)
        rest = {name: tensors for name, tensors in update.payload.groups.items() if name not in groups}
        own = {name: tensors for name, tensors in update.payload.groups.items() if name in groups}
        template = Template.of(groups, request.broadcast, own)
        try:
            terms = sum_terms(request.run_spec, ctx, request.broadcast, request.extra)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        uniform = config.aggregation.weighting == "uniform"
        most = float(request.extra["max_weight"])
        weight = float(update.weight > 0) if uniform else min(update.weight, most) / most
        flat = Payload(own).flatten()
        if config.privacy.clip_norm is None:
            start = request.broadcast.flatten()
            flat = {name: tensor - start[name] if name in start else tensor for name, tensor in flat.items()}
        rng = ctx.numpy_rng("rounding")

        bare = sum_layout(template, (), request.broadcast, len(terms.cohort), config.compression)
        # Packed now, so that a failure, which can depend on samples, is counted as every other.
        packed, cut = bare.pack(flat, weight, {}, rng)
        # What the owner's noise has moved beyond the range may be cut: that tells no more than the noisy value.
        if cut and config.compression.bits is None and not self._directory.config.budget.noise_multiplier:
            raise ValueError(f"{cut} values of the update are too large for a masked sum: training has diverged")
        if cut:
            log.warning("round %d, phase %s: %d values were too large and were cut", ctx.round + 1, ctx.phase, cut)

        def vector(names: tuple[str, ...]) -> list[Words]:
            return replace(bare, metrics=names).with_metrics(packed, weight, update.metrics, rng)

        try:
            part = ClientSum(
                ctx.client_id,
                terms,
                self._identity,
                template.digest,
                sorted(update.metrics),
                sorted(own),
                vector,
                self._directory.config.require.min_cohort,
            )
        except SumRefusedError as error:
            raise RefusedError(str(error), "require.min_cohort") from error
        place = (run, request.round, request.phase)
        self._open = _OpenSum(part, str(request.extra["nonce"]), place, dict(intent), self._now())
        card = {"card": part.card.as_json(), "template": template.as_json()}
        return replace(update, weight=0.0, metrics={}, payload=Payload(rest)), card

    def step(self, values: Mapping[str, Any]) -> Answer:
        """Return the answer to a step after the first; what is refused or fails ends the sum here.

        Args:
            values: step, nonce, and what the step needs.
        """
        current, self._open = self._open, None
        lifetime = LIFETIME + self._directory.config.resources.max_seconds_per_round
        if current is None or values.get("nonce") != current.nonce or self._now() - current.began > lifetime:
            raise SumRefusedError("this client takes part in no such masked sum, or no longer")
        step = str(values.get("step"))
        work: dict[str, Callable[[_OpenSum, Mapping[str, Any]], Answer]] = {
            "shares": self._shares, "masked": self._masked, "alive": self._alive, "reveal": self._reveal,
        }  # fmt: skip
        if step not in work:
            raise SumRefusedError(f"a masked sum has no step {step[:50]!r}")
        answer = work[step](current, values)
        if step != "reveal":
            self._open = current
        return answer

    def _shares(self, current: _OpenSum, values: Mapping[str, Any]) -> Answer:
        boxes, commitment = current.part.share(read_cards(values["cards"]))
        return {"boxes": as_hex(boxes), "commitment": commitment.hex()}, Payload()

    def _masked(self, current: _OpenSum, values: Mapping[str, Any]) -> Answer:
        members = [int(client) for client in values["members"]]
        words, unreadable = current.part.masked(members, from_hex(values["boxes"]))
        payload, most = masked_payload(words), self._directory.config.resources.max_upload
        if payload.num_bytes > num_bytes(most):
            raise SumRefusedError(f"resources.max_upload is {most}, and the masked vector has {payload.num_bytes} bytes")
        size = self._books.audit.sent({**current.intent, "cohort": members}, payload, {}, masked=True)
        self._books.ledger.end(int(current.intent["seq"]), "sent", size)
        return {"unreadable": unreadable}, payload

    def _alive(self, current: _OpenSum, values: Mapping[str, Any]) -> Answer:
        survivors = self._survivors(current, values)
        return {"signature": current.part.alive(survivors).hex()}, Payload()

    def _reveal(self, current: _OpenSum, values: Mapping[str, Any]) -> Answer:
        if "survivors" in values:
            revealed = current.part.reveal_all(self._survivors(current, values))
        else:
            revealed = current.part.reveal(from_hex(values["signatures"]))
        self._books.ledger.reveal(*current.place, sorted(revealed.seeds))
        return {"seeds": as_hex(revealed.seeds), "keys": as_hex(revealed.keys)}, Payload()

    def _survivors(self, current: _OpenSum, values: Mapping[str, Any]) -> list[int]:
        """Return the clients of a sum, unless this client has revealed that round over others."""
        survivors = sorted(int(client) for client in values["survivors"])
        before = self._books.ledger.revealed(*current.place)
        if before is not None and before != survivors:
            raise SumRefusedError(
                "this client has revealed a sum of this round over other clients, and two such sums would show single ones"
            )
        return survivors
