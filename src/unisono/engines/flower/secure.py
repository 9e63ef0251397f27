"""Engine with secure aggregation: it learns the sum over the clients that stayed, and nothing about a single one."""

from __future__ import annotations

import secrets
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from unisono.core.errors import ClientError, UserError, describe
from unisono.core.method import Method
from unisono.core.payload import Reduce, Reveals
from unisono.engines.flower.engine import MEBIBYTE, OUTLIER, FlowerEngine, ServerPolicy
from unisono.engines.flower.membership import Membership
from unisono.engines.flower.messages import EMPTY, UNREADABLE, RequestBuilder
from unisono.engines.flower.sums import (
    KIND,
    as_hex,
    from_hex,
    masked_groups,
    read_masked,
    read_revealed,
    read_step,
    step_content,
    sum_layout,
    sum_terms,
    threshold_of,
)
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.client_turn import ClientResult
from unisono.federation.declared import check_metric_name, check_update, sent_shares
from unisono.federation.loop import Callback, PhaseResult, PhaseTask
from unisono.federation.postprocess import CompressionConfig, PrivacyConfig
from unisono.privacy.masked_vector import Template, WeightedSums
from unisono.privacy.ring import Ring
from unisono.privacy.secure_sum import MIN_COHORT, Card, Verify, all_metrics
from unisono.privacy.secure_sum_server import ServerSum, VoidSumError

STEP_SECONDS = 60.0
"""Time for a step after the first, in which clients do not train."""
MOST_WORDS = 2**31


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
    if compression.top_k is not None:
        raise UserError(
            "compression.top_k cannot be used with privacy.secure_aggregation: clients would send different entries, and only "
            "the same ones can be added under masks. compression.bits = 8 can."
        )
    if cohort_size < MIN_COHORT:
        raise UserError(f"privacy.secure_aggregation needs at least {MIN_COHORT} clients per round, got {cohort_size}.")
    if compression.bits is not None:
        try:
            Ring(16, cohort_size)
        except ValueError as error:
            raise UserError(
                f"compression.bits = 8 cannot be used with privacy.secure_aggregation here: {error} bits."
            ) from error


@dataclass(frozen=True)
class SumPolicy:
    """Rules of masked sums on the server.

    Args:
        verify: tells whether a client signed something.
        privacy: how many clients must stay.
        compression: how long words are.
    """

    verify: Verify
    privacy: PrivacyConfig
    compression: CompressionConfig


class SecureEngine(FlowerEngine):
    """Engine that adds up masked updates.

    Args:
        grid: Flower's.
        membership: who is where.
        policy: what answers must be like; its postprocessor does not compress.
        run_spec: what clients must know of the run, as text.
        sums: rules of masked sums.
    """

    def __init__(self, grid: Grid, membership: Membership, policy: ServerPolicy, run_spec: str, sums: SumPolicy) -> None:
        super().__init__(grid, membership, policy, run_spec)
        self._sums = sums

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task, and add up the updates of those that stay; below the threshold none counts."""
        groups = masked_groups(self._policy.method, task.ctx)
        if not groups:
            return super().run_phase(task, callbacks)
        self.on_phase(task)
        round_sum = _RoundSum(self, task, groups)
        try:
            round_sum.run()
        except VoidSumError as error:
            failures = list(round_sum.failures.values())
            others = [client for client in task.clients if client not in round_sum.failures]
            failures += [ClientError(task.ctx.round, task.ctx.phase, client, str(error)) for client in others]
            return PhaseResult(self._empty(), failures=failures)
        return self._result(round_sum, callbacks)

    def _empty(self) -> Accumulator:
        return Accumulator(self._policy.method.shares, self._policy.aggregation)

    def _result(self, done: _RoundSum, callbacks: Sequence[Callback]) -> PhaseResult:
        """Return sums as the loop takes them, with everything that was not masked."""
        task, found, accumulator = done.task, done.sums, self._empty()
        result = PhaseResult(accumulator, failures=[done.failures[client] for client in sorted(done.failures)])
        for client_id in done.survivors:
            answer = done.answers[client_id]
            accumulator.add(answer.update)
            result.locals[client_id] = answer.local
            result.stats.append(answer.stats)
            for callback in callbacks:
                callback.on_client_end(task.ctx.phase, answer.stats)
        for group in done.groups:
            weight, sums = found.weights[group], {}
            if weight <= 0:
                continue
            for full_name, total in found.tensors.items():
                name = full_name.partition("/")[2]
                if full_name.partition("/")[0] == group:
                    start = task.broadcast.groups.get(group, {}).get(name)
                    sums[name] = (total if start is None else total + weight * start.double()).float()
            accumulator.sums[group], accumulator.weights[group] = sums, weight
            accumulator.counts[group] = found.counts[group]
        accumulator.weight = found.weight * done.max_weight
        accumulator.metrics = dict(found.metrics)
        return result


class _RoundSum:
    """One masked sum over the clients of a task, step by step. Raises a VoidSumError if too few clients stay."""

    def __init__(self, engine: SecureEngine, task: PhaseTask, groups: Sequence[str]) -> None:
        self._engine = engine
        self._policy = engine._policy
        self._sums = engine._sums
        self.task = task
        self.groups = groups
        self.failures: dict[int, ClientError] = {}
        self.answers: dict[int, ClientResult] = {}
        self.survivors: list[int] = []
        self.max_weight = 1.0
        self._nonce = secrets.token_hex(16)
        self._limit = int(self._policy.max_message_mib * MEBIBYTE)

    def run(self) -> None:
        """Do all steps; where nobody has left, no list of survivors needs to be confirmed."""
        task = self.task
        if len(task.clients) < MIN_COHORT:
            raise VoidSumError(f"a masked sum needs at least {MIN_COHORT} clients, and {len(task.clients)} can be asked")
        extra = self._extra()
        terms = sum_terms(self._engine._run_spec, task.ctx, task.broadcast, extra)
        self._sum = ServerSum(terms, self._sums.verify)
        self._templates: dict[str, Template] = {}
        self._train(extra)
        cards = self._sum.cards()
        self._leave_out(set(self.answers) - {card.client for card in cards})
        template, names = self._templates[cards[0].template], all_metrics(cards)
        layout = sum_layout(template, names, task.broadcast, len(task.clients), self._sums.compression)
        like = layout.empty()

        message = step_content("shares", self._nonce, cards=[card.as_json() for card in cards])
        self._step({card.client: message for card in cards}, self._take_shares)
        boxes = self._sum.boxes()
        members = sorted(boxes)
        self._step(
            {c: step_content("masked", self._nonce, members=members, boxes=as_hex(boxes[c])) for c in members},
            lambda client, content: self._take_masked(client, content, like),
        )
        self.survivors = self._sum.survivors()
        if self._sum.all_stayed:
            message = step_content("reveal", self._nonce, survivors=self.survivors)
            self._step(dict.fromkeys(self.survivors, message), self._take_revealed)
        else:
            message = step_content("alive", self._nonce, survivors=self.survivors)
            self._step(dict.fromkeys(self.survivors, message), self._take_alive)
            signatures = self._sum.signatures()
            message = step_content("reveal", self._nonce, signatures=as_hex(signatures))
            self._step(dict.fromkeys(signatures, message), self._take_revealed)
        self.sums: WeightedSums = layout.unpack(self._sum.total())
        senders = Counter(group for card in cards if card.client in self.survivors for group in card.groups)
        try:
            layout.check(self.sums, senders, len(self.survivors))
        except ValueError as error:
            raise VoidSumError(f"a client has sent words that no update gives ({error}): this masked sum is void") from error
        # Who left after its vector had arrived is part of the sum.
        self.failures = {client: error for client, error in self.failures.items() if client not in self.survivors}

    def _extra(self) -> dict[str, Any]:
        """Return what goes with every request, and what clients sign."""
        method, clients = self._policy.method, list(self.task.clients)
        most = [method.max_weight(self._engine._membership.num_samples(client)) for client in clients]
        self.max_weight = float(max(1.0, min(max(most), OUTLIER * statistics.median(most))))
        return {
            "cohort": clients,
            "threshold": threshold_of(self._sums.privacy, len(clients)),
            "nonce": self._nonce,
            "max_weight": self.max_weight,
        }

    # --- the steps

    def _train(self, extra: Mapping[str, Any]) -> None:
        task, engine = self.task, self._engine
        builder = RequestBuilder(task.ctx, engine._run_spec, task.broadcast, extra)
        requests = {c: builder.build(c, task.routed.get(c, EMPTY), task.locals.get(c, EMPTY)) for c in task.clients}

        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            answer = engine._read(content, reason, task, client_id)
            if isinstance(answer, ClientError):
                self.failures[client_id] = answer
                return
            try:
                self._take_card(client_id, answer)
            except UNREADABLE as error:
                self._fail(client_id, error)

        engine.ask(requests, task.ctx, settle)

    def _take_card(self, client_id: int, answer: ClientResult) -> None:
        if answer.card is None or set(answer.update.payload.groups) & set(self.groups):
            raise ValueError("its update is not masked")
        check_update(answer.update, sent_shares(self._policy.method, self.task.ctx), self.task.broadcast)
        card, template = Card.read(answer.card["card"]), Template.read(answer.card["template"])
        if not set(card.groups) <= set(self.groups):
            raise ValueError("its card names groups that this phase does not have")
        for name in card.metrics:
            check_metric_name(name)
        if template.digest != card.template:
            raise ValueError("its card is of other tensors than it says")
        template.check(self.groups, self.task.broadcast, MOST_WORDS)
        self._sum.take_card(client_id, card)
        self._templates[template.digest] = template
        self.answers[client_id] = replace(answer, update=replace(answer.update, weight=0.0, metrics={}))

    def _take_shares(self, client_id: int, content: RecordDict) -> None:
        values = read_step(content)
        self._sum.take_shares(client_id, from_hex(values["boxes"]), bytes.fromhex(values["commitment"]))

    def _take_masked(self, client_id: int, content: RecordDict, like: Sequence[Any]) -> None:
        values, words = read_step(content), read_masked(content, self._limit)
        self._sum.take_masked(client_id, words, like, [int(client) for client in values["unreadable"]])
        answer = self.answers[client_id]
        sent = answer.stats.bytes_up + sum(part.nbytes for part in words)
        self.answers[client_id] = replace(answer, stats=replace(answer.stats, bytes_up=sent))

    def _take_alive(self, client_id: int, content: RecordDict) -> None:
        self._sum.take_alive(client_id, bytes.fromhex(read_step(content)["signature"]))

    def _take_revealed(self, client_id: int, content: RecordDict) -> None:
        self._sum.take_revealed(client_id, read_revealed(read_step(content)))

    def _step(self, requests: Mapping[int, RecordDict], take: Callable[[int, RecordDict], None]) -> None:
        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            try:
                if content is None:
                    raise ValueError(reason)
                take(client_id, content)
            except UNREADABLE as error:
                self._fail(client_id, error)

        self._engine.ask(requests, self.task.ctx, settle, KIND, STEP_SECONDS)

    def _leave_out(self, clients: Collection[int]) -> None:
        for client in sorted(clients):
            self._fail(client, ValueError("it sends other tensors than most others, or groups that too few others send"))

    def _fail(self, client_id: int, error: Exception) -> None:
        self.failures[client_id] = ClientError(self.task.ctx.round, self.task.ctx.phase, client_id, describe(error))
