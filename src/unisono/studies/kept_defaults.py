"""The defaults that kept results were run with.

The hash of a cell's options leaves out those at their default, so that a new option leaves kept results valid. So a changed
default would go unnoticed. The file ``defaults.toml`` beside the kept results lists the defaults, by method.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from unisono.core.config import read_toml
from unisono.runs.files import write_atomically
from unisono.studies.grid import make_cells
from unisono.studies.numbers import Numbers, defaults
from unisono.studies.study import read_study

FILE = "defaults.toml"
ALL = "all"
"""Name of the table of defaults that all methods share."""
NONE = "none"
"""Stands for an option without a default, as TOML has no null."""


def add_defaults(directory: Path, kept: Sequence[Numbers]) -> None:
    """List the defaults of every method in kept results, besides those that are listed already.

    Args:
        directory: where files of numbers lie.
        kept: all of them.
    """
    listed = _listed(directory)
    found = {method: _writable(method) | listed.get(method, {}) for method in sorted({*listed, *_methods(kept)})}
    first, *others = found.values()
    shared = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    own = {method: {name: value for name, value in options.items() if name not in shared} for method, options in found.items()}
    write_atomically(directory / FILE, tomli_w.dumps({ALL: shared, **own}).encode())


def changed_defaults(directory: Path) -> list[str]:
    """Return a sentence for every option whose default is not the listed one any more."""
    found = []
    for method, options in _listed(directory).items():
        today = _writable(method)
        for name, value in options.items():
            if name in today and today[name] != value:
                found.append(
                    f"The default of {name} was {value!r} for {method} when results were kept, and is {today[name]!r}: set the "
                    f"old value in the recipes of those results, or run them again and change {directory / FILE}."
                )
    return found


def _methods(kept: Sequence[Numbers]) -> set[str]:
    found = set()
    for numbers in kept:
        study = read_study(numbers.study, numbers.scale)
        cells = make_cells(study, Path("runs"), seeds=study.config.seeds[:1])
        found |= {cell.config().method_name for cell in cells if (cell.variant, cell.setting) in numbers.cells}
    return found


def _listed(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / FILE
    if not path.is_file():
        return {}
    tree = read_toml(path)
    shared = tree.pop(ALL)
    return {method: {**shared, **own} for method, own in tree.items()}


def _writable(method: str) -> dict[str, Any]:
    return {name: _plain(value) for name, value in sorted(defaults(method).items())}


def _plain(value: Any) -> Any:
    if value is None:
        return NONE
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
