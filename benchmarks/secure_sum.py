"""A round of ten real clients and 11 million parameters: plain, under masks, and with one client lost after sharing.

All parties run in this process, one after the other, so processor seconds are those of ten clients and the server together.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tests.deploy.test_client import SIMPLE, Clients, Run

from unisono.core.config import merge
from unisono.federation.loop import Callback, RoundRecord, ServerState

NUM_CLIENTS = 10
TREE = merge(
    SIMPLE,
    {
        "data": {"image_size": 32},
        "model": {"backbone": "resnet18", "width": 1.0},
        "training": {"batch_size": 16, "local_steps": 2},
        "federation": {"rounds": 1, "quorum": 0.5},
    },
)
SECURE = {"privacy": {"secure_aggregation": True}}
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "plain": ({}, []),
    "secure sum": (SECURE, []),
    "one client lost": (SECURE, [3]),
    "16-bit words": ({**SECURE, "compression": {"bits": 8}}, []),
}


class _Last(Callback):
    """The record of the last round."""

    record: RoundRecord

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.record = record


def measure(over: dict[str, Any], lost: list[int]) -> tuple[float, float, float, int]:
    """Processor seconds of a round, those of them that clients trained for, MB from each client, number of parameters."""
    with tempfile.TemporaryDirectory() as root:
        clients = Clients(Path(root), NUM_CLIENTS)
        clients.lost = {"masked": lost}
        run = Run(clients, merge(TREE, over), secure=bool(over))
        state = run.federation.initial_state()
        watch, start = _Last(), time.process_time()
        run.federation.run(state, [watch], 1)
        seconds = time.process_time() - start
    trained = sum(stats.seconds for _, stats in watch.record.clients) * NUM_CLIENTS / watch.record.num_answered
    size = sum(tensor.numel() for tensor in state.server.flatten().values())
    return seconds, trained, watch.record.bytes_up / watch.record.num_answered / 1e6, size


def report() -> None:
    """Prints the ratios."""
    torch.set_num_threads(1)
    results = {name: measure(*case) for name, case in CASES.items()}
    plain, _, _, size = results["plain"]
    print(f"A round of {NUM_CLIENTS} clients, {size / 1e6:.1f} million parameters, 2 steps of 16 samples each")
    for name, (seconds, training, megabytes, _) in results.items():
        rest = f"without training {seconds - training:5.1f} s"
        print(f"{name:16} {seconds:6.1f} s, {seconds / plain:.2f} times plain; {rest}; {megabytes:.1f} MB from each client")


if __name__ == "__main__":
    report()
