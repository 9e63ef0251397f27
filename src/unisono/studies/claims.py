"""Claims of the papers: a TOML file per paper in ``papers/``, read and checked.

A claim is a contrast between cells of one study, the direction that the paper states, and the effect that it reports.
``contrasts`` computes the contrast for every seed, ``verdicts`` judges it.

A side of a contrast is a cell, or a list of cells: lists of variants and of settings are crossed. Lists on both sides go
together by place, and a single cell goes with every entry of the other side. Each entry must pass, unless ``over`` says
otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field

from unisono.core.config import Section, make_section, read_toml
from unisono.core.errors import UserError
from unisono.studies.study import SCALES, Scale

FORMAT = 1
"""Version of the format of claims that this program reads."""
Names = str | tuple[str, ...]
Unit = Literal["points", "rounds", "steps", "classes", "share", "R", "percent of minus", "log ratio"]
WHOLE = "all"
"""Name of the only setting of a study without settings."""


class SideConfig(Section):
    """One side of a contrast: a cell, several, or numbers."""

    study: str | None = Field(None, description="unset: that of the claim")
    variant: Names = Field((), description="a name, or several")
    setting: Names = Field(WHOLE, description="a name, or several; unset: a study without settings")
    constants: tuple[float, ...] = Field((), description="numbers in place of cells")

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Variants and settings of the cells, crossed."""
        return list(itertools.product(as_list(self.variant), as_list(self.setting)))


class PairConfig(Section):
    """A difference inside a difference of differences."""

    metric: str | None = Field(None, description="unset: that of the claim")
    plus: SideConfig = Field(description="from which is subtracted")
    minus: SideConfig = Field(description="what is subtracted")


class ContrastConfig(Section):
    """The number that a claim is about, for one seed."""

    kind: Literal["difference", "equivalence", "difference of differences", "trend", "correlation"] = Field(
        "difference", description="plus - minus (difference, equivalence), first - second, a slope, or a correlation"
    )
    plus: SideConfig | None = Field(None, description="difference, equivalence: from which is subtracted")
    minus: SideConfig | None = Field(None, description="difference, equivalence: what is subtracted")
    first: PairConfig | None = Field(None, description="difference of differences: from which is subtracted")
    second: PairConfig | None = Field(None, description="difference of differences: what is subtracted")
    along: SideConfig | None = Field(None, description="trend: cells, in the order in which the metric goes as expected")
    x: str | None = Field(None, description="correlation: the first metric")
    y: str | None = Field(None, description="correlation: the second metric")
    within: tuple[str, ...] = Field((), description="correlation: variants; the mean of their correlations counts")
    side: Literal["both", "not less", "not greater"] = Field("both", description="equivalence: which ends must be inside")
    over: Literal["each", "mean", "rounds", "best setting"] = Field(
        "each",
        description="entries: each must pass, or their mean; rounds: each looked-at round; best setting: the setting, "
        "as a number, with the highest metric",
    )

    @property
    def sides(self) -> list[tuple[str | None, SideConfig]]:
        """All sides, each with its own metric where it has one."""
        pairs = [pair for pair in (self.first, self.second) if pair is not None]
        found = [(pair.metric, side) for pair in pairs for side in (pair.plus, pair.minus)]
        found += [(None, side) for side in (self.plus, self.minus, self.along) if side is not None]
        return found


class EffectConfig(Section):
    """The effect that the paper reports."""

    value: float | None = Field(None, description="plus - minus in the claim's unit; unset: a picture only")
    source: str = Field(description="the numbers of the paper that it comes from")


class AtScaleConfig(Section):
    """Differences of a claim at one scale."""

    metric: Names | None = Field(None, description="unset: as at other scales")
    contrast: ContrastConfig | None = Field(None, description="unset: as at other scales")


class ClaimConfig(Section):
    """One claim: ``[[claim]]``."""

    id: str = Field(min_length=1, description="its name")
    source: str = Field(min_length=1, description="table, figure or section of the paper")
    text: str = Field(min_length=1, description="the claim in one sentence")
    study: str = Field(min_length=1, description="the study that tests it")
    lacks: str = Field("", description="what the study would need to test it; the claim is not run until then")
    metric: Names = Field(description="what is measured; several: each of them")
    contrast: ContrastConfig = Field(description="what is compared")
    at: dict[str, AtScaleConfig] = Field(default_factory=dict, description="metric or contrast at one scale, by its name")
    expected: Literal["greater", "less", "equal"] = Field(description="how plus is to minus in the paper")
    margin: float | None = Field(None, gt=0, description="equal: the largest difference that counts as none")
    paper_effect: EffectConfig = Field(description="the effect that the paper reports")
    smallest_interesting: float = Field(gt=0, description="smaller effects are of no interest, in the claim's unit")
    unit: Unit = Field("points", description="of the effect")
    floors: bool = Field(description="whether encoders must be above raw pixels and untrained weights")
    floors_on: Literal["all", "plus", "last"] = Field("all", description="cells that must be above: all, plus, the last")
    scale: Scale = Field(description="that at which it is to be judged")
    priority: Literal["headline", "main", "minor"] = Field(description="headline and main claims are corrected together")
    earlier: str = Field("", description="the verdict of the first page of claims, whose encoders knew less than raw pixels")
    note: str = Field("", description="what a reader of the verdict should know")

    def metrics_at(self, scale: str) -> tuple[str, ...]:
        """Return what is measured at a scale."""
        own = self.at.get(scale)
        return as_list(self.metric if own is None or own.metric is None else own.metric)

    def contrast_at(self, scale: str) -> ContrastConfig:
        """Return what is compared at a scale."""
        own = self.at.get(scale)
        return self.contrast if own is None or own.contrast is None else own.contrast


class PaperConfig(Section):
    """A paper: ``[paper]``."""

    title: str = Field(min_length=1, description="the name of its method")
    reference: str = Field(min_length=1, description="authors and title")


@dataclass(frozen=True)
class Paper:
    """A paper and its claims.

    Args:
        name: of its file.
        config: the table ``[paper]``.
        claims: in the order of the file.
    """

    name: str
    config: PaperConfig
    claims: tuple[ClaimConfig, ...]


@cache
def read_papers() -> tuple[Paper, ...]:
    """Return all papers whose claims come with the package."""
    root = Path(str(resources.files("unisono"))) / "studies" / "papers"
    return tuple(read_paper(path) for path in sorted(root.glob("*.toml"), key=_rank))


def read_paper(path: Path) -> Paper:
    """Return the claims of a file; raise a UserError if one does not make sense.

    Args:
        path: a .toml file.
    """
    tree = read_toml(path)
    if tree.get("format", FORMAT) != FORMAT:
        raise UserError(f"{path} has format {tree['format']}, and this unisono reads format {FORMAT}.")
    found = tree.get("claim", [])
    claims = tuple(make_section(ClaimConfig, {**values}, f"claim.{place}") for place, values in enumerate(found))
    for claim in claims:
        check_claim(claim)
    ids = [claim.id for claim in claims]
    for id in ids:
        if ids.count(id) > 1:
            raise UserError(f"{path}: two claims have the id {id!r}.")
    return Paper(path.stem, make_section(PaperConfig, tree.get("paper", {}), "paper"), claims)


def check_claim(claim: ClaimConfig) -> None:
    """Raise a UserError if the parts of a claim do not fit together."""

    def refuse(problem: str) -> None:
        raise UserError(f"claim {claim.id}: {problem}.")

    for scale in claim.at:
        if scale not in SCALES:
            refuse(f"at.{scale} is not a scale; known are {', '.join(SCALES)}")
    if (claim.expected == "equal") != (claim.margin is not None):
        refuse("expected = 'equal' and margin belong together")
    for scale in (claim.scale, *claim.at):
        contrast = claim.contrast_at(scale)
        needed: dict[str, tuple[str, ...]] = {
            "difference": ("plus", "minus"),
            "equivalence": ("plus", "minus"),
            "difference of differences": ("first", "second"),
            "trend": ("along",),
            "correlation": ("x", "y", "within"),
        }
        for name in needed[contrast.kind]:
            if not getattr(contrast, name):
                refuse(f"a contrast of the kind {contrast.kind!r} needs {name}")
        if (contrast.kind == "equivalence") != (claim.expected == "equal"):
            refuse("a contrast of the kind 'equivalence' and expected = 'equal' belong together")
        for plus, minus in _matched(contrast):
            sizes = {len(side.constants or side.cells) for side in (plus, minus)}
            if len(sizes - {1}) > 1:
                refuse(f"its sides have {' and '.join(map(str, sorted(sizes)))} cells, which cannot go together")


def cells_of_claim(claim: ClaimConfig) -> dict[str, list[tuple[str, str]]]:
    """Return variants and settings of the cells that a claim reads at its own scale, by study; of a correlation none."""
    found: dict[str, list[tuple[str, str]]] = {}
    for _, side in claim.contrast_at(claim.scale).sides:
        known = found.setdefault(side.study or claim.study, [])
        known += [cell for cell in side.cells if cell not in known]
    return found


def as_list(names: Names) -> tuple[str, ...]:
    """Return one name as a list of one."""
    return (names,) if isinstance(names, str) else names


def _rank(path: Path) -> tuple[int, str]:
    order = ["orchestra", "uv", "fedmcc", "cfcl", "received"]
    return (order.index(path.stem) if path.stem in order else len(order), path.stem)


def _matched(contrast: ContrastConfig) -> Iterator[tuple[SideConfig, SideConfig]]:
    """Yield sides that must have as many cells as each other, or one."""
    if contrast.over == "best setting":
        return
    if contrast.plus is not None and contrast.minus is not None:
        yield contrast.plus, contrast.minus
    for pair in (contrast.first, contrast.second):
        if pair is not None:
            yield pair.plus, pair.minus
