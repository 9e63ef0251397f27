"""A rehearsed run: its phases, its costs and its errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unisono.config import resolve
from unisono.core.config import merge, parse_overrides
from unisono.core.errors import ClientError
from unisono.core.method import Phase
from unisono.engines.memory import is_out_of_memory
from unisono.experiment import Experiment
from unisono.federation.loop import PhaseResult, PhaseTask
from unisono.fitting import batches_per_turn, phase_seconds
from unisono.rehearsal import Measurement, Stage, _make_loop, _run_course, estimate_memory, estimate_run, rehearse
from unisono.rehearsal_engine import Limits, MeasuringEngine, Part, TurnCost

DIGITS = {
    "data": {"dataset": "digits", "limit": 200, "test_limit": 50},
    "partition": {"scheme": "iid", "num_clients": 4},
    "model": {"backbone": "cfcl-cnn", "norm": "group"},
    "training": {"batch_size": 16},
    "engine": {"workers": 0},
}


def experiment_of(method: str, *settings: str) -> Experiment:
    tree = merge(DIGITS, {"method": {"name": method}})
    return Experiment.prepare(resolve(merge(tree, parse_overrides(settings))))


def course(experiment: Experiment) -> list[tuple[int, list[str]]]:
    part = replace(Part.of(experiment), probe_data=None)
    stages = rehearse(part, Limits(measure=False)).stages
    return [(stage.num_rounds, [phase.name for phase, _ in stage.phases]) for stage in stages]


def test_every_phase_of_a_run_is_found_with_its_rounds() -> None:
    assert course(experiment_of("simclr", "federation.rounds=30")) == [(30, ["train"])]
    assert course(experiment_of("orchestra", "federation.rounds=30", "method.projection_dim=16")) == [
        (1, ["cluster", "train"]),
        (29, ["train"]),
    ]
    two_stages = ("federation.rounds=30", "method.represent_rounds=17", "method.cluster_start=kmeans", "method.num_clusters=2")
    assert course(experiment_of("fedmcc", *two_stages)) == [
        (17, ["represent"]),
        (1, ["seed", "cluster"]),
        (12, ["cluster"]),
    ]
    assert course(experiment_of("fedmcc", "federation.rounds=1", "method.represent_rounds=1")) == [(1, ["represent"])]


def test_clients_that_exchange_data_answer_with_their_neighbours() -> None:
    options = ("federation.rounds=20", "consent.share_data=true", "method.aggregation_steps=20", "training.local_steps=5")
    part = Part.of(experiment_of("cfcl", *options))
    assert len(part.clients) > 1
    assert course(experiment_of("cfcl", *options)) == [(1, ["push", "offer", "train"]), (19, ["offer", "train"])]


def test_steps_have_the_batch_of_the_run_and_its_memory() -> None:
    small, large = (
        rehearse(
            replace(Part.of(experiment_of("simclr", f"training.batch_size={size}", "data.image_size=64")), probe_data=None)
        )
        for size in (8, 50)
    )
    assert (small.batch_size, large.batch_size) == (8, 50)
    assert large.peak > small.peak
    assert large.step > 2 * small.step


def test_a_step_that_takes_too_long_is_cut_and_scaled() -> None:
    part = replace(Part.of(experiment_of("simclr", "training.batch_size=48", "data.image_size=32")), probe_data=None)
    whole, cut = rehearse(part), rehearse(part, Limits(longest_step=1e-9))
    assert (whole.batch_size, cut.batch_size) == (48, 6)
    assert whole.step / 5 < cut.step < 5 * whole.step
    fits = rehearse(part, Limits(largest_step=1.0))
    assert fits.batch_size == 6


def test_costs_besides_steps_are_fitted_to_two_sizes() -> None:
    cost = TurnCost.fitted(0.0, (10, 3.0), (20, 5.0))
    assert (cost.fixed, cost.per_sample) == pytest.approx((1.0, 0.2))
    assert TurnCost.fitted(0.0, (10, 3.0), (10, 3.0)) == TurnCost(0.0, 3.0, 0.0)
    assert TurnCost.fitted(0.0, (10, 3.0), (20, 2.0)) == TurnCost(0.0, 3.0, 0.0), "noise makes nothing cheaper"


def test_the_estimate_is_a_sum_over_phases() -> None:
    experiment = experiment_of(
        "simclr",
        "federation.rounds=10",
        "cohort.size=3",
        "engine.workers=2",
        "evaluation.floors=false",
        "evaluation.probe_every=4",
    )
    every, once = (Phase("train"), TurnCost(2.0, 1.0, 0.1)), (Phase("look", all_clients=True), TurnCost(0.0, 5.0, 0.0))
    measured = Measurement((Stage(1, (once, every), 0.5), Stage(9, (every,), 0.5)), 16, 1e9, 0.0, 0.0)
    batches = 50 / 16  # four clients share 200 samples
    turn = 2.0 * batches + 1.0 + 0.1 * 50
    assert batches_per_turn(experiment) == pytest.approx(batches)
    assert phase_seconds(experiment.config, 3, turn) == pytest.approx(2 * turn), "two workers take three clients in two turns"
    assert estimate_run(experiment, measured) == pytest.approx(10 * 2 * turn + 2 * 5.0 + 10 * 0.5)
    probed = replace(measured, forward=0.01, probes=1.0)
    per_probe = estimate_run(experiment, probed, untrained=True)
    assert estimate_run(experiment, probed) == pytest.approx(estimate_run(experiment, measured) + 3 * per_probe)
    assert estimate_memory(experiment, measured) == pytest.approx(2e9 + 250 * 64)
    steps = experiment_of("simclr", "training.local_steps=7", "training.batch_size=100")
    assert batches_per_turn(steps) == pytest.approx(7 * 50 / 100), "no batch is larger than the client"


def test_a_failing_client_ends_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part.of(experiment_of("simclr"))
    broken = replace(part, samples=part.samples[:, :, :2, :2])
    with pytest.raises(ClientError, match="phase train"):
        rehearse(broken, Limits(measure=False))


def test_a_batch_beyond_the_memory_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    part = replace(Part.of(experiment_of("simclr", "training.batch_size=48")), probe_data=None)
    engine = MeasuringEngine(part, Limits())
    seconds = engine._seconds

    def scarce(task: object, num_steps: int, batch_size: int, num_rows: int) -> float:
        if batch_size > 12:
            raise ClientError(
                0, "train", 0, "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 1 byte"
            )
        return seconds(task, num_steps, batch_size, num_rows)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_seconds", scarce)
    _run_course(_make_loop(engine), engine)
    assert engine.batch_size == 12
    assert not is_out_of_memory("ValueError: a tensor has another shape")


def test_the_first_exchange_may_come_later_and_between_others() -> None:
    """Every second round from the third on; two rounds would be too few for such a run."""
    options = ["consent.share_data=true", "method.pull_steps=4", "method.pull_at_start=false", "training.local_steps=2"]
    options += ["method.aggregation_steps=4", "federation.rounds=41"]
    found = course(experiment_of("cfcl", *options))
    assert found[:3] == [(2, ["train"]), (1, ["push", "offer", "train"]), (1, ["train"])]
    exchanging = sum(num_rounds for num_rounds, phases in found if "offer" in phases)
    assert (sum(num_rounds for num_rounds, _ in found), exchanging) == (41, 20)


def test_training_with_received_points_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where clients trained alone before they had any."""
    trained: list[int] = []
    run = MeasuringEngine._run

    def watched(engine: MeasuringEngine, task: PhaseTask, *rest: Any) -> PhaseResult:
        if task.ctx.phase == "train":
            trained.append(task.ctx.round)
        return run(engine, task, *rest)

    monkeypatch.setattr(MeasuringEngine, "_run", watched)
    options = ["consent.share_data=true", "method.pull_steps=4", "method.pull_at_start=false", "training.local_steps=2"]
    course(experiment_of("cfcl", *options, "method.aggregation_steps=4", "federation.rounds=9"))
    assert trained == 2 * [0, 1, 2], "in a run as short as can be and in the run: at first, again, and after an exchange"
