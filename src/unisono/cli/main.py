"""``unisono``: the command line. Heavy packages are imported when a command runs, so that ``--help`` answers at once."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from unisono import __version__
from unisono.cli.bench import bench
from unisono.cli.check import check
from unisono.cli.cluster import cluster
from unisono.cli.compare import compare
from unisono.cli.config import config
from unisono.cli.demo import demo
from unisono.cli.deploy import app as deploy
from unisono.cli.embed import embed
from unisono.cli.error_output import Commands
from unisono.cli.evaluate import evaluate
from unisono.cli.export import export
from unisono.cli.graph import graph
from unisono.cli.list import list_names
from unisono.cli.partition import partition
from unisono.cli.report import report
from unisono.cli.resume import resume
from unisono.cli.run import run
from unisono.cli.search import duplicates, neighbors, outliers
from unisono.cli.show import show
from unisono.cli.start import start
from unisono.cli.study import study
from unisono.cli.tune import tune
from unisono.cli.verify import verify
from unisono.cli.views import views
from unisono.cli.watch import watch
from unisono.cli.work_progress import shown_progress

app = typer.Typer(
    name="unisono",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help takes twice as long to appear
)
app.command("demo")(demo)
app.command("start", no_args_is_help=True)(start)
app.command("run", no_args_is_help=True)(run)
app.command("config", no_args_is_help=True)(config)
app.command("resume", no_args_is_help=True)(resume)
app.command("show", no_args_is_help=True)(show)
app.command("report", no_args_is_help=True)(report)
app.command("verify", no_args_is_help=True)(verify)
app.command("watch", no_args_is_help=True)(watch)
app.command("evaluate", no_args_is_help=True)(evaluate)
app.command("compare", no_args_is_help=True)(compare)
app.command("study", no_args_is_help=True)(study)
app.command("tune", no_args_is_help=True)(tune)
app.command("embed", no_args_is_help=True)(embed)
app.command("cluster", no_args_is_help=True)(cluster)
app.command("neighbors", no_args_is_help=True)(neighbors)
app.command("duplicates", no_args_is_help=True)(duplicates)
app.command("outliers", no_args_is_help=True)(outliers)
app.command("export", no_args_is_help=True)(export)
app.command("partition")(partition)
app.command("graph")(graph)
app.command("views")(views)
app.command("list", no_args_is_help=True)(list_names)
app.command("check", no_args_is_help=True)(check)
app.command("bench")(bench)
app.add_typer(deploy, name="deploy")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"unisono {__version__}")
        raise typer.Exit()


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn encoders and clusters from unlabelled data that stays with its owners.

    Example: unisono list recipes
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code.

    Args:
        arguments: the words after ``unisono``; those of the process where None.
    """
    if not sys.warnoptions:
        # Libraries warn about their own affairs; worker processes that are not forked read the variable.
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        logging.disable(logging.WARNING)
    words = sys.argv[1:] if arguments is None else [*arguments]
    with shown_progress(quiet="--quiet" in words):
        app(args=None if arguments is None else words, prog_name="unisono")
