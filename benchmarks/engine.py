"""The embedded engine against bare processes that run the same training steps: images per second."""

from __future__ import annotations

from statistics import median

from benchmarks.tables import Table
from benchmarks.workload import BACKBONES, BareProcesses, Rounds, experiment

REPEATS = 7


def measure() -> list[tuple[str, float, float, float]]:
    """Per backbone: images/s of two bare processes, of the engine with two workers, and the median ratio."""
    rows = []
    for name, model in BACKBONES.items():
        prepared = experiment(model)
        rounds = Rounds.start(prepared)
        bare = BareProcesses(prepared, 2, prepared.config.cohort.expected_size(len(prepared.clients)) // 2)
        pairs = [(bare.seconds(), rounds.seconds()) for _ in range(REPEATS)]
        bare.close()
        rounds.engine.close()
        num_images = rounds.samples_per_round
        bare_speed, engine_speed = (num_images / median(times) for times in zip(*pairs, strict=True))
        rows.append((name, bare_speed, engine_speed, median(b / e for b, e in pairs)))
    return rows


def tables() -> list[Table]:
    """Measure both networks."""
    text = (
        "Images per second of two bare processes, which run the same training steps and nothing else, and of the embedded "
        "engine with two workers: 100 clients, 20 per round, one epoch of batches of 16. Each process has one thread. "
        f"Medians of {REPEATS} interleaved repeats; the ratio is the median of the ratios. Wanted: a ratio of at least 1.0."
    )
    rows = [[name, f"{bare:.0f}", f"{engine:.0f}", f"{ratio:.2f}"] for name, bare, engine, ratio in measure()]
    return [Table("The engine against two bare processes", text, ["network", "bare", "engine", "ratio"], rows)]
