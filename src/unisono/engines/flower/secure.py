"""The engine of a run with secure aggregation: it sees masked updates, and adds nothing up unless everyone has answered."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce, Reveals
from unisono.engines.flower.engine import FlowerEngine
from unisono.engines.flower.messages import EMPTY, RequestBuilder
from unisono.federation.aggregate import AggregationConfig, Fold
from unisono.federation.postprocess import CompressionConfig
from unisono.federation.rounds import Observer, Outcome, Work
from unisono.federation.whitelist import check_update, sent_shares
from unisono.federation.worker import Answer
from unisono.privacy.masking import from_fixed_point, sum_masked

MIN_COHORT = 3
"""With fewer, a client could take its own part from the sum and see the other's."""


def check_secure(method: Method, aggregation: AggregationConfig, compression: CompressionConfig, cohort_size: int) -> None:
    """Refuses what cannot be private, or cannot work, with secure aggregation."""
    for group, share in method.shares.items():
        if share.reduce is Reduce.ROWS:
            raise UserError(
                f"privacy.secure_aggregation hides single clients in a sum, but group {group!r} of this method is a row per "
                "client: turn it off or choose another method."
            )
        if share.reduce is Reduce.STACK and share.reveals in (Reveals.PARAMETERS, Reveals.REPRESENTATIONS):
            raise UserError(
                f"privacy.secure_aggregation hides single clients in a sum, but this method sends {share.reveals.value} of "
                f"every client as they are (group {group!r}), so nothing would be hidden: turn it off or choose another method."
            )
    if aggregation.rule != "mean":
        raise UserError(
            f"aggregation.rule must be 'mean' with privacy.secure_aggregation, got {aggregation.rule!r}: "
            "a robust rule looks at single updates."
        )
    if compression.active:
        raise UserError("[compression] cannot be used with privacy.secure_aggregation: masks do not compress.")
    if cohort_size < MIN_COHORT:
        raise UserError(f"privacy.secure_aggregation needs at least {MIN_COHORT} clients per round, got {cohort_size}.")


def masked_groups(method: Method, ctx: Context) -> list[str]:
    """Return the groups that clients mask in a phase: all that are averaged, whatever the server sent."""
    return [name for name, share in sent_shares(method, ctx).items() if share.reduce is Reduce.MEAN]


class SecureEngine(FlowerEngine):
    """Adds up masked updates."""

    def exchange(self, work: Work, observers: Sequence[Observer] = ()) -> Outcome:
        """Asks every client of the work; if one is missing, nobody counts, for the masks would not cancel."""
        groups = masked_groups(self._policy.method, work.ctx)
        if not groups:
            return super().exchange(work, observers)
        outcome = Outcome(Fold(self._policy.method.shares, self._policy.aggregation))
        extra = {"cohort": list(work.clients), "nonce": secrets.token_hex(16)}
        builder = RequestBuilder(work.ctx, self._terms, work.broadcast, extra)
        requests = {
            client: builder.build(client, work.routed.get(client, EMPTY), work.locals.get(client, EMPTY))
            for client in work.clients
        }
        answers: dict[int, Answer] = {}

        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            result = self._read(content, reason, work, client_id)
            if isinstance(result, ClientError):
                outcome.failures.append(result)
                return
            answers[client_id] = result
            for observer in observers:
                observer.on_client(work.ctx.phase, result.report)

        self.ask(requests, work.ctx, settle)
        if outcome.failures:
            return outcome
        try:
            self._add(outcome.fold, answers, groups, work)
        except ValueError as error:
            outcome.failures += [ClientError(work.ctx.round, work.ctx.phase, client, str(error)) for client in work.clients]
            return outcome
        for client_id in sorted(answers):
            outcome.locals[client_id] = answers[client_id].local
            outcome.reports.append(answers[client_id].report)
        return outcome

    def _add(self, fold: Fold, answers: Mapping[int, Answer], groups: Sequence[str], work: Work) -> None:
        uniform = self._policy.aggregation.weighting == "uniform"
        masked: dict[int, Any] = {}
        for client_id in sorted(answers):
            update = answers[client_id].update
            masked[client_id] = Payload({name: update.payload.groups.get(name, {}) for name in groups}).flatten()
            others = {name: tensors for name, tensors in update.payload.groups.items() if name not in groups}
            plain = type(update)(client_id, update.weight, Payload(others), update.metrics)
            check_update(plain, sent_shares(self._policy.method, work.ctx), work.broadcast)
            fold.add(plain)
        weight = sum(1.0 if uniform and answer.update.weight > 0 else answer.update.weight for answer in answers.values())
        if weight <= 0:
            return
        total = Payload.unflatten(from_fixed_point(sum_masked(masked)), group_names=groups)
        for name in groups:
            expected, sums = work.broadcast.groups.get(name), dict(total.groups[name])
            if expected is not None:
                if {n: t.shape for n, t in sums.items()} != {n: t.shape for n, t in expected.items()}:
                    raise ValueError(f"the sum of group {name!r} has other names or shapes than what was sent")
                if self._policy.postprocessor.active:  # clients sent differences
                    sums = {key: tensor + weight * expected[key] for key, tensor in sums.items()}
            fold.sums[name] = sums
            fold.weights[name] = weight
            fold.counts[name] = len(answers)
