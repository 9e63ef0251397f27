"""``unisono demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.error_output import stopping
from unisono.cli.tables import decimal, make_console, make_table

METHODS = ("simclr", "orchestra")
"""Methods that are compared; the recipe ``demo`` has their numbers."""


def demo(
    settings: options.Overrides = None,
    directory: Annotated[str, typer.Option(help="Where the run directories go; default runs.", show_default=False)] = "runs",
) -> None:
    """Compare Orchestra, SimCLR and untrained weights.

    Learns without labels on images inside the package; both methods get the same clients, rounds and samples. No download;
    minutes on two cores.

    Example: unisono demo --set federation.rounds=1 --set data.limit=200
    """
    import time

    from unisono.cli.progress import Progress, headline
    from unisono.config import resolve
    from unisono.experiment import Experiment, run_path
    from unisono.recipes import build_tree
    from unisono.running import start

    stamp = time.strftime("%Y%m%d-%H%M%S")
    console = make_console()
    rows: dict[str, dict[str, float]] = {}
    paths = {}
    for method in METHODS:
        own = [f"run.directory={directory}", f"run.name=demo-{stamp}-{method}"]
        config = resolve(build_tree("demo", {"method": method}, [*own, *(settings or ())]))
        console.print(headline(config))
        experiment = Experiment.prepare(config)
        if not rows:
            rows["untrained weights"] = experiment.evaluator()(experiment.initial_server(), 0)
        path = run_path(config)
        with stopping(path), Progress(config, console) as progress:
            finished = start(experiment, path, callbacks=[progress])
        rows[method] = {name.removeprefix("probe."): value for name, value in finished.metrics[-1].items() if "probe." in name}
        paths[method] = path
        console.print()
    names = ["linear", "knn"]
    console.print(make_table(["", *names], [[row, *(decimal(rows[row].get(n)) for n in names)] for row in rows], right=names))
    console.print("\nAccuracy of probes on frozen features; the encoders have seen no label.")
    for method, path in paths.items():
        page = path / "report.html"
        # Where the report is switched off, or could not be drawn, there is the run itself.
        console.print(f"{method}: see {page if page.is_file() else path}", soft_wrap=True)
