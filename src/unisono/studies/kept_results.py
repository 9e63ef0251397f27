"""Results that are kept beside the documentation: a small file of numbers per study and scale."""

from __future__ import annotations

import json
from pathlib import Path

from unisono.runs.files import write_atomically
from unisono.studies.contrasts import cell_name
from unisono.studies.grid import make_cells
from unisono.studies.numbers import Numbers, config_hash, read_numbers
from unisono.studies.study import read_study


def keep(numbers: Numbers, directory: Path) -> Path:
    """Write the numbers of a study, a line per cell, and return the file.

    Args:
        numbers: of one study at one scale.
        directory: where files of numbers lie.
    """
    tree = numbers.as_json()
    lines = [json.dumps(cell, separators=(",", ":"), ensure_ascii=False) for cell in tree.pop("cells")]
    head = json.dumps(tree, ensure_ascii=False)[1:-1]
    path = directory / f"{numbers.study}-{numbers.scale}.json"
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(path, ("{" + head + ', "cells": [\n' + ",\n".join(lines) + "\n]}\n").encode())
    return path


def read_kept(directory: Path) -> list[Numbers]:
    """Return all numbers that are kept, in the order of their files."""
    return [read_numbers(path) for path in sorted(directory.glob("*.json"))]


def other_settings(numbers: Numbers) -> list[str]:
    """Return a sentence for each cell whose options are not those of the study as it is now.

    Args:
        numbers: of a study that comes with the package.
    """
    study = read_study(numbers.study, numbers.scale)
    wanted = {(cell.variant, cell.setting): cell for cell in make_cells(study, Path("runs"), seeds=study.config.seeds[:1])}
    found = []
    for place, cell in numbers.cells.items():
        name = f"{numbers.study} ({numbers.scale}): {cell_name(*place)}"
        if place not in wanted:
            found.append(f"{name} is no cell of the study any more.")
        elif config_hash(wanted[place]) != cell.config:
            found.append(f"{name} was run with other options than the study has now: run it again.")
    return found
