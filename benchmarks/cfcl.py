"""CF-CL at the paper's scale, where the time goes: a few rounds are measured and the whole run is reckoned from them.

10 devices, 2,500 steps of batch 64, a pull every 10 steps, an aggregation every 50, 500 reserve points, 1,000 candidates, a
linear probe every 250 steps.
"""

from __future__ import annotations

import time
from statistics import median

from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.engines.embedded import EmbeddedEngine
from unisono.experiment import Experiment
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundLoop, RoundRecord, ServerState
from unisono.recipes import build_tree

RECIPE = "cfcl/fashion-mnist"
NUM_INTERVALS = 3
"""Aggregation intervals that are measured; the first warms up."""
LIMIT = 600.0
"""Seconds that the whole run may take on two cores."""


class Records(Callback):
    """Keeps the timings of every round."""

    def __init__(self) -> None:
        self.seconds: list[dict[str, float]] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.seconds.append(dict(record.seconds))


def measure(selection: str) -> dict[str, tuple[float, int]]:
    """By part of the run: seconds each time, and how often the whole run does it."""
    settings = [f"method.selection={selection}", "engine.workers=2", "engine.device=cpu"]
    config = resolve(build_tree(RECIPE, {}, settings))
    experiment = Experiment.prepare(config)
    interval = config.method.aggregation_steps // config.training.local_steps
    rounds, records = config.federation.rounds, Records()
    with EmbeddedEngine(experiment.worker_setup(), config.engine) as engine:
        federation = RoundLoop(experiment.method, engine, ClientStateStore(), config.loop, 0)
        state = federation.run(federation.initial_state(), [records], until=NUM_INTERVALS * interval)
    start = time.perf_counter()
    experiment.evaluator()(state.server, state.round)
    probe = time.perf_counter() - start
    warm = records.seconds[interval:]
    first, later = [warm[at] for at in range(0, len(warm), interval)], [s for at, s in enumerate(warm) if at % interval]
    parts = {"train, 10 steps": (median(seconds["train"] for seconds in warm), rounds)}
    if selection == "importance":
        parts["reserves by k-means"] = (next(seconds["push"] for seconds in records.seconds if "push" in seconds), 1)
    if selection != "none":
        parts["offers, new networks"] = (median(seconds["offer"] for seconds in first), rounds // interval)
        parts["offers, same networks"] = (median(seconds["offer"] for seconds in later), rounds - rounds // interval)
    parts["probe"] = (probe, rounds // config.evaluation.probe_every)
    return parts


def report() -> None:
    """Prints the table."""
    print("CF-CL at the paper's scale, 2 workers; reckoned from a few rounds")
    totals = {}
    for selection in ("importance", "uniform", "none"):
        try:
            parts = measure(selection)
        except UserError as error:
            print(f"skipped: {error}")
            return
        totals[selection] = sum(seconds * times for seconds, times in parts.values())
        print(f"{selection:24} {'seconds':>8} {'times':>6} {'total':>7} {'share':>6}")
        for name, (seconds, times) in parts.items():
            print(f"  {name:22} {seconds:8.3f} {times:6d} {seconds * times:7.1f} {seconds * times / totals[selection]:6.0%}")
        print(f"  {'whole run':22} {'':8} {'':6} {totals[selection]:7.1f} {totals[selection] / totals['importance']:6.2f}")
    print(f"whole run over the limit of {LIMIT:.0f} s: {totals['importance'] / LIMIT:.2f}")


if __name__ == "__main__":
    report()
