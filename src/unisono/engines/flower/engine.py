"""Engine over a Flower grid: send a message per client, read answers as they come, add them up in a fixed order.

Answers are added shard by shard in order of client id, so results are bit-identical to those of the embedded
engine. What comes from a client is checked as if it were hostile: size, form, declared shares, shapes, finiteness.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from statistics import median

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from unisono.core.context import Context
from unisono.core.errors import ClientError, describe
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce
from unisono.engines.flower.membership import SILENT, Membership
from unisono.engines.flower.messages import (
    EMPTY,
    MOST_REASON,
    UNREADABLE,
    RequestBuilder,
    failure_of,
    read_answer,
    told_text,
)
from unisono.engines.flower.pace import Pace
from unisono.engines.shards import ShardMerger
from unisono.federation.aggregate import Accumulator, AggregationConfig, Shapes, assign_shards, mean_shapes
from unisono.federation.client_turn import ClientResult, accept_update
from unisono.federation.declared import check_update, check_weight, sent_shares
from unisono.federation.loop import Callback, PhaseResult, PhaseTask
from unisono.federation.postprocess import Postprocessor
from unisono.federation.screening import too_long, unlike, update_norm

MEBIBYTE = 2**20
OUTLIER = 10.0
"""No client's weight counts for more than so many times the median of the cohort, where clients may lie."""

AT_ONCE = 16
"""Messages that are handed to Flower's server in one request."""


@dataclass(frozen=True)
class ServerPolicy:
    """Requirements that the server checks of every answer.

    Args:
        method: gives the declared shares.
        postprocessor: undoes clipping and compression.
        aggregation: rule and weights.
        timeout: seconds until a client counts as failed; None waits for ever. A client that was faster lately gets less.
        max_message_mib: largest answer that is read, in MiB.
        poll: seconds between two looks for answers.
        outlier: largest weight of a client as a multiple of the median; None in a simulation, whose clients do not lie.
        max_local: bytes of a local state that are read; None where states travel with the answers, as in a simulation.
    """

    method: Method
    postprocessor: Postprocessor
    aggregation: AggregationConfig
    timeout: float | None = None
    max_message_mib: float = 1024.0
    poll: float = 0.02
    outlier: float | None = None
    max_local: int | None = None


class FlowerEngine:
    """Engine that asks clients through a grid.

    Args:
        grid: Flower's, of a simulation or of a federation.
        membership: who is where.
        policy: what answers must be like.
        run_spec: what clients must know of the run, as text.
    """

    def __init__(self, grid: Grid, membership: Membership, policy: ServerPolicy, run_spec: str) -> None:
        self._grid = grid
        self._membership = membership
        self._policy = policy
        self._run_spec = run_spec
        self.pace = Pace(policy.timeout, size=membership.num_samples)
        self.on_phase: Callable[[PhaseTask], None] = lambda task: None
        """Called before the clients of a phase are asked."""

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return self._membership.num_clients

    def open(self, server: Payload) -> None:
        """Start nothing: the nodes of a grid run already."""

    def available(self) -> Sequence[int] | None:
        """Return the clients that can be asked now; None where all can."""
        return self._membership.available()

    def run_phase(self, task: PhaseTask, callbacks: Sequence[Callback] = ()) -> PhaseResult:
        """Run every client of the task and reduce their updates, shard by shard in order."""
        self.on_phase(task)
        shards = _Shards(
            self._policy, task, {client: self._membership.num_samples(client) for client in task.clients}, callbacks
        )
        builder = RequestBuilder(task.ctx, self._run_spec, task.broadcast)
        requests = {
            client: builder.build(client, task.routed.get(client, EMPTY), task.locals.get(client, EMPTY))
            for client in task.clients
        }

        screen = Screen(self._policy, task)

        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            result = self._read(content, reason, task, client_id)
            if not screen.hold(client_id, result):
                shards.settle(client_id, result)

        self.ask(requests, task.ctx, settle)
        for client_id, result in screen.results():
            shards.settle(client_id, result)
        return shards.phase_result

    def ask(
        self,
        requests: Mapping[int, RecordDict],
        ctx: Context,
        settle: Callable[[int, RecordDict | None, str], None],
        kind: str = "train",
        most_seconds: float | None = None,
    ) -> None:
        """Send requests, and report each answer as it comes, or the reason why there is none.

        Args:
            requests: by client.
            ctx: its round is the messages' group.
            settle: told (client, content, "") or (client, None, reason), once for each client.
            kind: the message type.
            most_seconds: the timeout, where it is shorter than that of the policy.
        """
        timeout = min((t for t in (self._policy.timeout, most_seconds) if t is not None), default=None)
        pace, is_training = self.pace, kind == "train"
        waiting: dict[str, int] = {}
        for client_id, number, reason in self._send(requests, ctx, kind, timeout):
            if number:
                waiting[number] = client_id
            else:
                settle(client_id, None, reason)
        began = pace.now()

        def lose(client_id: int, reason: str) -> None:
            self._membership.heard(client_id, SILENT)
            settle(client_id, None, reason)

        while waiting:
            for reply in self._pull(waiting):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                if reply.has_error():
                    lose(client, f"Flower's error {reply.error.code}: {told_text(reply.error.reason, MOST_REASON)}")
                    continue
                failure = failure_of(reply.content)
                self._membership.heard(client, failure or "")
                if failure is None and is_training:
                    pace.took(client, ctx.phase, pace.now() - began)
                settle(client, reply.content, "")
            for number, client in list(waiting.items()):
                limit = pace.limit(client, ctx.phase) if is_training else timeout
                if limit is not None and pace.now() - began > limit:
                    pace.missed(client, ctx.phase)
                    lose(waiting.pop(number), f"no answer within {limit:g} s")
            if waiting:
                time.sleep(self._policy.poll)

    def _send(
        self, requests: Mapping[int, RecordDict], ctx: Context, kind: str, ttl: float | None
    ) -> Iterator[tuple[int, str | None, str]]:
        """Send requests, some at a time; yield client, number of its message, and the reason where there is none."""
        messages: dict[int, Message] = {}
        for client_id, content in requests.items():
            node = self._membership.node_of(client_id)
            if node is None:
                yield client_id, None, "it is not connected"
            else:
                messages[client_id] = Message(content, node, kind, ttl=ttl, group_id=str(ctx.round))
        unsent = iter(messages.items())
        while some := list(islice(unsent, AT_ONCE)):
            numbers = list(self._grid.push_messages([message for _, message in some]))
            for (client_id, _), number in zip_longest(some, numbers):
                yield client_id, number, "the message could not be sent"

    def _pull(self, waiting: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(list(waiting))

    def _read(self, content: RecordDict | None, reason: str, task: PhaseTask, client_id: int) -> ClientResult | ClientError:
        ctx = task.ctx.at(client_id=client_id)
        if content is None:
            return ClientError(ctx.round, ctx.phase, client_id, reason)
        try:
            limit = int(self._policy.max_message_mib * MEBIBYTE)
            answer = read_answer(content, _received(task, client_id), ctx, limit, self._policy.max_local)
            most = {other: self._policy.method.max_weight(self._membership.num_samples(other)) for other in task.clients}
            middle = median(most.values())
            check_weight(answer.update, most.pop(client_id))
            weight = self._policy.aggregation.capped(answer.update.weight, sum(most.values()))
            if self._policy.outlier is not None:
                weight = min(weight, self._policy.outlier * middle)
            answer = replace(answer, update=replace(answer.update, weight=weight))
        except ClientError as failure:
            return failure
        except ValueError as error:
            return ClientError(ctx.round, ctx.phase, client_id, describe(error))
        return answer


class Screen:
    """Answers of a phase that wait until all are there, so that they can be compared.

    They wait where there is a limit of their lengths, or where nothing but the others tells which shapes are right.
    """

    def __init__(self, policy: ServerPolicy, task: PhaseTask) -> None:
        self._policy = policy
        self._task = task
        has_undeclared = any(
            share.reduce is Reduce.MEAN and share.form is None and group not in task.broadcast.groups
            for group, share in sent_shares(policy.method, task.ctx).items()
        )
        self._compares = policy.aggregation.screen > 0 or has_undeclared
        self._held: dict[int, ClientResult] = {}
        self._norms: dict[int, float] = {}
        self._shapes: dict[int, Mapping[str, Shapes]] = {}

    def hold(self, client_id: int, result: ClientResult | ClientError) -> bool:
        """Keep an answer back; return False for one that is not to be compared."""
        if not self._compares or isinstance(result, ClientError):
            return False
        received = _received(self._task, client_id)
        try:
            payload = self._policy.postprocessor.decode(result.update, received).payload
            norm = update_norm(payload, received, self._policy.method.shares)
        except (*UNREADABLE, RuntimeError):
            norm = math.nan
        if not math.isfinite(norm):
            return False  # it is refused, with the reason, where it would be added
        self._norms[client_id], self._held[client_id] = norm, result
        self._shapes[client_id] = mean_shapes(payload, self._policy.method.shares)
        return True

    def results(self) -> Iterator[tuple[int, ClientResult | ClientError]]:
        """Yield the answers that were kept back; a failure in the place of one that is far longer than most, or unlike them."""
        ctx, reasons = self._task.ctx, too_long(self._norms, self._policy.aggregation.screen) | unlike(self._shapes)
        for client_id, result in self._held.items():
            reason = reasons.get(client_id)
            yield client_id, result if reason is None else ClientError(ctx.round, ctx.phase, client_id, reason)


class _Shards:
    """Answers of one phase, added to their shard's sums as soon as all clients before them in the shard are settled."""

    def __init__(self, policy: ServerPolicy, task: PhaseTask, sizes: Mapping[int, int], callbacks: Sequence[Callback]) -> None:
        self._policy = policy
        self._task = task
        self._callbacks = callbacks
        self._queues = [shard for shard in assign_shards(sizes) if shard]
        self._shard_of = {client: shard for shard, clients in enumerate(self._queues) for client in clients}
        self._shapes: dict[str, Shapes] = {}
        self._parts = [self._empty() for _ in self._queues]
        self._settled: dict[int, ClientResult | ClientError] = {}
        self._merger = ShardMerger(self._empty())

    def settle(self, client_id: int, result: ClientResult | ClientError) -> None:
        """Take a client's answer or failure."""
        self._settled[client_id] = result
        shard = self._shard_of[client_id]
        queue = self._queues[shard]
        while queue and queue[0] in self._settled:
            first = queue.pop(0)
            self._add(self._parts[shard], first, self._settled.pop(first))
        if not queue:
            self._merger.take(shard, self._parts[shard])

    @property
    def phase_result(self) -> PhaseResult:
        """The sums of all shards whose clients are settled."""
        return self._merger.phase_result

    def _add(self, part: PhaseResult, client_id: int, result: ClientResult | ClientError) -> None:
        try:
            if isinstance(result, ClientError):
                raise result
            self._accept(part.accumulator, result, self._task.ctx.at(client_id=client_id))
        except ClientError as failure:
            part.failures.append(failure)
            return
        part.locals[client_id] = result.local
        part.stats.append(result.stats)
        for callback in self._callbacks:
            callback.on_client_end(self._task.ctx.phase, result.stats)

    def _accept(self, accumulator: Accumulator, answer: ClientResult, ctx: Context) -> None:
        policy, received = self._policy, _received(self._task, ctx.client_id)
        if not policy.postprocessor.active:
            try:
                check_update(answer.update, sent_shares(policy.method, ctx), received)
            except Exception as error:
                raise ClientError(ctx.round, ctx.phase, ctx.client_id, describe(error), traceback.format_exc()) from error
        accept_update(answer.update, received, policy.method.shares, policy.postprocessor, accumulator, ctx)

    def _empty(self) -> PhaseResult:
        return PhaseResult(Accumulator(self._policy.method.shares, self._policy.aggregation, shapes=self._shapes))


def _received(task: PhaseTask, client_id: int) -> Payload:
    return task.broadcast.merge(task.routed[client_id]) if client_id in task.routed else task.broadcast
