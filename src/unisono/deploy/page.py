"""The page of a run on a real federation, as far as the server can draw it: it has no samples, so there is no map."""

from __future__ import annotations

from unisono.config import Config
from unisono.core.method import Method
from unisono.core.payload import Payload
from unisono.report.files import ReportFiles
from unisono.report.gathering import about_method
from unisono.report.run_page import write_page
from unisono.report.status import Status
from unisono.runs.directory import RunDirectory


def describe(directory: RunDirectory, config: Config, method: Method, server: Payload) -> None:
    """Leaves for the page what only the running process knows.

    Args:
        directory: of the run.
        config: the run's.
        method: what is learnt.
        server: its state.
    """
    files = ReportFiles(directory)
    if config.report.enabled:
        with files.guarded():
            files.write("about", about_method(method, server))


def write_finished_page(directory: RunDirectory, config: Config, num_rounds: int) -> None:
    """Writes ``report.html`` of a run that is about to end well; a problem with it is noted and does no harm.

    Args:
        directory: of the run; it may be locked still.
        config: the run's.
        num_rounds: rounds done.
    """
    _write(directory, config, Status("finished", num_rounds, config.federation.rounds))


def write_failed_page(directory: RunDirectory, config: Config, num_rounds: int, reason: str) -> None:
    """Writes ``report.html`` of a run that has failed; a problem with it is noted and does no harm.

    Args:
        directory: of the run; it may be locked still.
        config: the run's.
        num_rounds: rounds of the last checkpoint.
        reason: why it failed.
    """
    whole = config.federation.rounds
    go_on = f"Continue it with '{directory.command_to_continue}'."
    sentence = f"The run failed after {num_rounds} of {whole} rounds: {reason.rstrip('.')}. {go_on}"
    _write(directory, config, Status("failed", num_rounds, whole, sentence))


def _write(directory: RunDirectory, config: Config, status: Status) -> None:
    if config.report.enabled:
        with ReportFiles(directory).guarded():
            write_page(directory, status=status)
