"""Measure a round with and without secure aggregation on a real federation, in processes on this machine.

Wall time counts on a machine that does nothing else; processor seconds, of a whole run in all processes, on any.

``python scripts/secure_round.py [CLIENTS] [WIDTH]``: ten clients and 11 million parameters where nothing is given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from tests.deploy.running import RunningFederation, read_lines

from unisono.runs.directory import RunDirectory

ROUNDS = 2


def processor_seconds() -> float:
    """Return the time of all processes that this one has started, those that have ended included."""
    return sum(sum(process.cpu_times()[:4]) for process in psutil.Process().children(recursive=True))


def main(num_clients: int = 10, width: float = 1.0) -> None:
    """Print the seconds of every round, and the ratio of the fastest ones."""
    with tempfile.TemporaryDirectory() as folder:
        federation = RunningFederation(Path(folder), num_clients=num_clients)
        try:
            federation.start()
            fastest, busy = {}, {}
            for name, secure in (("plain", "false"), ("secure", "true")):
                settings = (
                    "model.backbone=resnet18", f"model.width={width}", "data.channels=1", "training.batch_size=16",
                    "training.local_epochs=1", "evaluation.probe_every=0", f"federation.rounds={ROUNDS}",
                    "federation.quorum=1.0", "report.enabled=false", f"privacy.secure_aggregation={secure}",
                )  # fmt: skip
                before = processor_seconds()
                run = federation.run("simclr", name, *settings)
                busy[name] = processor_seconds() - before
                seconds = [entry["seconds"]["round"] for entry in read_lines(run / "timings.jsonl")]
                parameters = sum(t.numel() for t in RunDirectory.open(run).checkpoints().server_at(ROUNDS).flatten().values())
                fastest[name] = min(seconds)
                rounds = ", ".join(f"{s:.1f}" for s in seconds)
                print(f"{name}: {parameters:,} numbers, rounds of {rounds} s, {busy[name]:.0f} processor seconds", flush=True)
            wall, used = (times["secure"] / times["plain"] for times in (fastest, busy))
            print(f"ratio {wall:.2f}, of processor seconds {used:.2f}")
        finally:
            federation.close()


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
