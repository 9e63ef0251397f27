from __future__ import annotations

import pytest

from unisono.cli.run_progress import RunProgress, duration
from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import RoundRecord
from unisono.methods.training_loop import TrainingConfig


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stats(num_samples: int) -> ClientStats:
    return ClientStats(0, num_samples, 0, 0, 0.0, {})


def test_time_left_grows_with_rounds_and_falls_with_clients() -> None:
    clock = Clock()
    run = RunProgress(10, TrainingConfig(), clock)
    assert run.seconds_left is None
    run.start_round(0, 4)
    assert run.seconds_left is None
    clock.now += 2
    run.count_client(stats(5))
    # A quarter of the first of ten rounds took 2 s: 39 quarters are left.
    assert run.seconds_left == pytest.approx(2 * 39)
    clock.now += 6
    run.end_round(RoundRecord(0, seconds={"round": 8.0}))
    assert run.seconds_left == pytest.approx(8 * 9)


def test_time_left_of_a_resumed_run_counts_its_own_rounds() -> None:
    clock = Clock()
    run = RunProgress(10, TrainingConfig(), clock)
    run.start_round(7, 1)
    clock.now += 5
    run.end_round(RoundRecord(7))
    assert run.seconds_left == pytest.approx(10)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (TrainingConfig(local_epochs=3), 3 * 30),
        (TrainingConfig(local_steps=4, batch_size=8), 4 * 8 + 4 * 8),
        (TrainingConfig(local_steps=4, batch_size=16), 4 * 10 + 4 * 16),
    ],
)
def test_speed_counts_epochs_and_steps(training: TrainingConfig, expected: int) -> None:
    clock = Clock()
    run = RunProgress(2, training, clock)
    run.start_round(0, 2)
    assert run.samples_per_second is None
    for num_samples in (10, 20):
        run.count_client(stats(num_samples))
    clock.now += 4
    assert run.samples_per_second == pytest.approx(expected / 4)
    run.end_round(RoundRecord(0, seconds={"round": 5.0}))
    assert run.samples_per_second == pytest.approx(expected / 5)


def test_latest_numbers() -> None:
    run = RunProgress(3, TrainingConfig())
    run.start_round(0, 1)
    run.end_round(RoundRecord(0, metrics={"loss": 2.0, "probe.linear": 0.5}))
    run.start_round(1, 1)
    run.end_round(RoundRecord(1, metrics={"loss": 1.5}))
    assert (run.loss, run.probes, run.probed_after) == (1.5, {"linear": 0.5}, 1)


def test_loss_and_probes_of_a_round_with_phases() -> None:
    run = RunProgress(1, TrainingConfig(), lambda: 0.0)
    run.start_round(0, 1)
    run.end_round(RoundRecord(0, metrics={"offer.loss": 3.0, "loss": 1.0, "accuracy": 0.2, "probe.knn": 0.1}))
    assert (run.loss, run.probes) == (1.0, {"knn": 0.1})


def test_duration() -> None:
    assert duration(72.4) == "0:01:12"
