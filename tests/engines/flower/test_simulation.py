"""Flower's simulation gives the bits of the embedded engine. One start of Ray serves all tests."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.flower.opening import open_tiny, tiny_terms
from tests.recorder import Recorder
from unisono.core.method import methods
from unisono.core.wire import to_bytes
from unisono.engines.embedded import EngineConfig
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import RoundLoop
from unisono.testing.tiny import SIZES, TinyFederation, same_bits

pytest.importorskip("ray")
pytest.importorskip("flwr")
from flwr.simulation import run_simulation

from unisono.engines.flower.simulation import RaySimulation, backend_config, grid_engine, simulated_app

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
CONFIG = EngineConfig(kind="flower", workers=2, device="cpu", client_timeout=120)
NUM_ROUNDS = 2


@pytest.fixture(scope="module")
def grid() -> Iterator[Any]:
    simulation = RaySimulation(len(SIZES), simulated_app(open_tiny), CONFIG)
    with pytest.warns(FutureWarning, match="stands on Flower's run_simulation, which Flower calls deprecated"):
        grid = simulation.__enter__()
    yield grid
    simulation.__exit__()


def test_flower_does_call_it_deprecated() -> None:
    """Otherwise the note before every run, and docs/deployment.md, are to be dropped."""
    assert "warn_deprecated_feature(" in inspect.getsource(run_simulation)


def run_on(grid: Any, method: str, over: dict[str, Any] | None = None) -> tuple[RoundLoop, Recorder, Any]:
    tiny = TinyFederation(method, over=over)
    engine = grid_engine(grid, tiny.setup, CONFIG, tiny_terms(method, over), len(SIZES))
    federation = RoundLoop(tiny.method, engine, ClientStateStore(), tiny.config.loop, 0)
    recorder = Recorder()
    state = federation.run(federation.initial_state(), [recorder], NUM_ROUNDS)
    return federation, recorder, state


def check_same(grid: Any, method: str, over: dict[str, Any] | None = None) -> None:
    embedded, expected = TinyFederation(method, over=over), Recorder()
    reference = embedded.run(until=NUM_ROUNDS, callbacks=[expected])
    federation, recorder, state = run_on(grid, method, over)
    assert same_bits(state, reference)
    assert [record.as_json() for record in recorder.records] == [record.as_json() for record in expected.records]
    assert _reports(recorder) == _reports(expected)
    assert list(federation.store) == list(embedded.store)
    for client in embedded.store:
        assert to_bytes(federation.store.get(client)) == to_bytes(embedded.store.get(client))


@pytest.mark.parametrize("method", list(methods))
def test_same_bits_as_the_embedded_engine(grid: Any, method: str) -> None:
    check_same(grid, method)


@pytest.mark.parametrize(
    "over",
    [
        {"compression": {"bits": 8, "top_k": 0.5}},
        {"privacy": {"clip_norm": 0.1, "noise_multiplier": 0.5}, "aggregation": {"weighting": "uniform"}},
        {"aggregation": {"rule": "median"}},
    ],
    ids=["compression", "privacy", "median"],
)
def test_same_bits_with_postprocessing_and_robust_rules(grid: Any, over: dict[str, Any]) -> None:
    check_same(grid, "fedema", over)


def test_a_client_that_raises_is_left_out_with_its_traceback(grid: Any) -> None:
    over = {"federation": {"strict": False, "quorum": 0.1}, "training": {"learning_rate": 1e30}}
    tiny = TinyFederation("simclr", over=over)
    engine = grid_engine(grid, tiny.setup, CONFIG, tiny_terms("simclr", over), len(SIZES))
    federation = RoundLoop(tiny.method, engine, ClientStateStore(), tiny.config.loop, 0)
    embedded, expected = TinyFederation("simclr", over=over), Recorder()
    recorder = Recorder()
    embedded.run(until=1, callbacks=[expected])
    federation.run(federation.initial_state(), [recorder], 1)
    failures, reference = recorder.records[0].failures, expected.records[0].failures
    assert [str(failure) for failure in failures] == [str(failure) for failure in reference]
    assert failures
    assert "Traceback" in failures[0].details


def test_resources_reach_ray() -> None:
    config = EngineConfig(kind="flower", workers=4, client_cpus=0.5, client_gpus=0.25)
    found = backend_config(config)
    assert found["client_resources"] == {"num_cpus": 0.5, "num_gpus": 0.25}
    assert found["init_args"]["num_cpus"] == 2
    cluster = backend_config(EngineConfig(kind="flower", ray_address="auto"))
    assert cluster["init_args"]["address"] == "auto"
    assert "num_cpus" not in cluster["init_args"]


def _reports(recorder: Recorder) -> list[list[tuple[Any, ...]]]:
    """Everything of the reports but the clock."""
    return [
        [(phase, r.client_id, r.num_samples, r.bytes_down, r.bytes_up, dict(r.metrics)) for phase, r in record.clients]
        for record in recorder.records
    ]
