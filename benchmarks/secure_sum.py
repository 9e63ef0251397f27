"""A round of ten real clients and 11 million parameters: plain, under masks, and with one client lost after sharing.

All parties run in this process, one after the other, so processor seconds are those of ten clients and the server together.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from tests.deploy.test_client import SIMPLE, Clients, Run

from unisono.core.config import merge
from unisono.deploy import client as deployed
from unisono.federation import client_turn
from unisono.federation.loop import Callback, RoundRecord, ServerState

NUM_CLIENTS = 10
TREE = merge(
    SIMPLE,
    {
        "data": {"image_size": 32},
        "model": {"backbone": "resnet18", "width": 1.0},
        "training": {"batch_size": 16, "local_steps": 1},
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
    trained = 0.0

    def timed(*arguments: Any) -> client_turn.ClientResult:
        nonlocal trained
        start = time.process_time()
        result = client_turn.run_client(*arguments)
        trained += time.process_time() - start
        return result

    with tempfile.TemporaryDirectory() as root, mock.patch.object(deployed, "run_client", timed):
        clients = Clients(Path(root), NUM_CLIENTS)
        clients.lost = {"masked": lost}
        run = Run(clients, merge(TREE, over), secure=bool(over))
        state = run.federation.initial_state()
        watch, start = _Last(), time.process_time()
        run.federation.run(state, [watch], 1)
        seconds = time.process_time() - start
    size = sum(tensor.numel() for tensor in state.server.flatten().values())
    return seconds, trained, watch.record.bytes_up / watch.record.num_answered / 1e6, size


def report() -> None:
    """Prints the ratios, with the same seconds of training in all cases: they are the same work."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    results = {name: measure(*case) for name, case in CASES.items()}
    training = median(trained for _, trained, _, _ in results.values())
    plain = results["plain"][0] - results["plain"][1]
    print(f"A round of {NUM_CLIENTS} clients, {results['plain'][3] / 1e6:.1f} million parameters, one step of 16 samples each:")
    print(f"{training:.1f} s of training, and beside it")
    for name, (seconds, trained, megabytes, _) in results.items():
        rest = seconds - trained
        ratio = (training + rest) / (training + plain)
        print(f"{name:16} {rest:5.2f} s, so the round is {ratio:.2f} times plain; {megabytes:.1f} MB from each client")


if __name__ == "__main__":
    report()
