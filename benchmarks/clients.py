"""More and more clients with the same cohort and the same work per round: time and peak memory."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.frameworks import tree_megabytes
from benchmarks.tables import Table

REPEATS = 3
ROUNDS = 5
SIZES = (100, 1_000, 10_000, 1_000_000)
NUM_SAMPLES = 20_000
"""Samples of all clients together, up to 10,000 of them; a million clients have two each."""


def run_rounds(num_clients: int) -> float:
    """Return the median seconds per round."""
    import torch

    from benchmarks.workload import BACKBONES, Rounds, experiment
    from unisono.data.datasets import Dataset

    samples = torch.empty(max(NUM_SAMPLES, 2 * num_clients), 1, 8, 8, dtype=torch.uint8).random_()
    dataset = Dataset("noise", samples, None, samples[:0], None, ())
    over = {"training": {"local_steps": 20, "batch_size": 2}, "evaluation": {"probes": []}}
    rounds = Rounds.start(experiment(BACKBONES["cfcl-cnn"], num_clients, over=over, dataset=dataset))
    seconds = median(rounds.seconds() for _ in range(ROUNDS))
    rounds.engine.close()
    return seconds


def measure(num_clients: int) -> tuple[float, float]:
    """Return seconds per round and peak megabytes of a process of its own."""
    command = [sys.executable, "-m", "benchmarks.clients", str(num_clients)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, tree_megabytes(process.pid))
        time.sleep(0.2)
    if process.returncode or process.stdout is None:
        raise RuntimeError(f"{num_clients} clients failed")
    return float(process.stdout.read()), peak


def tables() -> list[Table]:
    """Measure each size in processes of its own, in turn."""
    results: dict[int, list[tuple[float, float]]] = {num_clients: [] for num_clients in SIZES}
    for _ in range(REPEATS):
        for num_clients, found in results.items():
            found.append(measure(num_clients))
    wanted = {10_000: "as much memory as 100", 1_000_000: "at most 1,300 MB"}
    rows = [
        [
            f"{num_clients:,}",
            f"{median(seconds for seconds, _ in found):.2f}",
            f"{median(megabytes for _, megabytes in found):.0f}",
            wanted.get(num_clients, ""),
        ]
        for num_clients, found in results.items()
    ]
    text = (
        "A cohort of 20 clients, 20 steps of two samples each, out of more and more clients: SimCLR with the CNN of CF-CL on "
        f"{NUM_SAMPLES:,} images of 8x8, two per client for a million clients; two workers. Medians of {REPEATS} interleaved "
        "repeats; memory is the peak of the whole process tree (PSS), from the start of the program."
    )
    return [Table("Number of clients", text, ["clients", "s per round", "peak MB", "wanted"], rows)]


if __name__ == "__main__":
    print(run_rounds(int(sys.argv[1])))
