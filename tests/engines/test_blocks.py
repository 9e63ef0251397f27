"""Sums in shared memory, networks that lend their tensors, steps inside the backward pass: bit-identical results."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from multiprocessing import Pipe
from multiprocessing.context import BaseContext
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET, socket
from typing import Any

import pytest
import torch

from unisono.core.payload import Payload
from unisono.core.wire import read
from unisono.engines import worker_pool
from unisono.engines.blocks import Reports, SumsBlock, new_block, receive
from unisono.federation.aggregate import Accumulator, assign_shards
from unisono.federation.client_turn import ClientStats
from unisono.methods.local_training import LocalTraining
from unisono.models import optimizers
from unisono.models.optimizers import Optimizer
from unisono.testing.tiny import SIZES, TinyFederation, same_bits, tiny_clients

SLOW = 3
"""The client with the most samples; it is in the first shard."""
TWELVE = {"cohort": {"size": 2 * len(SIZES)}}


def many_clients() -> Any:
    """Return twelve clients: more than there are shards, so that a worker runs several."""
    return tiny_clients(False, SIZES * 2)


def test_sums_grow_in_the_block_and_are_read_from_it() -> None:
    sums = SumsBlock(new_block(1000))
    tensors = {"w": torch.arange(7.0), "empty": torch.empty(0), "b": torch.rand(3, 5)}
    placed = {name: sums.room(tensor).copy_(tensor) for name, tensor in tensors.items()}
    layout = sums.layout(Payload({"net": placed}))
    assert layout is not None
    found = read(layout, sums._block).groups["net"]
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert sums.layout(Payload({"net": {"b": placed["b"], "w": placed["w"]}})) is None, "in another order"


def test_what_does_not_fit_lies_elsewhere() -> None:
    sums = SumsBlock(new_block(200))
    first, second = sums.room(torch.rand(40)), sums.room(torch.rand(40))
    assert sums.layout(Payload({"net": {"a": first}})) is not None
    assert sums.layout(Payload({"net": {"a": first, "b": second}})) is None
    sums.clear()
    assert sums.room(torch.rand(40)).data_ptr() == first.data_ptr()


def test_sums_of_the_next_shard_lie_behind_those_of_the_last_while_there_is_room() -> None:
    sums = SumsBlock(new_block(600))
    tensors = [torch.rand(60) for _ in range(3)]
    for number, tensor in enumerate(tensors[:2]):
        if number:
            assert sums.follow()
        place = sums.room(tensor).copy_(tensor)
        layout = sums.layout(Payload({"net": {"w": place}}))
        assert layout is not None
        found = read(layout, sums._block[sums.start :]).groups["net"]["w"]
        assert torch.equal(found, tensor)
    assert torch.equal(sums._block[:240].view(torch.float32), tensors[0]), "the first sum still lies there"
    assert not sums.follow(), "512 of 600 bytes are taken, and a third sum takes 256"
    sums.clear()
    assert sums.room(tensors[2]).data_ptr() == sums._block.data_ptr()


@pytest.mark.parametrize(("seconds", "messages"), [(0.0, 3), (1000.0, 0)])
def test_reports_are_held_back_while_a_message_has_just_gone(seconds: float, messages: int) -> None:
    ours, theirs = Pipe()
    reports = Reports(theirs, seconds)
    clients = [ClientStats(client, 5, 0, 0, 0.1, {}) for client in range(3)]
    for stats in clients:
        reports.add(stats)
    found = []
    while ours.poll():
        found.append(receive(ours))
    assert found == [("report", [stats]) for stats in clients][:messages]


def test_a_block_is_in_no_process_before_it_is_written() -> None:
    before = _resident()
    block = new_block(64 << 20)
    assert _resident() - before < 16 << 20
    block.fill_(1)
    assert _resident() - before > 48 << 20


@pytest.mark.parametrize(("slack", "copies"), [(2048, True), (worker_pool.SLACK, False)])
def test_sums_wait_for_those_of_a_slow_shard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slack: int, copies: bool) -> None:
    """The other worker runs three shards meanwhile: it may use its block again only when the sums there were copied."""
    copied, detach = [], Accumulator.detach
    others = assign_shards(dict(enumerate(SIZES * 2)))[1:]
    monkeypatch.setattr(worker_pool, "SLACK", slack)
    monkeypatch.setattr(Accumulator, "detach", lambda self: (copied.append(1), detach(self))[1])
    expected = TinyFederation("simclr", over=TWELVE, clients=many_clients()).run(until=1)
    step = LocalTraining.client_step

    def slow(self: Any, nets: Any, received: Any, local: Any, data: Any, ctx: Any) -> Any:
        (tmp_path / f"client-{ctx.client_id}").touch()
        patience = time.monotonic() + 60
        while ctx.client_id == SLOW and sum((tmp_path / f"client-{shard[0]}").exists() for shard in others) < 3:
            assert time.monotonic() < patience
            time.sleep(0.01)
        return step(self, nets, received, local, data, ctx)

    monkeypatch.setattr(LocalTraining, "client_step", slow)
    assert same_bits(TinyFederation("simclr", workers=2, over=TWELVE, clients=many_clients()).run(until=1), expected)
    assert bool(copied) == copies, "a block with room for all sums of a worker is used on"
    died = tmp_path / "died"

    def dies_once(self: Any, nets: Any, received: Any, local: Any, data: Any, ctx: Any) -> Any:
        if ctx.client_id == 5 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return slow(self, nets, received, local, data, ctx)

    monkeypatch.setattr(LocalTraining, "client_step", dies_once)
    assert same_bits(TinyFederation("simclr", workers=2, over=TWELVE, clients=many_clients()).run(until=1), expected)
    assert died.exists()


def test_sums_wait_while_the_next_shard_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard without an answer has no sums: those before it still lie in the block when the shard after it writes there."""
    over = {**TWELVE, "federation": {"strict": False, "quorum": 0.1}}
    make = partial(TinyFederation, "simclr", over=over, clients=many_clients())
    num_samples = dict(enumerate(SIZES * 2))
    failing = set(assign_shards(num_samples)[4])
    monkeypatch.setattr(worker_pool, "SLACK", 2048)
    step = LocalTraining.client_step

    def faulty(self: Any, nets: Any, received: Any, local: Any, data: Any, ctx: Any) -> Any:
        if ctx.client_id in failing:
            raise ValueError("no answer")
        if ctx.client_id == SLOW:
            time.sleep(1.0)
        return step(self, nets, received, local, data, ctx)

    monkeypatch.setattr(LocalTraining, "client_step", faulty)
    assert same_bits(make(workers=2).run(until=1), make().run(until=1))


def test_tasks_that_fill_a_pipe_block_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients or many tensors make a long task; here pipes are short instead, and a worker's answer fills them too."""
    make_pipe = BaseContext.Pipe

    def short_pipe(self: Any, duplex: bool = True) -> Any:
        ends = make_pipe(self, duplex)
        for end in ends:
            with socket(fileno=os.dup(end.fileno())) as own:
                own.setsockopt(SOL_SOCKET, SO_SNDBUF, 2048)
        return ends

    over = {"model": {"backbone": "resnet50"}, **TWELVE}
    make = partial(TinyFederation, "byol", over=over, clients=many_clients())
    expected = make().run(until=1)
    monkeypatch.setattr(BaseContext, "Pipe", short_pipe)
    monkeypatch.setattr(worker_pool, "PIPE", 2048)
    assert same_bits(make(workers=2).run(until=1), expected)


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_updates_that_are_kept_are_copies(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    kept, finish = [], Accumulator.finish
    monkeypatch.setattr(Accumulator, "finish", lambda self, server: (kept.extend(self.kept), finish(self, server))[1])
    TinyFederation("simclr", over={"aggregation": {"rule": rule}}).run(until=1)
    places = [tensor.data_ptr() for *_, tensors in kept for tensor in tensors.values()]
    assert len(places) == len(set(places))
    assert bool(places) == (rule == "median")


def test_summed_updates_are_the_networks_own_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    added, add = [], Accumulator.add
    monkeypatch.setattr(Accumulator, "add", lambda self, update: (added.append(update), add(self, update))[1])
    tiny = TinyFederation("simclr")
    tiny.run(until=1)
    places = [tensor.data_ptr() for update in added for _, tensor in update.payload.tensors()]
    assert len(set(places)) == len(places) // len(added), "all clients of a shard train in the same memory"


@pytest.mark.parametrize(
    ("method", "training"),
    [
        ("simclr", {"optimizer": "adam", "local_epochs": 2}),
        ("simclr", {"proximal_weight": 0.1, "local_epochs": 2}),
        ("simclr", {"micro_batch": 2}),
        ("byol", {}),
        ("cfcl", {}),
    ],
)
def test_large_networks_step_inside_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch, method: str, training: dict[str, Any]
) -> None:
    make = partial(TinyFederation, method, over={"training": training})
    expected = make().run(until=1)
    calls = []
    inside = Optimizer.inside_backward
    monkeypatch.setattr(optimizers, "LARGE", 0)
    monkeypatch.setattr(Optimizer, "inside_backward", lambda self, pull: (calls.append(1), inside(self, pull))[1])
    assert same_bits(make().run(until=1), expected)
    assert bool(calls) == ("micro_batch" not in training), "parts of a batch add to the gradients one after the other"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
