"""The number that a claim is about, for every seed, from the numbers of its study."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unisono.studies.claims import WHOLE, ClaimConfig, ContrastConfig, PairConfig, SideConfig, Unit
from unisono.studies.history import in_percent
from unisono.studies.numbers import CellNumbers, Numbers

T = TypeVar("T")
Sample = Mapping[int, float]
"""A value for each seed."""


class MissingError(Exception):
    """A cell that a claim needs and that was not run; the text says which, and is empty where it is the whole study."""


@dataclass(frozen=True)
class Entry:
    """One contrast of a claim; a claim about several rivals has one for each.

    Args:
        label: what tells it from the other entries of the claim.
        sample: its value for each seed.
    """

    label: str
    sample: Sample


@dataclass(frozen=True)
class UsedCell:
    """A cell that a claim reads.

    Args:
        cell: its numbers.
        study: whose it is.
        metric: what is read.
        role: plus, minus, along or within.
    """

    cell: CellNumbers
    study: Numbers
    metric: str
    role: str


def contrast_entries(claim: ClaimConfig, scale: str, studies: Mapping[str, Numbers]) -> list[Entry]:
    """Return the contrasts of a claim; raise MissingError where a cell was not run.

    Args:
        claim: any kind but a correlation.
        scale: of the numbers.
        studies: numbers of that scale, by study.
    """
    contrast, metrics = claim.contrast_at(scale), claim.metrics_at(scale)
    find = _Finder(claim, studies)
    found: list[Entry] = []
    for metric in metrics:
        if contrast.kind == "trend" and contrast.along is not None:
            found.append(_trend(contrast, contrast.along, metric, find))
        elif contrast.first is not None and contrast.second is not None:
            first, second = (list(_differences(pair, metric, claim.unit, find)) for pair in (contrast.first, contrast.second))
            found += [
                Entry(one.label if len(first) > 1 else other.label, _combine(_minus, one.sample, other.sample))
                for one, other in _matched(first, second)
            ]
        elif contrast.plus is not None and contrast.minus is not None:
            pair = PairConfig(plus=contrast.plus, minus=contrast.minus)
            if contrast.over == "best setting":
                samples = [_best_setting(side, metric, find) for side in (contrast.plus, contrast.minus)]
                found.append(Entry("", _combine(_minus, *samples)))
            elif contrast.over == "rounds":
                found += _rounds(pair, metric, claim.unit, find)
            else:
                found += _differences(pair, metric, claim.unit, find)
    if contrast.over == "mean":
        return [Entry("", _combine(lambda *values: statistics.fmean(values), *(entry.sample for entry in found)))]
    return found


def used_cells(claim: ClaimConfig, scale: str, studies: Mapping[str, Numbers]) -> list[UsedCell]:
    """Return all cells that a claim reads, those of a trend in its order; raise MissingError where one was not run."""
    contrast, metrics = claim.contrast_at(scale), claim.metrics_at(scale)
    find = _Finder(claim, studies)
    found = []
    roles: list[tuple[SideConfig | None, str, str | None]] = [
        (contrast.plus, "plus", None),
        (contrast.minus, "minus", None),
        (contrast.along, "along", None),
    ]
    for pair in (contrast.first, contrast.second):
        roles += [(pair.plus, "plus", pair.metric), (pair.minus, "minus", pair.metric)] if pair is not None else []
    for side, role, own in roles:
        if side is not None and not side.constants:
            numbers = find.study(side)
            for metric in (own,) if own else metrics:
                found += [UsedCell(find.cell(side, *names), numbers, metric, role) for names in side.cells]
    for variant in contrast.within:
        numbers = find.study(SideConfig())
        cells = [cell for cell in numbers.cells.values() if cell.variant == variant]
        if not cells:
            raise MissingError(f"{numbers.study} has no results of {variant}")
        found += [UsedCell(cell, numbers, str(contrast.y), "within") for cell in cells]
    return found


def correlation_pairs(contrast: ContrastConfig, cells: Sequence[UsedCell]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return x and y of every run, by variant and setting.

    Args:
        contrast: a correlation.
        cells: those that it reads.
    """
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for used in cells:
        x, y = (used.cell.by_seed(str(metric)) for metric in (contrast.x, contrast.y))
        pairs = [(x[seed], y[seed]) for seed in sorted(x.keys() & y.keys())]
        if pairs:
            found.setdefault(used.cell.variant, {})[used.cell.setting] = pairs
    return found


class _Finder:
    """Access to the cells of a claim.

    Args:
        claim: whose study counts where a side names none.
        studies: numbers by study.
    """

    def __init__(self, claim: ClaimConfig, studies: Mapping[str, Numbers]) -> None:
        self._claim = claim
        self._studies = studies

    def study(self, side: SideConfig) -> Numbers:
        name = side.study or self._claim.study
        if name not in self._studies:
            raise MissingError("" if name == self._claim.study else f"no results of {name}")
        return self._studies[name]

    def cell(self, side: SideConfig, variant: str, setting: str) -> CellNumbers:
        numbers = self.study(side)
        if (variant, setting) not in numbers.cells:
            raise MissingError(f"{numbers.study} has no results of {cell_name(variant, setting)}")
        return numbers.cells[variant, setting]

    def sample(self, side: SideConfig, variant: str, setting: str, metric: str, round: str | None = None) -> Sample:
        values = self.cell(side, variant, setting).by_seed(metric, round)
        if not values:
            raise MissingError(f"{self.study(side).study} has no {metric} of {cell_name(variant, setting)}")
        return values


def cell_name(variant: str, setting: str) -> str:
    """Return a cell as people read it."""
    return variant if setting == WHOLE else f"{variant}, {setting}"


def _differences(pair: PairConfig, metric: str, unit: Unit, find: _Finder) -> Iterator[Entry]:
    name = pair.metric or metric
    plus, minus = (_samples(side, name, find) for side in (pair.plus, pair.minus))
    for one, other in _matched(plus, minus):
        label = f"{one.label} - {other.label}"
        yield Entry(label, _combine(_measure(name, unit), one.sample, other.sample))


def _samples(side: SideConfig, metric: str, find: _Finder) -> list[Entry]:
    """Return the cells of a side; a constant has no seeds, and goes with those of the other side."""
    if side.constants:
        return [Entry(f"{value:g}", _Constant(value)) for value in side.constants]
    return [Entry(cell_name(*names), find.sample(side, *names, metric)) for names in side.cells]


def _rounds(pair: PairConfig, metric: str, unit: Unit, find: _Finder) -> list[Entry]:
    found = []
    for plus, minus in _matched(pair.plus.cells, pair.minus.cells):
        looks = [find.cell(side, *names).looks.get(metric, {}) for side, names in ((pair.plus, plus), (pair.minus, minus))]
        common = sorted(looks[0].keys() & looks[1].keys(), key=int)
        if not common:
            raise MissingError(f"{find.study(pair.plus).study} has no round that was looked at on both sides")
        for round in common:
            one, other = (find.sample(side, *names, metric, round) for side, names in ((pair.plus, plus), (pair.minus, minus)))
            found.append(Entry(f"round {round}", _combine(_measure(metric, unit), one, other)))
    return found


def _best_setting(side: SideConfig, metric: str, find: _Finder) -> Sample:
    """Return for each seed the setting, as a number, with the highest metric."""
    samples = {float(setting): find.sample(side, variant, setting, metric) for variant, setting in side.cells}
    seeds = set.intersection(*(set(sample) for sample in samples.values()))
    return {seed: max(samples, key=lambda place: samples[place][seed]) for seed in sorted(seeds)}


def _trend(contrast: ContrastConfig, along: SideConfig, metric: str, find: _Finder) -> Entry:
    """Return the least-squares slope over the rank of cells or looked-at rounds, times their number less one."""
    if contrast.over == "rounds":
        ((variant, setting),) = along.cells
        looks = find.cell(along, variant, setting).looks.get(metric, {})
        samples = [find.sample(along, variant, setting, metric, round) for round in sorted(looks, key=int)]
    else:
        samples = [find.sample(along, *names, metric) for names in along.cells]
    if len(samples) < 2:
        raise MissingError(f"{find.study(along).study} has fewer than two values of {metric} along the trend")
    factor = 100.0 if in_percent(metric) else 1.0
    return Entry("", _combine(lambda *values: factor * rise(values), *samples))


def rise(values: Sequence[float]) -> float:
    """Return how much the least-squares line through values rises from the first to the last."""
    places = range(len(values))
    return statistics.linear_regression(places, values).slope * (len(values) - 1)


def _measure(metric: str, unit: Unit) -> Callable[..., float]:
    if unit == "percent of minus":
        return lambda plus, minus: 100 * (plus - minus) / minus
    if unit == "log ratio":
        return lambda plus, minus: math.log(plus / minus)
    factor = 100.0 if in_percent(metric) else 1.0
    return lambda plus, minus: factor * (plus - minus)


def _minus(plus: float, minus: float) -> float:
    return plus - minus


class _Constant(dict[int, float]):
    """A number that is the same for all seeds.

    Args:
        value: the number.
    """

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value


def _combine(function: Callable[..., float], *samples: Sample) -> Sample:
    """Return a function of several samples, for the seeds that all of them have."""
    seeds = set.intersection(*(set(sample) for sample in samples if not isinstance(sample, _Constant)))
    return {
        seed: function(*(sample.value if isinstance(sample, _Constant) else sample[seed] for sample in samples))
        for seed in sorted(seeds)
    }


def _matched(first: Sequence[T], second: Sequence[T]) -> list[tuple[T, T]]:
    """Return pairs by place; a single one goes with all of the other side."""
    number = max(len(first), len(second))
    return [(first[place % len(first)], second[place % len(second)]) for place in range(number)]
