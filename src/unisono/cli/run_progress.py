"""Counts, speed, latest numbers and remaining time of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from unisono.federation.client_turn import ClientStats
from unisono.federation.loop import RoundRecord
from unisono.methods.training_loop import TrainingConfig
from unisono.runs.evaluation import PREFIX


class RunProgress:
    """Counts, speed and latest numbers of a run, for a display to read.

    Args:
        num_rounds: length of the whole run.
        training: tells how many samples a client update uses.
        clock: seconds.
    """

    def __init__(self, num_rounds: int, training: TrainingConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_rounds = num_rounds
        self.rounds_done = 0
        self.clients_asked = 0
        self.clients_done = 0
        self.num_failures = 0
        self.loss: float | None = None
        self.probes: dict[str, float] = {}
        self.probed_after = 0
        self._training = training
        self._clock = clock
        self._begin: float | None = None
        self._rounds_before = 0
        self._round_begin = 0.0
        self._round_samples = 0
        self._last_speed: float | None = None

    def start_round(self, round: int, num_clients: int) -> None:
        """Record that a round asks this many clients."""
        now = self._clock()
        if self._begin is None:
            self._begin, self._rounds_before = now, round
        self.rounds_done, self.clients_asked, self.clients_done = round, num_clients, 0
        self._round_begin, self._round_samples = now, 0

    def count_client(self, stats: ClientStats) -> None:
        """Record that a client has answered."""
        self.clients_done += 1
        self._round_samples += self._samples_of_update(stats.num_samples)

    def count_failure(self) -> None:
        """Record that a client has failed."""
        self.num_failures += 1

    def end_round(self, record: RoundRecord) -> None:
        """Record that a round is done."""
        self.rounds_done, self.clients_done = record.round + 1, 0
        self.clients_asked = 0
        seconds = record.seconds.get("round", 0.0)
        self._last_speed = self._round_samples / seconds if seconds > 0 else None
        self._round_samples = 0
        self.loss = record.metrics.get("loss")
        probes = probes_of(record.metrics)
        if probes:
            self.probes, self.probed_after = probes, self.rounds_done

    @property
    def samples_per_second(self) -> float | None:
        """Samples that clients went through per second: of the last whole round, or of the first one so far."""
        if self._last_speed is not None or not self._round_samples:
            return self._last_speed
        elapsed = self._clock() - self._round_begin
        return self._round_samples / elapsed if elapsed > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest of the run takes at the pace so far, None before the first answer."""
        if self._begin is None:
            return None
        part = self.clients_done / self.clients_asked if self.clients_asked else 0.0
        done = self.rounds_done - self._rounds_before + part
        if done <= 0:
            return None
        return (self._clock() - self._begin) / done * (self.num_rounds - self.rounds_done - part)

    def _samples_of_update(self, num_samples: int) -> int:
        if self._training.local_steps is not None:
            return self._training.local_steps * min(self._training.batch_size, num_samples)
        return self._training.local_epochs * num_samples


def probes_of(metrics: dict[str, float]) -> dict[str, float]:
    """Return the probe results of a round by their own names."""
    return {name.removeprefix(PREFIX): value for name, value in metrics.items() if name.startswith(PREFIX)}


def duration(seconds: float) -> str:
    """Return a duration such as ``0:01:12``."""
    return str(timedelta(seconds=round(seconds)))
