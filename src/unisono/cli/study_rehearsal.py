"""``unisono study --rehearse``: a row for every cell, and what the whole study takes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import typer

from unisono.cli.study import FAILED, introduce
from unisono.cli.tables import make_console, make_table
from unisono.engines.memory import available_memory
from unisono.studies.grid import Cell
from unisono.studies.rehearsal import CellRehearsal, Rehearser
from unisono.studies.study import Study

MINUTE, HOUR, DAY = 60, 3600, 86_400
NUMBERS = ("batch", "step", "memory", "one run", "seeds")
"""Columns of numbers."""


def rehearse_study(study: Study, cells: Sequence[Cell], everything: Sequence[Cell], jobs: int = 1, *, as_json: bool) -> None:
    """Rehearse cells and print what was found; exit with 1 if one cannot run.

    Args:
        study: theirs.
        cells: those that the user chose.
        everything: all cells of the study, among them those that others start from.
        jobs: runs at a time.
        as_json: print JSON alone.
    """
    console = make_console()
    console.quiet = as_json
    introduce(console, study, list(cells))
    rehearser = Rehearser(scale=study.config.scale)
    num_cells = len({(cell.variant, cell.setting) for cell in cells})
    found: list[CellRehearsal] = []
    for result in rehearser.rehearse_all(cells, everything):
        found.append(result)
        console.print(f"[{len(found)}/{num_cells}] {_name(result)}: {_outcome(result)}", soft_wrap=True)
    total = sum(result.seconds * result.num_seeds for result in found) / jobs
    refused = [result for result in found if result.reason]
    if as_json:
        numbers = {"study": study.name, "scale": study.config.scale, "cells": [result.as_json() for result in found]}
        print(json.dumps({**numbers, "runs": len(cells), "seconds": total}))
    else:
        console.print()
        console.print(
            make_table(
                ["cell", "samples", *NUMBERS],
                [_row(result) for result in found],
                right=NUMBERS,
                whole=["samples", *NUMBERS],
            )
        )
        for sentence in _sentences(found, len(cells), total, jobs):
            console.print(sentence, soft_wrap=True)
    if refused:
        raise typer.Exit(FAILED)


def spoken(seconds: float) -> str:
    """Return a time in the two units in which people think of it, such as ``3 h 20 min``."""
    if seconds < MINUTE:
        return f"{max(1, round(seconds))} s"
    if seconds < HOUR:
        return f"{math.ceil(seconds / MINUTE)} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(round(seconds / MINUTE), 60)
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{round(seconds / HOUR)} h"
    return f"{round(seconds / DAY):,} days"


def _name(result: CellRehearsal) -> str:
    return result.cell.variant + ("" if result.cell.setting == "all" else f", {result.cell.setting}")


def _outcome(result: CellRehearsal) -> str:
    if result.reason:
        return f"does not run: {result.reason}"
    return f"runs, {_gigabytes(result.memory)}, {spoken(result.seconds)} per run"


def _row(result: CellRehearsal) -> list[str]:
    if result.reason:
        return [f"{_name(result)}: does not run", "", *[""] * len(NUMBERS)]
    cut = result.measured_batch < result.batch_size
    return [
        _name(result),
        "noise" if result.synthetic else "real",
        f"{result.measured_batch} of {result.batch_size}" if cut else str(result.batch_size),
        _step(result.step),
        _gigabytes(result.memory),
        spoken(result.seconds),
        str(result.num_seeds),
    ]


def _sentences(found: Sequence[CellRehearsal], num_runs: int, total: float, jobs: int) -> list[str]:
    """Return the sum of all cells, and what a reader should know about them."""
    at_a_time = f", {jobs} runs at a time" if jobs > 1 else ""
    numbers = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in ((len(found), "cell"), (num_runs, "run")))
    sentences = [f"\n{numbers}: about {spoken(total)} on this machine{at_a_time}."]
    if any(result.synthetic for result in found):
        sentences.append("Noise: samples of the same shapes, as the data set is not on this machine or too large for it.")
    if any(result.measured_batch < result.batch_size for result in found):
        sentences.append("A batch such as 32 of 128 was cut for want of memory or time; time and memory are scaled up from it.")
    free = available_memory()
    large = [result for result in found if result.memory > free]
    if large:
        most = _gigabytes(max(result.memory for result in large))
        sentences.append(f"{len(large)} cells need more memory than the {_gigabytes(free)} that are free here, up to {most}.")
    return sentences + [f"Does not run: {_name(result)}: {result.reason}" for result in found if result.reason]


def _step(seconds: float) -> str:
    if seconds == 0:
        return ""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
