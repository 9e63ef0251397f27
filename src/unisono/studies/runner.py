"""Run the cells of a study one after another: keep finished ones, continue stopped ones, isolate failures."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from unisono.config import Config, resolve
from unisono.core.config import Tree
from unisono.core.errors import ClientError, UserError
from unisono.experiment import Experiment
from unisono.federation.loop import Callback
from unisono.models.backbones import AUTO
from unisono.running import resume, start
from unisono.runs.directory import RunDirectory
from unisono.studies.grid import Cell

UNCOMPARED = ("format", "recipe", "engine", "report", "track")
"""Tables that change no number of a run."""
ALIKE = ("evaluation.max_train_samples", "evaluation.max_test_samples")
"""Options that all cells have alike; results from before they existed stay valid."""


class CellStatus(StrEnum):
    """Status of a cell."""

    missing = "not run"
    running = "running"
    unfinished = "unfinished"
    finished = "finished"


class StudyCallback:
    """Base class for callbacks of a study. Override only the hooks you need."""

    def on_cell_start(self, cell: Cell, config: Config) -> Sequence[Callback]:
        """Handle the start of a cell; return the callbacks of its run."""
        return ()

    def on_cell_end(self, cell: Cell, seconds: float) -> None:
        """Handle the end of a cell."""

    def on_cell_failure(self, cell: Cell, reason: str) -> None:
        """Handle a cell that has failed; the study goes on without it."""


def status_of(path: Path) -> CellStatus:
    """Return the status of a cell's run."""
    directory = RunDirectory(path)
    if directory.finished:
        return CellStatus.finished
    if not (path / "config.toml").is_file():
        return CellStatus.missing
    return CellStatus.running if directory.in_use else CellStatus.unfinished


def run_cells(cells: Iterable[Cell], callback: StudyCallback | None = None) -> dict[Cell, str]:
    """Run what is not finished yet; return the reasons of those that failed.

    A cell that another process is working on is passed over, and so is one that starts from such a cell's encoder: several
    processes can share a study.

    Args:
        cells: in this order.
        callback: told about every cell.
    """
    callback = callback or StudyCallback()
    failures: dict[Cell, str] = {}
    for cell in cells:
        if status_of(cell.path) in (CellStatus.finished, CellStatus.running) or _waits(cell):
            continue
        begin = time.perf_counter()
        try:
            config = cell.config()
            run_cell(cell, config, callback.on_cell_start(cell, config))
        except (UserError, ClientError) as error:
            if status_of(cell.path) is CellStatus.running:
                continue  # another process was faster by a moment
            failures[cell] = str(error)
        except Exception as error:  # whatever goes wrong in one cell says nothing against the others
            failures[cell] = f"{type(error).__name__}: {error}"
        if cell in failures:
            callback.on_cell_failure(cell, failures[cell])
        else:
            callback.on_cell_end(cell, time.perf_counter() - begin)
    return failures


@contextmanager
def worker_processes(cells: Sequence[Cell], number: int) -> Iterator[None]:
    """Run the same cells in other processes meanwhile; the end of the block waits for them, an exception ends them.

    Args:
        cells: as for ``run_cells``.
        number: of processes, beside this one.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work_on_cells, args=(list(cells), os.getpid())) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
            process.join()


def run_cell(cell: Cell, config: Config, callbacks: Sequence[Callback] = ()) -> None:
    """Run one cell to its end, from its last checkpoint where it has one."""
    rounds = 0 if cell.untrained else None
    if status_of(cell.path) is CellStatus.missing:
        start(Experiment.prepare(config), cell.path, callbacks=callbacks, rounds=rounds)
    else:
        resume(cell.path, callbacks=callbacks, rounds=rounds)


def check_same(cells: Iterable[Cell]) -> None:
    """Refuse cells whose directory holds a run of another config, whose numbers would stand in the wrong table."""
    for cell in cells:
        if status_of(cell.path) is CellStatus.missing:
            continue
        saved, wanted = (
            comparable(config.as_tree()) for config in (resolve(RunDirectory.open(cell.path).config_tree), cell.config())
        )
        if wanted["model.backbone"] == AUTO:
            wanted["model.backbone"] = saved["model.backbone"]  # the choice belongs to the machine that made it
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                raise UserError(
                    f"{cell.path} was run with {name} = {saved.get(name)!r}, and the study now says {wanted.get(name)!r}: "
                    "remove that directory, or keep the studies apart with --name."
                )


class _WithParent(StudyCallback, Callback):
    """Callback that stops a worker process at the next round once the process that started it is gone."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def on_cell_start(self, cell: Cell, config: Config) -> Sequence[Callback]:
        self.on_round_start(0, 0)
        return (self,)

    def on_round_start(self, round: int, num_clients: int) -> None:
        if os.getppid() != self._parent:
            raise KeyboardInterrupt


def _work_on_cells(cells: Sequence[Cell], parent: int) -> None:
    import torch

    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt):
        run_cells(cells, _WithParent(parent))


def _waits(cell: Cell) -> bool:
    """Return whether the cell starts from a run that another process has not finished."""
    return any(status_of(path) is CellStatus.running for path in cell.needs)


def comparable(tree: Tree) -> dict[str, Any]:
    """Return every option by its full name, but for those that change no number."""
    found: dict[str, Any] = {}
    for table, values in tree.items():
        if table in UNCOMPARED or not isinstance(values, Mapping):
            continue
        for key, value in values.items():
            if table != "run" or key == "seed":
                found[f"{table}.{key}"] = value
    return {name: value for name, value in found.items() if name not in ALIKE}
