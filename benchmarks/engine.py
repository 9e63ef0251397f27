"""The embedded engine against bare processes that run the same training steps: images per second."""

from __future__ import annotations

from statistics import median

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


def report() -> None:
    """Prints the table."""
    print("embedded engine, 2 workers, 100 clients, 20 per round, batch 16; against 2 bare processes")
    print(f"{'backbone':14} {'bare images/s':>14} {'engine images/s':>16} {'ratio':>6}")
    for name, bare_speed, engine_speed, ratio in measure():
        print(f"{name:14} {bare_speed:14.0f} {engine_speed:16.0f} {ratio:6.2f}")


if __name__ == "__main__":
    report()
