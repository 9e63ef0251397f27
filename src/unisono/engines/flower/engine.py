"""The engine over a Flower grid: a message per client out, answers in as they come, the same sums as everywhere.

Answers are added lane by lane in order of client id, so the bits are those of the embedded engine. What comes from a client is
checked as if it were hostile: size, form, whitelist, shapes, finiteness.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.engines.flower.membership import Membership
from unisono.engines.flower.messages import EMPTY, RequestBuilder, read_answer
from unisono.engines.lanes import LaneMerger
from unisono.federation.aggregate import AggregationConfig, Fold, deal_to_lanes
from unisono.federation.postprocess import Postprocessor
from unisono.federation.rounds import Observer, Outcome, Work
from unisono.federation.whitelist import check_update, sent_shares
from unisono.federation.worker import Answer, accept

MEBIBYTE = 2**20


@dataclass(frozen=True)
class ServerPolicy:
    """What the server holds clients to.

    Args:
        method: gives the whitelist.
        postprocessor: undoes clipping and compression.
        aggregation: rule and weights.
        timeout: seconds until a client counts as failed; None waits for ever.
        max_answer: largest answer that is read, in MiB.
        poll: seconds between two looks for answers.
    """

    method: Method
    postprocessor: Postprocessor
    aggregation: AggregationConfig
    timeout: float | None = None
    max_answer: float = 1024.0
    poll: float = 0.02


class FlowerEngine:
    """Asks clients through a grid.

    Args:
        grid: Flower's, of a simulation or of a federation.
        membership: who is where.
        policy: what answers must be like.
        terms: what clients must know of the run, as text.
    """

    def __init__(self, grid: Grid, membership: Membership, policy: ServerPolicy, terms: str) -> None:
        self._grid = grid
        self._membership = membership
        self._policy = policy
        self._terms = terms

    @property
    def num_clients(self) -> int:
        """Size of the federation."""
        return self._membership.num_clients

    def open(self, server: Payload) -> None:
        """Start nothing: the nodes of a grid run already."""

    def reachable(self) -> Sequence[int] | None:
        """The clients that can be asked now; None where all can."""
        return self._membership.reachable()

    def exchange(self, work: Work, observers: Sequence[Observer] = ()) -> Outcome:
        """Asks every client of the work and reduces their answers, lane by lane in order."""
        lanes = _Lanes(self._policy, work, {client: self._membership.num_samples(client) for client in work.clients}, observers)
        builder = RequestBuilder(work.ctx, self._terms, work.broadcast, self.extra(work))
        requests = {
            client: builder.build(client, work.routed.get(client, EMPTY), work.locals.get(client, EMPTY))
            for client in work.clients
        }

        def settle(client_id: int, content: RecordDict | None, reason: str) -> None:
            lanes.settle(client_id, self._read(content, reason, work, client_id))

        self.ask(requests, work.ctx, settle)
        return lanes.outcome

    def extra(self, work: Work) -> Mapping[str, Any]:
        """Small values that go with every request of a phase."""
        return {}

    def ask(
        self,
        requests: Mapping[int, RecordDict],
        ctx: Context,
        settle: Callable[[int, RecordDict | None, str], None],
        kind: str = "train",
    ) -> None:
        """Sends requests, and tells of each answer as it comes, or of the reason why there is none.

        Args:
            requests: by client.
            ctx: its round is the messages' group.
            settle: told (client, content, "") or (client, None, reason), once for each client.
            kind: the message type.
        """
        timeout = self._policy.timeout
        waiting: dict[str, int] = {}
        for client_id, content in requests.items():
            node = self._membership.node_of(client_id)
            if node is None:
                settle(client_id, None, "it is not connected")
                continue
            sent = list(self._grid.push_messages([Message(content, node, kind, ttl=timeout, group_id=str(ctx.round))]))
            if sent and sent[0]:
                waiting[sent[0]] = client_id
            else:
                settle(client_id, None, "the message could not be sent")
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting:
            for reply in self._pull(waiting):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                if reply.has_error():
                    settle(client, None, f"Flower's error {reply.error.code}: {reply.error.reason}")
                else:
                    settle(client, reply.content, "")
            if waiting and deadline is not None and time.monotonic() > deadline:
                for client in waiting.values():
                    settle(client, None, f"no answer within {timeout:g} s")
                return
            if waiting:
                time.sleep(self._policy.poll)

    def _pull(self, waiting: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(list(waiting))

    def _read(self, content: RecordDict | None, reason: str, work: Work, client_id: int) -> Answer | ClientError:
        ctx = work.ctx.at(client_id=client_id)
        if content is None:
            return ClientError(ctx.round, ctx.phase, client_id, reason)
        try:
            return read_answer(content, _received(work, client_id), ctx, int(self._policy.max_answer * MEBIBYTE))
        except ClientError as failure:
            return failure


class _Lanes:
    """Answers of one phase, added to their lane's sums as soon as all clients before them in the lane are settled."""

    def __init__(self, policy: ServerPolicy, work: Work, sizes: Mapping[int, int], observers: Sequence[Observer]) -> None:
        self._policy = policy
        self._work = work
        self._observers = observers
        self._queues = [lane for lane in deal_to_lanes(sizes) if lane]
        self._lane_of = {client: lane for lane, clients in enumerate(self._queues) for client in clients}
        self._parts = [self._empty() for _ in self._queues]
        self._settled: dict[int, Answer | ClientError] = {}
        self._merger = LaneMerger(self._empty())

    def settle(self, client_id: int, result: Answer | ClientError) -> None:
        """Takes a client's answer or failure."""
        self._settled[client_id] = result
        lane = self._lane_of[client_id]
        queue = self._queues[lane]
        while queue and queue[0] in self._settled:
            first = queue.pop(0)
            self._add(self._parts[lane], first, self._settled.pop(first))
        if not queue:
            self._merger.take(lane, self._parts[lane])

    @property
    def outcome(self) -> Outcome:
        """The sums of all lanes whose clients are settled."""
        return self._merger.outcome

    def _add(self, part: Outcome, client_id: int, result: Answer | ClientError) -> None:
        try:
            if isinstance(result, ClientError):
                raise result
            self._accept(part.fold, result, self._work.ctx.at(client_id=client_id))
        except ClientError as failure:
            part.failures.append(failure)
            return
        part.locals[client_id] = result.local
        part.reports.append(result.report)
        for observer in self._observers:
            observer.on_client(self._work.ctx.phase, result.report)

    def _accept(self, fold: Fold, answer: Answer, ctx: Context) -> None:
        policy, received = self._policy, _received(self._work, ctx.client_id)
        if not policy.postprocessor.active:
            try:
                check_update(answer.update, sent_shares(policy.method, ctx), received)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ClientError(ctx.round, ctx.phase, ctx.client_id, reason, traceback.format_exc()) from error
        accept(answer.update, received, policy.method.shares, policy.postprocessor, fold, ctx)

    def _empty(self) -> Outcome:
        return Outcome(Fold(self._policy.method.shares, self._policy.aggregation))


def _received(work: Work, client_id: int) -> Payload:
    return work.broadcast.merge(work.routed[client_id]) if client_id in work.routed else work.broadcast
