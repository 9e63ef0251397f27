"""Ten times more clients with the same data and the same number of samples per round: time and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

REPEATS = 5


def measure_here(num_clients: int) -> dict[str, float]:
    """Median seconds per round and peak memory of this process and its workers."""
    import psutil

    from benchmarks.workload import BACKBONES, Rounds, experiment

    # Ten times the clients hold a tenth of the samples each; six batches of ten samples are the same work for both.
    over = {"training": {"local_steps": 6, "batch_size": 10}}
    rounds = Rounds.start(experiment(BACKBONES["cfcl-cnn"], num_clients, over=over))
    seconds = median(rounds.seconds() for _ in range(REPEATS))
    own = psutil.Process()
    memory = sum(process.memory_full_info().pss for process in [own, *own.children(recursive=True)])
    rounds.engine.close()
    return {"seconds": seconds, "megabytes": memory / 2**20}


def report() -> None:
    """Prints the table; each size is measured in a process of its own, twice, in turn."""
    print("ten times more clients, same data, same cohort of 20, 6 steps each (cfcl-cnn, 2 workers)")
    results: dict[int, list[dict[str, float]]] = {100: [], 1000: []}
    for _ in range(3):
        for num_clients, found in results.items():
            command = [sys.executable, "-m", "benchmarks.clients", str(num_clients)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(json.loads(output.splitlines()[-1]))
    middle = {n: {key: median(entry[key] for entry in found) for key in found[0]} for n, found in results.items()}
    print(f"{'clients':>8} {'s/round':>8} {'MB (PSS)':>9}")
    for num_clients, entry in middle.items():
        print(f"{num_clients:8d} {entry['seconds']:8.3f} {entry['megabytes']:9.0f}")
    ratios = {key: middle[1000][key] / middle[100][key] for key in middle[100]}
    print(f"{'ratio':>8} {ratios['seconds']:8.2f} {ratios['megabytes']:9.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_here(int(sys.argv[1]))))
    else:
        report()
