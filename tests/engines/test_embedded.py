"""The embedded engine: shards, dead workers, late clients."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload, Update
from unisono.engines import worker_pool
from unisono.engines.devices import resolve_devices, threads
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.federation.aggregate import NUM_SHARDS
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import Callback
from unisono.methods.simclr import SimCLR
from unisono.testing.tiny import SIZES, TinyFederation, same_bits

EVERYONE = {"cohort": {"size": len(SIZES)}}
TOLERANT = {"federation": {"strict": False}, **EVERYONE}


class KillWorkers(Callback):
    """Kills all workers once, after the first client of the run has answered."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.killed: list[int] = []
        self.clients: list[int] = []

    def on_client_end(self, phase: str, stats: ClientStats) -> None:
        self.clients.append(stats.client_id)
        if not self.killed:
            self.killed = list(self.engine.worker_pids)
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


def test_killed_workers_are_replaced_and_their_lanes_redone() -> None:
    expected = TinyFederation("simclr", over=EVERYONE).run()
    tiny = TinyFederation("simclr", workers=2, over=EVERYONE)
    killer = KillWorkers(tiny.engine)
    assert same_bits(tiny.run(callbacks=[killer]), expected)
    assert len(killer.killed) == 2
    assert sorted(killer.clients) == sorted(list(range(len(SIZES))) * 3), "each client is told of once per round"


def test_idle_workers_that_die_are_replaced() -> None:
    expected = TinyFederation("simclr").run()
    tiny = TinyFederation("simclr", workers=2)
    state = tiny.federation.run_round(tiny.federation.initial_state())
    pids = tiny.engine.worker_pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _wait_for_the_end(pids)
    assert same_bits(tiny.run(state), expected)


class Garbage:
    """In a cycle, so that the collector finds it; deadly to all processes but the one that made it, as objects of Ray are."""

    def __init__(self) -> None:
        self.itself, self.pid = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            os.kill(os.getpid(), signal.SIGKILL)


def test_workers_leave_the_garbage_of_their_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    step = SimCLR.client_step

    def collecting(self: SimCLR, *arguments: Any) -> tuple[Update, Payload]:
        gc.collect()
        return step(self, *arguments)

    expected = TinyFederation("simclr").run()
    gc.disable()
    try:
        Garbage()
        tiny = TinyFederation("simclr", workers=2)
        monkeypatch.setattr(SimCLR, "client_step", collecting)
        assert same_bits(tiny.run(), expected)
    finally:
        gc.enable()
        gc.collect()


def test_workers_end_when_their_parent_is_killed() -> None:
    """A parent that is killed cannot clean up; its workers notice the closed pipe."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        tiny = TinyFederation("simclr", workers=2)
        tiny.federation.run_round(tiny.federation.initial_state())
        os.write(writer, " ".join(map(str, tiny.engine.worker_pids)).encode() + b"\n")
        signal.pause()
    pids = [int(pid) for pid in os.read(reader, 1000).split()]
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert len(pids) == 2
    _wait_for_the_end(pids)


def _wait_for_the_end(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + 300
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Deadly(SimCLR):
    """Client 3 kills the process it runs in."""

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if ctx.client_id == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_step(nets, received, local, data, ctx)


def test_a_client_that_keeps_killing_its_worker_is_left_out() -> None:
    tiny = _with_method(TinyFederation("simclr", workers=2, over=TOLERANT), Deadly)
    failures = []
    tiny.federation.run(tiny.federation.initial_state(), [_Failures(failures)], until=1)
    tiny.engine.close()
    assert [failure.client_id for failure in failures] == [3]
    assert "died" in failures[0].reason


def test_a_client_that_keeps_killing_its_worker_stops_a_strict_run() -> None:
    tiny = _with_method(TinyFederation("simclr", workers=1, over=EVERYONE), Deadly)
    with pytest.raises(ClientError, match="round 1, phase train, client 3: its worker process died"):
        tiny.run(until=1)


class Slow(SimCLR):
    """Client 0 hangs."""

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if ctx.client_id == 0:
            time.sleep(600)
        return super().client_step(nets, received, local, data, ctx)


def test_a_client_that_hangs_is_left_out_after_its_timeout() -> None:
    tiny = _with_method(TinyFederation("simclr", workers=2, over=TOLERANT), Slow)
    tiny.engine._timeout = 6.0
    failures: list[ClientError] = []
    tiny.federation.run(tiny.federation.initial_state(), [_Failures(failures)], until=1)
    tiny.engine.close()
    assert [failure.client_id for failure in failures] == [0]
    assert failures[0].reason == "no answer within 6 s"


class StuckOnce(SimCLR):
    """The first process that runs client 0 never wakes up."""

    marker = ""

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        if ctx.client_id == 0 and not os.path.exists(self.marker):
            with open(self.marker, "w"):
                time.sleep(600)
        return super().client_step(nets, received, local, data, ctx)


def test_a_worker_that_is_stuck_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "QUIET_LIMIT", 2.0)
    expected = TinyFederation("simclr", over=EVERYONE).run(until=1)
    kind = type("StuckOnce", (StuckOnce,), {"marker": str(tmp_path / "stuck")})
    tiny = _with_method(TinyFederation("simclr", workers=2, over=EVERYONE), kind)
    assert same_bits(tiny.run(until=1), expected)
    assert (tmp_path / "stuck").exists()


class Broken(SimCLR):
    """Client 1 answers what its group says: raises, NaN, an undeclared group, or a wrong shape."""

    fault = "raise"

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        update, local = super().client_step(nets, received, local, data, ctx)
        if ctx.client_id != 1:
            return update, local
        if self.fault == "raise":
            raise ZeroDivisionError("no luck")
        name = next(iter(update.payload.groups["projector"]))
        tensors = dict(update.payload.groups["projector"])
        tensors[name] = torch.full_like(tensors[name], torch.nan) if self.fault == "nan" else torch.zeros(1)
        groups = {"secret": {"x": data.batch(torch.arange(1))}} if self.fault == "secret" else {"projector": tensors}
        return Update(1, 1.0, update.payload.with_groups(**groups)), local


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ZeroDivisionError: no luck"),
        ("nan", "not finite"),
        ("shape", "has shape"),
        ("secret", "group 'secret' is not among those declared for this phase"),
    ],
)
def test_bad_answers_are_recorded_and_left_out(workers: int, fault: str, reason: str) -> None:
    kind = type("Broken", (Broken,), {"fault": fault})
    tiny = _with_method(TinyFederation("simclr", workers=workers, over=TOLERANT), kind)
    failures: list[ClientError] = []
    state = tiny.federation.run(tiny.federation.initial_state(), [_Failures(failures)], until=1)
    tiny.engine.close()
    assert state.round == 1
    assert [(failure.round, failure.phase, failure.client_id) for failure in failures] == [(0, "train", 1)]
    assert reason in failures[0].reason
    assert "client_step" in failures[0].details or fault != "raise"


def test_a_growing_broadcast_gets_more_room() -> None:
    tiny = TinyFederation("simclr", workers=1)
    broadcast = tiny.method.broadcast(tiny.federation.initial_state().server, Context(0))
    tiny.engine.open(broadcast)
    first = tiny.engine.worker_pids
    tiny.engine.open(broadcast.with_groups(extra={"x": torch.zeros(10**6)}))
    second = tiny.engine.worker_pids
    tiny.engine.close()
    assert first != second


def test_devices_are_checked() -> None:
    assert resolve_devices("cpu") == [torch.device("cpu")]
    with pytest.raises(UserError, match=r"engine.device must be auto, cpu, cuda, cuda:INDEX or mps, got 'gpu'"):
        resolve_devices("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no cuda device"):
            resolve_devices("cuda:0")
        assert resolve_devices("auto")[0].type in ("cpu", "mps")


@pytest.mark.parametrize("workers", [0, 2])
def test_clients_train_in_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    step = SimCLR.client_step

    def noting(self: SimCLR, *arguments: Any) -> tuple[Update, Payload]:
        (tmp_path / f"{os.getpid()}-{torch.get_num_threads()}").touch()
        return step(self, *arguments)

    monkeypatch.setattr(SimCLR, "client_step", noting)
    with threads(3):
        TinyFederation("simclr", workers=workers, over=EVERYONE).run(until=1)
    found = [path.name.split("-") for path in tmp_path.iterdir()]
    assert [number for _, number in found] == ["1"] * max(1, workers)
    assert (str(os.getpid()) in [pid for pid, _ in found]) == (workers == 0)


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_workers_default_to_the_cores_of_the_process() -> None:
    tiny = TinyFederation("simclr")
    assert EmbeddedEngine(tiny.setup, EngineConfig()).num_workers == min(NUM_SHARDS, len(os.sched_getaffinity(0)))


def test_no_more_workers_start_than_there_are_shards() -> None:
    with TinyFederation("simclr", workers=NUM_SHARDS + 3).engine as engine:
        engine.open(Payload())
        assert len(engine.worker_pids) == NUM_SHARDS


def test_spawned_workers_give_the_same_bits() -> None:
    expected = TinyFederation("simclr").run(until=1)
    assert same_bits(TinyFederation("simclr", workers=2, over={"engine": {"start_method": "spawn"}}).run(until=1), expected)


def test_spawned_workers_know_a_method_from_a_users_own_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from unisono.methods.simclr import SimCLR\n\nclass Mine(SimCLR):\n    pass\n")
    own = f"{file}:Mine"
    expected = TinyFederation("simclr").run(until=1)
    assert same_bits(TinyFederation(own, workers=1, over={"engine": {"start_method": "spawn"}}).run(until=1), expected)


def test_compiled_networks_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # The graphs are traced as ever, but run without the two minutes that a compiler takes for them.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    eager = TinyFederation("simclr").run(until=1)
    compiled = TinyFederation("simclr", over={"training": {"compile": True}}).run(until=1)
    pairs = zip(eager.server.tensors(), compiled.server.tensors(), strict=True)
    assert all(name == other and torch.allclose(a, b, atol=1e-3) for (name, a), (other, b) in pairs)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_precision_and_memory_format_train(precision: str, channels_last: bool) -> None:
    over = {"training": {"precision": precision, "channels_last": channels_last}}
    state = TinyFederation("simclr", over=over).run(until=1)
    assert all(tensor.dtype == torch.float32 for _, tensor in state.server.tensors())
    assert all(bool(torch.isfinite(tensor).all()) for _, tensor in state.server.tensors())


class _Failures(Callback):
    def __init__(self, found: list[ClientError]) -> None:
        self.found = found

    def on_client_failure(self, failure: ClientError) -> None:
        self.found.append(failure)


def _with_method(tiny: TinyFederation, kind: type[SimCLR]) -> TinyFederation:
    """The same federation with another class of method."""
    tiny.method.__class__ = kind
    return tiny


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_full_shared_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("unable to write to file </torch_1_2_3>: No space left on device (28)")

    tiny = TinyFederation("simclr", workers=1)
    state = tiny.start()
    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(UserError, match=r"not enough shared memory \(/dev/shm\).*set engine\.workers = 0"):
        tiny.run(state)
