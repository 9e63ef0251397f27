"""Measure the wall time of a round with and without secure aggregation on a real federation, in processes on this machine.

``python scripts/secure_round.py [CLIENTS] [WIDTH]``: ten clients and 11 million parameters where nothing is given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.deploy.running import RunningFederation, read_lines

from unisono.runs.directory import RunDirectory

ROUNDS = 2


def main(num_clients: int = 10, width: float = 1.0) -> None:
    """Print the seconds of every round, and the ratio of the fastest ones."""
    with tempfile.TemporaryDirectory() as folder:
        federation = RunningFederation(Path(folder), num_clients=num_clients)
        try:
            federation.start()
            fastest = {}
            for name, secure in (("plain", "false"), ("secure", "true")):
                settings = (
                    "model.backbone=resnet18", f"model.width={width}", "data.channels=1", "training.batch_size=16",
                    "training.local_epochs=1", "evaluation.probe_every=0", f"federation.rounds={ROUNDS}",
                    "federation.quorum=1.0", "report.enabled=false", f"privacy.secure_aggregation={secure}",
                )  # fmt: skip
                run = federation.run("simclr", name, *settings)
                seconds = [entry["seconds"]["round"] for entry in read_lines(run / "timings.jsonl")]
                parameters = sum(t.numel() for t in RunDirectory.open(run).checkpoints().server_at(ROUNDS).flatten().values())
                fastest[name] = min(seconds)
                print(f"{name}: {parameters:,} numbers, rounds of {', '.join(f'{s:.1f}' for s in seconds)} s", flush=True)
            print(f"ratio {fastest['secure'] / fastest['plain']:.2f}")
        finally:
            federation.close()


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
