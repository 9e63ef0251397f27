"""``unisono report``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console


def report(
    run: options.Run,
    clusters: Annotated[
        int | None, typer.Option(help="Clusters of the gallery, where the method learns none.", show_default=False)
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the path of the report and nothing else.")] = False,
) -> None:
    """Make the report of a run anew.

    RUN is a run directory, of a run that is finished, stopped, failed or going on. The report is RUN/report.html, one file that
    needs no network: curves, a map of embeddings, clients, privacy, timings, and the command that repeats the run.
    RUN/gallery.html shows typical and borderline samples of each cluster.

    Example: unisono report runs/demo
    """
    from unisono.reporting import make_report

    path, problem = make_report(run, clusters)
    if problem:
        print(f"note: {problem}", file=sys.stderr)
    if quiet:
        print(path)
    else:
        make_console().print(f"Report in {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    if open_it:
        typer.launch(path.resolve().as_uri())
