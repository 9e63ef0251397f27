"""Runs that lie beside a study already: the same config gives the same bits, so they are copied and not made again."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from unisono.config import resolve
from unisono.core.config import Tree, write_toml
from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.runs.files import explained, write_atomically
from unisono.studies.grid import Cell
from unisono.studies.history import parse_effort
from unisono.studies.runner import Status, comparable, status_of
from unisono.studies.study import Study

CLOCKS = ("seconds", "delay")
"""What depends on the machine and on what else it did."""


def is_timed(study: Study) -> bool:
    """Whether the study looks at time that passed, which is not the same twice."""
    efforts = [parse_effort(metric) for metric in study.config.metrics]
    axes = [study.config.axis, *study.config.metrics, *(effort.axis for effort in efforts if effort is not None)]
    return any(axis in CLOCKS for axis in axes)


def find_twins(cells: Iterable[Cell], directory: Path) -> dict[Cell, Path]:
    """For cells that have not begun: a finished run with the same config, in another study of the directory or on its own.

    Args:
        cells: of one study.
        directory: where studies and runs lie.
    """
    missing = [cell for cell in cells if status_of(cell.path) is Status.missing]
    own = {cell.path.parent.resolve() for cell in missing}
    known: dict[tuple[Any, ...], list[Path]] = defaultdict(list)
    for path in _finished(directory) if missing else ():
        if path.parent.resolve() not in own:
            with suppress(UserError, KeyError):  # damaged, and no concern of this study
                known[_cheap_key(RunDirectory(path).config_tree, _is_untrained(path))].append(path)
    twins = {}
    for cell in missing:
        config = cell.config().as_tree()
        for path in known.get(_cheap_key(config, cell.untrained), ()):
            with suppress(UserError):  # of a version that had other options
                if comparable(resolve(RunDirectory(path).config_tree).as_tree()) == comparable(config):
                    twins[cell] = path
                    break
    return twins


def take_over(cell: Cell, twin: Path) -> None:
    """Copies the run to where the cell's belongs, whole or not at all.

    Args:
        cell: has no run yet.
        twin: a finished run of the same config.
    """
    with explained(cell.path):
        cell.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cell.path.parent, prefix=".copy-") as scratch:
            copy = Path(scratch) / cell.path.name
            shutil.copytree(twin, copy, ignore=shutil.ignore_patterns(".lock"))
            write_atomically(copy / "config.toml", write_toml(cell.config().as_tree()).encode())
            try:
                copy.rename(cell.path)
            except OSError:
                if status_of(cell.path) is Status.missing:  # otherwise another process that shares the study was faster
                    raise


def _finished(directory: Path) -> Iterator[Path]:
    for pattern in ("*/status.json", "*/*/status.json"):
        yield from (found.parent for found in sorted(directory.glob(pattern)) if RunDirectory(found.parent).finished)


def _is_untrained(path: Path) -> bool:
    return int(RunDirectory(path).read_json("status.json").get("round", 0)) == 0


def _cheap_key(tree: Tree, untrained: bool) -> tuple[Any, ...]:
    """Equal for equal configs, and made without resolving them."""
    return (untrained, tree["run"]["seed"], tree["method"]["name"], tree["data"]["dataset"])
