"""Claims and numbers of studies, made by hand for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.core.config import make_section, merge
from unisono.studies.claims import ClaimConfig, check_claim
from unisono.studies.numbers import CellNumbers, Numbers

Values = Sequence[float | None]
FLOORS = {"raw pixels": {"linear": 0.3, "knn": 0.3}, "untrained weights": {"linear": 0.2, "knn": 0.2}}
BASE: dict[str, Any] = {
    "id": "a-over-b",
    "source": "Table 1",
    "text": "A is ahead of B.",
    "study": "s",
    "metric": "linear",
    "contrast": {"plus": {"variant": "A"}, "minus": {"variant": "B"}},
    "expected": "greater",
    "paper_effect": {"value": 5.0, "source": "55 - 50"},
    "smallest_interesting": 1.0,
    "floors": True,
    "scale": "small",
    "priority": "minor",
}


def make_claim(over: Mapping[str, Any] | None = None, *, contrast: Mapping[str, Any] | None = None) -> ClaimConfig:
    """Return a checked claim that A is ahead of B, with some fields replaced."""
    tree = merge(BASE, over or {})
    if contrast is not None:
        tree["contrast"] = contrast
    claim = make_section(ClaimConfig, tree, "claim.0")
    check_claim(claim)
    return claim


def make_cell(variant: str, values: Values | Mapping[str, Values], setting: str = "all", **more: Any) -> CellNumbers:
    """Return a cell with a value per seed, of the linear probe if no metric is named, above all floors.

    Floors are the same for all seeds.
    """
    by_metric = dict(values) if isinstance(values, Mapping) else {"linear": values}
    number = max(map(len, by_metric.values()))
    floors = {
        name: {metric: [value] * number for metric, value in scores.items()}
        for name, scores in more.pop("floors", FLOORS).items()
    }
    return CellNumbers(variant, setting, list(range(number)), values=by_metric, floors=floors, **more)


def make_numbers(*cells: CellNumbers, study: str = "s", scale: str = "small") -> Numbers:
    """Return the numbers of a study."""
    return Numbers(study, scale, {(cell.variant, cell.setting): cell for cell in cells})


def of(*cells: CellNumbers) -> dict[str, Numbers]:
    """Return the numbers of the study s by name."""
    return {"s": make_numbers(*cells)}
