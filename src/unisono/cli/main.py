"""``unisono``: the command line. Heavy packages are imported when a command runs, so that ``--help`` answers at once."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from unisono import __version__
from unisono.cli.bench import bench
from unisono.cli.check import check
from unisono.cli.cluster import cluster
from unisono.cli.compare import compare
from unisono.cli.completion import mend_zsh
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
from unisono.core.work_progress import shown_progress

app = typer.Typer(
    name="unisono",
    cls=Commands,
    suggest_commands=False,  # click suggests one too
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help takes twice as long to appear
)
GROUPS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Begin": (demo, start, list_names),
    "Train": (run, resume, watch, config, tune, study),
    "Look at runs": (show, report, compare, evaluate, verify),
    "Use an encoder": (embed, cluster, neighbors, duplicates, outliers, export),
    "Plan a simulation": (partition, views, graph),
    "Extend and measure": (check, bench),
}
"""Commands by task, in the order of the help."""
WITHOUT_ARGUMENTS = (demo, partition, views, graph, bench)
"""Commands that do something where no argument is given; the others show their help."""
for group, commands in GROUPS.items():
    for command in commands:
        app.command(
            command.__name__.removesuffix("_names"),
            no_args_is_help=command not in WITHOUT_ARGUMENTS,
            rich_help_panel=group,
        )(command)
app.add_typer(deploy, name="deploy", rich_help_panel="Real federation")
mend_zsh()


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

    Begin with 'unisono demo', or with 'unisono start FOLDER' for images of your own.

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
    # Threads that wait sleep, as on a busy machine they would take turns with those they wait for; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    words = sys.argv[1:] if arguments is None else [*arguments]
    with shown_progress(quiet="--quiet" in words):
        app(args=None if arguments is None else words, prog_name="unisono")
