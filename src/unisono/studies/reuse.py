"""Reuse of runs: the same program and config give bit-identical results, so a finished run is copied, not made again."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from unisono.config import Config, resolve
from unisono.core.config import Tree
from unisono.core.errors import UserError
from unisono.report.environment import environment
from unisono.runs.directory import RunDirectory
from unisono.runs.files import explained
from unisono.studies.grid import Cell
from unisono.studies.history import axis_of
from unisono.studies.runner import CellStatus, comparable, status_of
from unisono.studies.study import Study

CLOCKS = ("seconds", "delay")
"""Axes that depend on the machine and its load."""
NOT_COPIED = (".lock", "report.html", "trackers.json", "tensorboard")
"""Files that belong to the copied run alone."""
OF_THE_MOMENT = ("started", "memory")
"""Entries of an environment that change no number."""


def is_timed(study: Study) -> bool:
    """Return whether the study measures time, which is not the same twice."""
    return any(axis in CLOCKS for axis in (*study.config.axes, *study.config.metrics, *map(axis_of, study.config.metrics)))


def find_reusable_runs(cells: Iterable[Cell], directory: Path) -> dict[Cell, Path]:
    """Return a finished run of the same program and config for each cell that has not begun, from another study or a lone run.

    A config that names a file has no reusable run, as the file may have changed since; nor has one that asks for a report or a
    tracker of its own. A run that lost a client on the way is never reused.

    Args:
        cells: of one study.
        directory: where studies and runs lie.
    """
    missing = [cell for cell in cells if status_of(cell.path) is CellStatus.missing]
    own = {cell.path.parent.resolve() for cell in missing}
    known: dict[tuple[Any, ...], list[Path]] = defaultdict(list)
    for path in _finished(directory) if missing else ():
        if path.parent.resolve() not in own:
            with suppress(UserError, KeyError, TypeError):  # damaged, and no concern of this study
                known[_cheap_key(RunDirectory(path).config_tree, RunDirectory(path).untrained)].append(path)
    reusable: dict[Cell, Path] = {}
    for cell in missing:
        config = cell.config()
        candidates = known.get(_cheap_key(config.as_tree(), cell.untrained), ())
        if candidates and _can_be_copied(config):
            source = next((path for path in candidates if _is_reusable(path, config)), None)
            reusable |= {} if source is None else {cell: source}
    return reusable


def copy_run(cell: Cell, source: Path) -> None:
    """Copy the run to the cell's directory, whole or not at all.

    Args:
        cell: has no run yet.
        source: a finished run of the same config.
    """
    with explained(cell.path):
        cell.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cell.path.parent, prefix=".copy-") as scratch:
            copy = Path(scratch) / cell.path.name
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
            directory = RunDirectory(copy)
            directory.manifest.record((), forget=NOT_COPIED)
            directory.save_config(cell.config().as_tree())
            if not directory.finished:
                raise UserError(f"{source} is being worked on.")
            directory.write_json("status.json", {**directory.read_json("status.json"), "copied_from": str(source)})
            try:
                copy.rename(cell.path)
            except OSError:
                if status_of(cell.path) is CellStatus.missing:  # otherwise another process that shares the study was faster
                    raise


def _finished(directory: Path) -> Iterator[Path]:
    for pattern in ("*/status.json", "*/*/status.json"):
        yield from (found.parent for found in sorted(directory.glob(pattern)) if RunDirectory(found.parent).finished)


def _cheap_key(tree: Tree, untrained: bool) -> tuple[Any, ...]:
    """Return a key that is equal for equal configs, and made without resolving them."""
    return (untrained, tree["run"]["seed"], tree["method"]["name"], tree["data"]["dataset"])


def _can_be_copied(config: Config) -> bool:
    texts = [value for value in comparable(config.as_tree()).values() if isinstance(value, str)]
    names_a_file = config.data.path or config.model.pretrained or any(sign in text for text in texts for sign in ("/", ":"))
    track = config.track
    return not (names_a_file or config.report.enabled or track.tensorboard or track.mlflow or track.wandb)


def _is_reusable(path: Path, config: Config) -> bool:
    directory = RunDirectory(path)
    try:
        return (
            _lasting(directory.read_json("environment.json")) == _environment(config.engine.device)
            and not directory.logs["failures"].read()
            and comparable(resolve(directory.config_tree).as_tree()) == comparable(config.as_tree())
        )
    except UserError:  # damaged, or of a version that had other options
        return False


@cache
def _environment(device: str) -> dict[str, Any]:
    return _lasting(environment(device))


def _lasting(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in OF_THE_MOMENT}
