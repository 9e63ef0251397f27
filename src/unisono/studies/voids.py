"""Reasons for which runs say nothing about a claim, whatever their differences are."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.evaluation.config import FRACTIONS
from unisono.evaluation.floors import PIXELS, UNTRAINED
from unisono.studies.claims import ClaimConfig, ContrastConfig
from unisono.studies.contrasts import UsedCell, cell_name
from unisono.studies.history import in_percent, logged_name
from unisono.studies.results import number

WITHOUT_PIXELS = tuple(FRACTIONS)
"""Metrics that raw pixels cannot have: there is no network to train."""
ROOM = 2.0
"""Margins by which an encoder must be above its untrained weights, so that a claim of equality has something to lose."""


def void_reason(claim: ClaimConfig, contrast: ContrastConfig, cells: Sequence[UsedCell]) -> str:
    """Return why the runs say nothing about the claim; empty where they do.

    A run that diverged or had fewer clusters than asked for, an encoder that is not above raw pixels and untrained weights, a
    claim of equality about encoders that have hardly learnt, a race in which most runs of the quicker side never arrive.

    Args:
        claim: the claim.
        contrast: its contrast at this scale.
        cells: those that it reads.
    """
    if contrast.kind == "correlation":
        return _below_floors(_best(cells)) if claim.floors else ""
    return (
        _problem(cells)
        or _unreached(claim, cells)
        or (_below_floors(_checked(claim, cells)) if claim.floors else "")
        or (_no_room(claim, _checked(claim, cells)) if claim.floors and claim.margin is not None else "")
    )


def _checked(claim: ClaimConfig, cells: Sequence[UsedCell]) -> list[UsedCell]:
    """Return the cells that must be above the floors; ``last`` is the last of each side."""
    if claim.floors_on == "last":
        return list({used.role: used for used in cells}.values())
    return [used for used in cells if used.cell.variant != UNTRAINED and (claim.floors_on == "all" or used.role == "plus")]


def _best(cells: Sequence[UsedCell]) -> list[UsedCell]:
    """Return the best cell of every variant: of a correlation over good and bad settings no more can be asked."""
    variants = dict.fromkeys(used.cell.variant for used in cells)
    groups = [[used for used in cells if used.cell.variant == variant] for variant in variants]
    return [max(group, key=lambda used: used.cell.mean(used.metric) or 0.0) for group in groups]


def _problem(cells: Sequence[UsedCell]) -> str:
    for used in cells:
        for seed, problem in used.cell.problems.items():
            return f"{_name(used)}: seed {seed} {problem}"
    return ""


def _unreached(claim: ClaimConfig, cells: Sequence[UsedCell]) -> str:
    quicker = "plus" if claim.expected == "less" else "minus"
    for used in cells:
        late = [end for end in used.cell.unreached.get(used.metric, ()) if end is not None]
        if used.role == quicker and 2 * len(late) > len(used.cell.seeds):
            return f"{_name(used)}: {len(late)} of {len(used.cell.seeds)} runs never get to {used.metric.partition(' to ')[2]}"
    return ""


def _below_floors(cells: Sequence[UsedCell]) -> str:
    for used in cells:
        metric = logged_name(used.metric)
        value = used.cell.mean(metric)
        for floor in (UNTRAINED, PIXELS):
            least = _floor(used, floor, metric)
            if value is None or (least is None and not (floor == PIXELS and metric in WITHOUT_PIXELS)):
                return f"{_name(used)}: {floor} were not measured by {metric}"
            if least is not None and value <= least:
                return f"{_name(used)}: {metric} {number(value, metric)} is not above {floor}, {number(least, metric)}"
    return ""


def _no_room(claim: ClaimConfig, cells: Sequence[UsedCell]) -> str:
    for used in cells:
        metric = logged_name(used.metric)
        value, least = used.cell.mean(metric), _floor(used, UNTRAINED, metric)
        room = ROOM * (claim.margin or 0.0) / (100 if in_percent(metric) else 1)
        if value is not None and least is not None and value - least < room:
            gained = f"{number(value, metric)} for {number(least, metric)}"
            return f"{_name(used)}: {metric} {gained} of {UNTRAINED}, too little to lose {claim.margin:g} of it"
    return ""


def _floor(used: UsedCell, floor: str, metric: str) -> float | None:
    """Return a floor as the runs measured it, or the study's own row of untrained weights.

    Runs that go on from another's encoder have raw pixels alone: untrained weights are then those of another row.
    """
    own = used.cell.floor(floor, metric)
    row = used.study.cells.get((floor, used.cell.setting))
    if own is not None or row is not None:
        return own if own is not None or row is None else row.mean(metric)
    others = used.study.cells.values() if floor == UNTRAINED and PIXELS in used.cell.floors else ()
    found = [cell.floor(floor, metric) for cell in others if cell.setting == used.cell.setting]
    return next((value for value in found if value is not None), None)


def _name(used: UsedCell) -> str:
    return cell_name(used.cell.variant, used.cell.setting)
