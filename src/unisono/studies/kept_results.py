"""Results that are kept beside the documentation: a small file of numbers per study and scale.

No machine has the runs of all earlier ones. So new numbers are added to those that are kept, seed by seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.runs.files import write_atomically
from unisono.studies.contrasts import cell_name
from unisono.studies.grid import make_cells
from unisono.studies.history import axis_of
from unisono.studies.numbers import CellNumbers, Numbers, config_hash, read_numbers
from unisono.studies.reuse import CLOCKS
from unisono.studies.study import read_study

BY_SEED = ("values", "unreached", "floors", "looks", "seconds")
"""Fields of a cell whose lists have an item per seed."""
COMPARED = ("values", "unreached", "looks", "problems")
"""Fields that two runs of one seed and config must agree in."""
Record = dict[tuple[str, ...], Any]
"""Numbers of one run, by field and names."""


@dataclass(frozen=True)
class Kept:
    """New numbers together with those that were kept.

    Args:
        path: the file of the study and scale.
        numbers: all that is kept now.
        notes: a sentence for each cell that was dropped, and for each seed that was run twice with different results.
    """

    path: Path
    numbers: Numbers
    notes: list[str]


def keep(numbers: Numbers, directory: Path, replace: bool = False) -> Kept:
    """Add the numbers of a study to those that are kept of it.

    Args:
        numbers: of one study at one scale, with the options that the study has now.
        directory: where files of numbers lie.
        replace: whether the new numbers count where a seed is kept with others; otherwise the kept ones do.
    """
    path = directory / f"{numbers.study}-{numbers.scale}.json"
    notes: list[str] = []
    if path.is_file():
        numbers, notes = merge(read_numbers(path), numbers, replace)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _as_text(numbers).encode())
    return Kept(path, numbers, notes)


def merge(kept: Numbers, new: Numbers, replace: bool = False) -> tuple[Numbers, list[str]]:
    """Return the cells and seeds of both, and sentences about those that do not go together.

    Args:
        kept: earlier numbers; cells with other options than the study has now are dropped.
        new: of the same study and scale.
        replace: as for ``keep``.
    """
    dropped = stale_cells(kept)
    notes = [f"{sentence} Dropped." for sentence in dropped.values()]
    cells = {}
    for place in _places(new):
        found = [one.cells[place] for one in (kept, new) if place in one.cells and not (one is kept and place in dropped)]
        if len(found) == 2:
            name = f"{new.study} ({new.scale}): {cell_name(*place)}"
            cells[place] = _merge_cell(found[0], found[1], replace, name, notes)
        elif found:
            cells[place] = found[0]
    return Numbers(new.study, new.scale, cells), notes


def read_kept(directory: Path) -> list[Numbers]:
    """Return all numbers that are kept, in the order of their files."""
    return [read_numbers(path) for path in sorted(directory.glob("*.json"))]


def stale_cells(numbers: Numbers) -> dict[tuple[str, str], str]:
    """Return a sentence for each cell whose options are not those of the study as it is now, by variant and setting.

    Args:
        numbers: of a study that comes with the package.
    """
    wanted = _places(numbers)
    found = {}
    for place, cell in numbers.cells.items():
        name = f"{numbers.study} ({numbers.scale}): {cell_name(*place)}"
        if place not in wanted:
            found[place] = f"{name} is no cell of the study any more."
        elif wanted[place] != cell.config:
            found[place] = f"{name} was run with other options than the study has now: run it again."
    return found


def _places(numbers: Numbers) -> dict[tuple[str, str], str]:
    """Return the hash of the options of every cell of the study as it is now, in the study's order."""
    study = read_study(numbers.study, numbers.scale)
    cells = make_cells(study, Path("runs"), seeds=study.config.seeds[:1])
    return {(cell.variant, cell.setting): config_hash(cell) for cell in cells}


def _merge_cell(kept: CellNumbers, new: CellNumbers, replace: bool, name: str, notes: list[str]) -> CellNumbers:
    old, fresh = _by_seed(kept), _by_seed(new)
    for seed in sorted(old.keys() & fresh.keys()):
        apart = [key for key in old[seed].keys() | fresh[seed].keys() if _differs(key, old[seed], fresh[seed])]
        if apart:
            field, *names = min(apart)
            values = " and ".join(str(one.get((field, *names))) for one in (old[seed], fresh[seed]))
            counts = "The new one counts." if replace else "The kept one counts; --replace takes the new one."
            notes.append(f"{name}: seed {seed} was run twice, with {' '.join(names) or field} {values}. {counts}")
    first, second = (fresh, old) if replace else (old, fresh)
    both = {seed: _joined(first.get(seed, {}), second.get(seed, {})) for seed in old.keys() | fresh.keys()}
    return _from_seeds(new, dict(sorted(both.items())))


def _joined(first: Record, second: Record) -> Record:
    """Return the numbers of both; the first counts, also in whether a metric was ever reached."""
    added = {key: value for key, value in second.items() if key[0] != "unreached" or ("values", *key[1:]) not in first}
    return {**added, **first}


def _differs(key: tuple[str, ...], one: Record, other: Record) -> bool:
    """Return whether two runs have another number; what depends on the clock is not the same twice."""
    if key[0] not in COMPARED or (key[0] != "problems" and (key[1] in CLOCKS or axis_of(key[1]) in CLOCKS)):
        return False
    return key in one and key in other and one[key] != other[key]


def _by_seed(cell: CellNumbers) -> dict[int, Record]:
    tree = asdict(cell)
    found: dict[int, Record] = {}
    for place, seed in enumerate(cell.seeds):
        record: Record = {("problems",): cell.problems.get(str(seed), "")}
        for field in BY_SEED:
            record |= {names: values[place] for names, values in _lists(tree[field], (field,)) if place < len(values)}
        found[seed] = record
    return found


def _lists(tree: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    if not isinstance(tree, Mapping):
        yield names, list(tree)
        return
    for name, part in tree.items():
        yield from _lists(part, (*names, name))


def _from_seeds(cell: CellNumbers, records: Mapping[int, Record]) -> CellNumbers:
    """Return a cell with these runs; its names and options are those of the given one."""
    tree: dict[str, Any] = {}
    for key in dict.fromkeys(key for record in records.values() for key in record if key[0] != "problems"):
        part = tree
        for name in key[:-1]:
            part = part.setdefault(name, {})
        part[key[-1]] = [record.get(key, 0.0 if key == ("seconds",) else None) for record in records.values()]
    problems = {str(seed): record["problems",] for seed, record in records.items() if record["problems",]}
    return CellNumbers(cell.variant, cell.setting, list(records), cell.config, problems=problems, **tree)


def _as_text(numbers: Numbers) -> str:
    """Return numbers as JSON, a line per cell."""
    tree = numbers.as_json()
    lines = [json.dumps(cell, separators=(",", ":"), ensure_ascii=False) for cell in tree.pop("cells")]
    head = json.dumps(tree, ensure_ascii=False)[1:-1]
    return "{" + head + ', "cells": [\n' + ",\n".join(lines) + "\n]}\n"
