"""The page of a run made anew, after the run or while it goes on."""

from __future__ import annotations

from pathlib import Path

from unisono.backends import report_collector
from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.experiment import Experiment
from unisono.report.files import ReportFiles
from unisono.report.run_page import write_page
from unisono.runs.checkpoint import DamagedError
from unisono.runs.directory import RunDirectory


def make_report(path: str | Path) -> tuple[Path, str]:
    """Writes ``report.html`` of a run and returns its path, and a sentence about what it had to leave out, if anything.

    Args:
        path: the run directory.
    """
    directory = RunDirectory.open(Path(path))
    config = resolve(directory.config_tree)
    problem = ""
    ReportFiles(directory).forget_problems()
    if not is_complete(directory):
        try:
            catch_up(directory, config)
        except UserError as error:
            problem = f"The page has no map of the last state: {error}"
    return write_page(directory, config.report.projection), problem


def is_complete(directory: RunDirectory) -> bool:
    """Whether the run left all that its page needs, up to its newest checkpoint."""
    files = ReportFiles(directory)
    saved = directory.checkpoints().rounds()
    return files.read("about") is not None and (not saved or saved[-1] in files.rounds())


def catch_up(directory: RunDirectory, config: Config) -> None:
    """Gathers what is missing from the data and the checkpoints; a UserError if the data is not there any more."""
    experiment = Experiment.prepare(config)
    observer, checkpoints = report_collector(experiment, directory), directory.checkpoints()
    initial = experiment.initial_server()
    observer.describe(initial)
    observer.snapshot(0, initial)
    for round in checkpoints.rounds():
        if round not in observer.files.rounds():
            try:
                observer.snapshot(round, checkpoints.server_at(round))
            except DamagedError as error:
                raise UserError(f"{error}.") from error
