"""Runs that lie beside a study already: the same program and config give the same bits, so they are copied, not made again."""

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
from unisono.core.config import Tree, write_toml
from unisono.core.errors import UserError
from unisono.report.environment import environment
from unisono.runs.directory import RunDirectory
from unisono.runs.files import explained, write_atomically
from unisono.studies.grid import Cell
from unisono.studies.history import parse_effort
from unisono.studies.runner import Status, comparable, status_of
from unisono.studies.study import Study

CLOCKS = ("seconds", "delay")
"""What depends on the machine and on what else it did."""
NOT_COPIED = (".lock", "report.html", "trackers.json", "tensorboard")
"""What speaks of the run that was copied."""
OF_THE_MOMENT = ("started", "memory")
"""What in an environment changes no number."""


def is_timed(study: Study) -> bool:
    """Whether the study looks at time that passed, which is not the same twice."""
    efforts = [parse_effort(metric) for metric in study.config.metrics]
    axes = [study.config.axis, *study.config.metrics, *(effort.axis for effort in efforts if effort is not None)]
    return any(axis in CLOCKS for axis in axes)


def find_twins(cells: Iterable[Cell], directory: Path) -> dict[Cell, Path]:
    """For cells that have not begun: a finished run of the same program and config, in another study or on its own.

    A config that names a file has no twin, for the file may have changed since; neither has one that asks for a page or a
    tracker of its own. A run that lost a client on the way is nobody's twin.

    Args:
        cells: of one study.
        directory: where studies and runs lie.
    """
    missing = [cell for cell in cells if status_of(cell.path) is Status.missing]
    own = {cell.path.parent.resolve() for cell in missing}
    known: dict[tuple[Any, ...], list[Path]] = defaultdict(list)
    for path in _finished(directory) if missing else ():
        if path.parent.resolve() not in own:
            with suppress(UserError, KeyError, TypeError):  # damaged, and no concern of this study
                known[_cheap_key(RunDirectory(path).config_tree, RunDirectory(path).untrained)].append(path)
    twins: dict[Cell, Path] = {}
    for cell in missing:
        config = cell.config()
        candidates = known.get(_cheap_key(config.as_tree(), cell.untrained), ())
        if candidates and _can_be_copied(config):
            twin = next((path for path in candidates if _is_twin(path, config)), None)
            twins |= {} if twin is None else {cell: twin}
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
            shutil.copytree(twin, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
            write_atomically(copy / "config.toml", write_toml(cell.config().as_tree()).encode())
            directory = RunDirectory(copy)
            if not directory.finished:
                raise UserError(f"{twin} is being worked on.")
            directory.write_json("status.json", {**directory.read_json("status.json"), "copied_from": str(twin)})
            try:
                copy.rename(cell.path)
            except OSError:
                if status_of(cell.path) is Status.missing:  # otherwise another process that shares the study was faster
                    raise


def _finished(directory: Path) -> Iterator[Path]:
    for pattern in ("*/status.json", "*/*/status.json"):
        yield from (found.parent for found in sorted(directory.glob(pattern)) if RunDirectory(found.parent).finished)


def _cheap_key(tree: Tree, untrained: bool) -> tuple[Any, ...]:
    """Equal for equal configs, and made without resolving them."""
    return (untrained, tree["run"]["seed"], tree["method"]["name"], tree["data"]["dataset"])


def _can_be_copied(config: Config) -> bool:
    texts = [value for value in comparable(config.as_tree()).values() if isinstance(value, str)]
    names_a_file = config.data.path or config.model.pretrained or any(sign in text for text in texts for sign in ("/", ":"))
    track = config.track
    return not (names_a_file or config.report.enabled or track.tensorboard or track.mlflow or track.wandb)


def _is_twin(path: Path, config: Config) -> bool:
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
