"""``unisono bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from unisono.experiment import Experiment

NUM_CLIENTS = 8


def bench(
    method: Annotated[
        str, typer.Option(help="A name from 'unisono list methods'; default simclr.", show_default=False)
    ] = "simclr",
    backbone: Annotated[
        str, typer.Option(help="A name from 'unisono list backbones'; default resnet18.", show_default=False)
    ] = "resnet18",
    width: Annotated[float, typer.Option(help="Width factor of the backbone; default 0.25.", show_default=False)] = 0.25,
    batch_size: Annotated[int, typer.Option(help="Images per step; default 16.", show_default=False)] = 16,
    steps: Annotated[int, typer.Option(help="Steps of each of 8 clients per round; default 10.", show_default=False)] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the fastest counts; default 3.", show_default=False)] = 3,
    max_workers: Annotated[int | None, typer.Option(help="Most worker processes; default one per core.")] = None,
    json: options.Json = False,
) -> None:
    """Measure training speed on this machine.

    The table gives images per second of local training on fashion-mini with 1, 2, ... worker processes.

    Example: unisono bench --width 0.125 --steps 2 --rounds 1
    """
    import json as json_format

    from unisono.config import resolve
    from unisono.core.errors import UserError
    from unisono.engines.devices import num_cores
    from unisono.experiment import Experiment

    for option, value in (("--rounds", rounds), ("--max-workers", max_workers)):
        if value is not None and value < 1:
            raise UserError(f"{option} must be at least 1, got {value}.")
    experiment = Experiment.prepare(
        resolve(
            {
                "method": {"name": method},
                "data": {"limit": NUM_CLIENTS * batch_size},
                "partition": {"scheme": "iid", "num_clients": NUM_CLIENTS},
                "model": {"backbone": backbone, "width": width},
                "training": {"batch_size": batch_size, "local_steps": steps},
            }
        )
    )
    console = make_console()
    console.quiet = json
    console.print(f"{method}, {backbone} x {width:g}, batches of {batch_size}, {NUM_CLIENTS} clients on fashion-mini\n")
    num_images = NUM_CLIENTS * steps * batch_size
    numbers = range(1, (max_workers or num_cores()) + 1)
    speeds = {workers: num_images / _seconds_per_round(experiment, workers, rounds) for workers in numbers}
    if json:
        print(json_format.dumps({"images_per_second": speeds}))
        return
    rows = [[str(workers), f"{speed:,.0f}", f"{speed / speeds[1]:.2f}"] for workers, speed in speeds.items()]
    columns = ["workers", "images/s", "ratio"]
    console.print(make_table(columns, rows, right=columns))


def _seconds_per_round(experiment: Experiment, workers: int, num_rounds: int) -> float:
    """Return the seconds of the fastest round, since other programs only ever slow a round down."""
    import time

    from unisono.engines.embedded import EmbeddedEngine, EngineConfig
    from unisono.federation.client_store import ClientStateStore
    from unisono.federation.loop import RoundLoop

    config = experiment.config
    fastest = float("inf")
    with EmbeddedEngine(experiment.worker_setup(), EngineConfig(workers=workers)) as engine:
        loop = RoundLoop(experiment.method, engine, ClientStateStore(), config.loop, config.run.seed)
        state = loop.run_round(loop.initial_state())
        for _ in range(num_rounds):
            begin = time.perf_counter()
            state = loop.run_round(state)
            fastest = min(fastest, time.perf_counter() - begin)
    return fastest
