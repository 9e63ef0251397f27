"""``unisono run``."""

from __future__ import annotations

from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.error_output import stopping
from unisono.cli.tables import make_console


def run(
    reference: options.Recipe,
    method: options.Method = None,
    dataset: options.Dataset = None,
    clients: options.NumClients = None,
    alpha: options.Alpha = None,
    rounds: Annotated[int | None, typer.Option(help="Length of the run (federation.rounds).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0: none, default: one per core (engine.workers).")] = None,
    seed: options.Seed = None,
    name: Annotated[str | None, typer.Option(help="Name of the run directory (run.name).")] = None,
    settings: options.Overrides = None,
    engine: Annotated[str | None, typer.Option(help="Where clients run: embedded or flower (engine.kind).")] = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Run a recipe or a method.

    RECIPE|METHOD is a .toml file, a .py file with a method, or a name that 'unisono list recipes' or 'unisono list methods'
    shows. A recipe has numbers for several methods; 'unisono config' shows which numbers a run would have. A method by name
    gets a cohort, epochs and clusters that fit the data and a budget of about two minutes on two cores.

    Example: unisono run digits-smoke --name demo
    """
    from unisono.cli.progress import Progress, headline
    from unisono.cli.summary import summarise
    from unisono.core.config import parse_overrides
    from unisono.experiment import run_path
    from unisono.fitting import prepare
    from unisono.recipes import Layer, assemble, flag_layers
    from unisono.running import start

    flags = {
        "method": method,
        "dataset": dataset,
        "clients": clients,
        "alpha": alpha,
        "rounds": rounds,
        "workers": workers,
        "seed": seed,
        "name": name,
        "engine": engine,
    }
    layered = assemble(reference, [*flag_layers(flags), Layer("--set", parse_overrides(settings or ()))])
    console = make_console()
    console.quiet = quiet or json
    experiment, notes = prepare(layered)
    config = experiment.config
    path = run_path(config)
    console.print(headline(config))
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)
    with stopping(path), Progress(config, console) as progress:
        finished = start(experiment, path, callbacks=[progress])
    summarise(finished, quiet=quiet, json=json)
