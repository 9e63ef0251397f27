"""Report of a run made again, after the run or while it goes on."""

from __future__ import annotations

from pathlib import Path

from unisono.backends import report_collector
from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.data.fingerprint import fingerprint
from unisono.experiment import Experiment
from unisono.report.files import ReportFiles
from unisono.report.run_report import write_report
from unisono.runs.checkpoint import DamagedError
from unisono.runs.directory import RunDirectory


def make_report(path: str | Path, num_clusters: int | None = None) -> tuple[Path, str]:
    """Write report and gallery of a run; return the report's path, and sentences about what is left out, if anything.

    Args:
        path: the run directory.
        num_clusters: of the gallery, where the method learns none; None takes as many as there are classes, else 10.
    """
    if num_clusters is not None and num_clusters < 1:
        raise UserError(f"The gallery needs at least 1 cluster, got {num_clusters}.")
    directory = RunDirectory.open(Path(path))
    config = resolve(directory.config_tree)
    files = ReportFiles(directory)
    files.clear_errors()
    dropped = files.drop_damaged()
    problems = [f"{sentence} It is left out." for sentence in directory.damage()]
    problems += [f"{', '.join(dropped)} was damaged and is made anew."] if dropped else []
    if dropped or not is_complete(directory):
        try:
            catch_up(directory, config)
        except UserError as error:
            problems.append(f"The report has no map of the last state: {error}")
    written = write_report(directory, config.report.projection, num_clusters=num_clusters)
    files.list_files()
    return written, " ".join(problems)


def is_complete(directory: RunDirectory) -> bool:
    """Return whether the run left all that its report needs, up to its newest checkpoint."""
    files = ReportFiles(directory)
    saved = directory.checkpoints().rounds()
    return files.read("about") is not None and (not saved or saved[-1] in files.rounds())


def catch_up(directory: RunDirectory, config: Config) -> None:
    """Collect what is missing from the data and the checkpoints; raise a UserError if the data is gone or another."""
    experiment = Experiment.prepare(config)
    if (sentence := directory.other_data(fingerprint(experiment.dataset))) is not None:
        raise UserError(f"{sentence}.")
    callback, checkpoints = report_collector(experiment, directory), directory.checkpoints()
    initial = experiment.initial_server()
    callback.describe(initial)
    callback.snapshot(0, initial)
    for round in checkpoints.rounds():
        if round not in callback.files.rounds():
            try:
                callback.snapshot(round, checkpoints.server_at(round))
            except DamagedError as error:
                raise UserError(f"{error}.") from error
