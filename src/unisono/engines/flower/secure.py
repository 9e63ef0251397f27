"""Engine with secure aggregation: it sees masked updates, and adds nothing up unless all clients have answered."""

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
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.client_turn import ClientResult
from unisono.federation.declared import check_update, sent_shares
from unisono.federation.loop import Callback, PhaseResult, PhaseTask
from unisono.federation.postprocess import CompressionConfig
from unisono.privacy.masking import from_fixed_point, sum_masked

MIN_COHORT = 3
"""Fewest clients of a round; with fewer, a client could subtract its own part from the sum and see the other's."""


def check_secure(method: Method, aggregation: AggregationConfig, compression: CompressionConfig, cohort_size: int) -> None:
    """Refuse what cannot be private, or cannot work, with secure aggregation."""
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
    """Engine that adds up masked updates."""

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task; if one is missing, none counts, because the masks would not cancel."""
        groups = masked_groups(self._policy.method, task.ctx)
        if not groups:
            return super().run_phase(task, callbacks)
        phase_result = PhaseResult(Accumulator(self._policy.method.shares, self._policy.aggregation))
        extra = {"cohort": list(task.clients), "nonce": secrets.token_hex(16)}
        builder = RequestBuilder(task.ctx, self._run_spec, task.broadcast, extra)
        requests = {
            client: builder.build(client, task.routed.get(client, EMPTY), task.locals.get(client, EMPTY))
            for client in task.clients
        }
        answers: dict[int, ClientResult] = {}

        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            result = self._read(content, reason, task, client_id)
            if isinstance(result, ClientError):
                phase_result.failures.append(result)
                return
            answers[client_id] = result
            for callback in callbacks:
                callback.on_client_end(task.ctx.phase, result.stats)

        self.ask(requests, task.ctx, settle)
        if phase_result.failures:
            return phase_result
        try:
            self._add(phase_result.accumulator, answers, groups, task)
        except ValueError as error:
            phase_result.failures += [
                ClientError(task.ctx.round, task.ctx.phase, client, str(error)) for client in task.clients
            ]
            return phase_result
        for client_id in sorted(answers):
            phase_result.locals[client_id] = answers[client_id].local
            phase_result.stats.append(answers[client_id].stats)
        return phase_result

    def _add(
        self, accumulator: Accumulator, answers: Mapping[int, ClientResult], groups: Sequence[str], task: PhaseTask
    ) -> None:
        uniform = self._policy.aggregation.weighting == "uniform"
        masked: dict[int, Any] = {}
        for client_id in sorted(answers):
            update = answers[client_id].update
            masked[client_id] = Payload({name: update.payload.groups.get(name, {}) for name in groups}).flatten()
            others = {name: tensors for name, tensors in update.payload.groups.items() if name not in groups}
            plain = type(update)(client_id, update.weight, Payload(others), update.metrics)
            check_update(plain, sent_shares(self._policy.method, task.ctx), task.broadcast)
            accumulator.add(plain)
        weight = sum(1.0 if uniform and answer.update.weight > 0 else answer.update.weight for answer in answers.values())
        if weight <= 0:
            return
        total = Payload.unflatten(from_fixed_point(sum_masked(masked)), group_names=groups)
        for name in groups:
            expected, sums = task.broadcast.groups.get(name), dict(total.groups[name])
            if expected is not None:
                if {n: t.shape for n, t in sums.items()} != {n: t.shape for n, t in expected.items()}:
                    raise ValueError(f"the sum of group {name!r} has other names or shapes than what was sent")
                if self._policy.postprocessor.active:  # clients sent differences
                    sums = {key: tensor + weight * expected[key] for key, tensor in sums.items()}
            accumulator.sums[name] = sums
            accumulator.weights[name] = weight
            accumulator.counts[name] = len(answers)
