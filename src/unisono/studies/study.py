"""Study files: variants x settings x seeds, what is measured, and the numbers of the paper.

A study is a TOML file. ``[study]`` says what is claimed and what every run has in common, ``[[variant]]`` and ``[[setting]]``
say in what runs differ, ``[[override]]`` holds exceptions, ``[paper]`` the paper's own numbers. ``[scale.mini]``,
``[scale.small]``, ``[scale.long]`` and ``[scale.paper]`` replace fields of ``[study]``, so that one file describes an
experiment at up to four scales.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import Field

from unisono.core.config import Section, Tree, closest, make_section, merge, read_toml
from unisono.core.errors import UserError
from unisono.evaluation.config import ProbeName

FORMAT = 1
"""Version of the study format that this program reads."""
UNTRAINED = "untrained weights"
"""The row of encoders before the first round."""
Scale = Literal["mini", "small", "long", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""Scales from the cheapest to the dearest: about a minute a run, at most six minutes, at most an hour, the paper's own."""
Axis = Literal["rounds", "steps", "megabytes", "seconds", "delay", "transmission"]
Paper = Mapping[str, Mapping[str, Mapping[str, float | str]]]
"""The paper's numbers by metric, variant and setting."""
NUMBERS = (
    *get_args(ProbeName), "cluster-accuracy", "nmi", "ari", "cluster-balance", "silhouette", "stability", "kmeans-accuracy",
    "kmeans-nmi", "kmeans-ari", "kmeans-balance", "align", "uniformity", "score", "encoder-score", "consistency",
    "classes-per-client", "classes-of-one-percent", "delta", *get_args(Axis),
)  # fmt: skip
"""Words of metrics: numbers of probes, and what is counted."""
C = TypeVar("C", bound="ChoiceConfig")


class PartConfig(Section):
    """Changes that a variant or a setting makes to a run."""

    recipe: str | None = Field(None, description="the recipe or method to begin with; unset: that of the study")
    method: str | None = Field(None, description="the method to run, with the recipe's numbers for it; unset: its default")
    set: tuple[str, ...] = Field((), description="assignments section.key=value; {run of NAME} is another variant's run")
    skip: bool = Field(False, description="leave it out")


class ChoiceConfig(PartConfig):
    """One of several variants or settings; ``mini``, ``small``, ``long`` and ``paper`` add to it at that scale."""

    name: str = Field(min_length=1, description="as it stands in the table")
    mini: PartConfig = Field(default_factory=PartConfig, description="what is different at mini scale")
    small: PartConfig = Field(default_factory=PartConfig, description="what is different at small scale")
    long: PartConfig = Field(default_factory=PartConfig, description="what is different at long scale")
    paper: PartConfig = Field(default_factory=PartConfig, description="what is different at the paper's scale")


class VariantConfig(ChoiceConfig):
    """A row of the table or a line of the figure: ``[[variant]]``."""

    metrics: dict[str, str] = Field(default_factory=dict, description="what this variant calls a metric of the study")
    quoted: bool = Field(False, description="nothing is run: the row has the paper's own numbers alone")
    train: bool = Field(True, description="false: the encoder before the first round, and how classes lie with the clients")


class SettingConfig(ChoiceConfig):
    """A column of the table or a place on the figure's axis: ``[[setting]]``."""

    value: float | None = Field(None, description="its place on the axis of a figure")
    panel: str = Field("", description="line: settings with the same word share a panel of the figure")


class OverrideConfig(Section):
    """An exception for some variants under some settings: ``[[override]]``."""

    variants: tuple[str, ...] = Field((), description="names; none: all")
    settings: tuple[str, ...] = Field((), description="names; none: all")
    scale: Scale | None = Field(None, description="at this scale only")
    set: tuple[str, ...] = Field((), description="assignments, on top of all others of the file")
    skip: bool = Field(False, description="leave these cells out")


class StudyConfig(Section):
    """Title, claim, recipe, metrics and figure of a study: ``[study]``."""

    title: str = Field(min_length=1, description="what it shows, in a few words")
    claim: str = Field("", description="the claim that it tests, in one sentence")
    source: str = Field("", description="the paper's table or figure")
    scale: Scale = Field(
        "small",
        description="mini: a minute a run; small: the paper's kind of data, six minutes; long: an hour; paper: its own setting",
    )
    cost: str = Field("", description="time and machine")
    recipe: str = Field(min_length=1, description="the recipe or method that every run begins with")
    set: tuple[str, ...] = Field((), description="assignments section.key=value for every run")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="one run of every cell for each")
    metrics: tuple[str, ...] = Field(("linear",), min_length=1, description="what the table shows")
    spread: Literal["standard deviation", "standard error"] = Field(
        "standard deviation", description="what stands behind ± in tables, and the bars of errors in bars and line"
    )
    untrained: bool = Field(False, description="a row of encoders before the first round")
    rows: Literal["variants", "settings"] = Field("variants", description="what the table's rows are")
    plot: Literal["bars", "line", "curves", "scatter", "embeddings"] = Field("bars", description="kind of the figure")
    map_points: Literal["features", "clusters"] = Field(
        "features", description="embeddings: the encoder's features, or the soft assignments of the cluster head"
    )
    map_colours: Literal["classes", "clusters"] = Field("classes", description="embeddings: what colours stand for")
    axis: Axis = Field("rounds", description="curves: what they go over")
    second_axis: Axis | None = Field(None, description="curves: draw them over this too")
    axis_label: str = Field("", description="line: what the settings' values are")
    log_axis: bool = Field(False, description="line: logarithmic axis")
    note: str = Field("", description="what a reader of the table should know")

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the curves."""
        return (self.axis,) if self.second_axis in (None, self.axis) else (self.axis, self.second_axis)


@dataclass(frozen=True)
class Study:
    """A study at one scale, read and checked.

    Args:
        name: of its file.
        directory: the name of its directory of runs.
        config: the table ``[study]``.
        variants: in the order of the file.
        settings: in the order of the file; one without a name where the file has none.
        overrides: the tables ``[[override]]``.
        paper: the paper's numbers.
        root: where recipes that the file names by a relative path are looked for.
    """

    name: str
    directory: str
    config: StudyConfig
    variants: tuple[VariantConfig, ...]
    settings: tuple[SettingConfig, ...]
    overrides: tuple[OverrideConfig, ...]
    paper: Paper
    root: Path

    def paper_number(self, metric: str, variant: str, setting: str) -> float | str | None:
        """Return the paper's number, None where it gives none."""
        return self.paper.get(metric, {}).get(variant, {}).get(setting)

    def has_paper_numbers(self, metric: str) -> bool:
        """Return whether the paper gives any number for a row and a setting of this scale."""
        cells = itertools.product(self.row_names, self.setting_names)
        return any(self.paper_number(metric, variant, setting) is not None for variant, setting in cells)

    def metric_names(self, variant: str) -> dict[str, str]:
        """Return this variant's name for every metric of the study."""
        aliases = {name: own for entry in self.variants if entry.name == variant for name, own in entry.metrics.items()}
        return {metric: aliases.get(metric, metric) for metric in self.config.metrics}

    @property
    def row_names(self) -> list[str]:
        """Variants as the table has them, untrained weights first."""
        return [*([UNTRAINED] if self.config.untrained else []), *(variant.name for variant in self.variants)]

    @property
    def setting_names(self) -> list[str]:
        """Settings as the table has them."""
        return [setting.name for setting in self.settings]


def read_study(reference: str | Path, scale: str | None = None) -> Study:
    """Return a study by the path of its file or by its name, at one of its scales; raise a UserError if it does not fit.

    Args:
        reference: a .toml file, or the name of a study that comes with the package.
        scale: mini, small, long or paper; None takes the smallest that the study has.
    """
    path = _find(str(reference))
    tree = read_toml(path)
    _check_tables(tree, path)
    scales = tree.get("scale", {})
    chosen = _choose(scales, scale, tree.get("study", {}).get("scale"), path)
    config = make_section(StudyConfig, _at_scale(tree.get("study", {}), scales, chosen), "study")
    variants = _named(VariantConfig, tree.get("variant") or [{"name": config.recipe}], "variant", config.scale)
    settings = _named(SettingConfig, tree.get("setting") or [{"name": "all"}], "setting", config.scale)
    found = enumerate(tree.get("override", []))
    overrides = tuple(make_section(OverrideConfig, values, f"override.{number}") for number, values in found)
    directory = f"{path.stem}-{config.scale}" if scales else path.stem
    study = Study(path.stem, directory, config, variants, settings, overrides, tree.get("paper", {}), path.parent)
    _check_names(study, tree)
    _check_metrics(study)
    return study


@cache
def list_studies() -> dict[str, Path]:
    """Return studies that come with the package, by name."""
    root = Path(str(resources.files("unisono"))) / "studies" / "files"
    return {path.stem: path for path in sorted(root.glob("*.toml"))}


def scales_of(path: Path) -> list[str]:
    """Return the scales that a study's file describes, the smallest first."""
    tree = read_toml(path)
    return _in_order(tree.get("scale", {})) or [tree.get("study", {}).get("scale", "small")]


def slug(name: str) -> str:
    """Return a name as a part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "x"


def _find(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    known = list_studies()
    if name in known:
        return known[name]
    raise UserError(
        f"There is no study {name!r}.{closest(name, known)} See 'unisono list studies', or give the path of a .toml file."
    )


def _check_tables(tree: Tree, path: Path) -> None:
    known = {
        "format": int,
        "study": Mapping,
        "scale": Mapping,
        "paper": Mapping,
        "variant": list,
        "setting": list,
        "override": list,
    }
    for name, value in tree.items():
        if name not in known:
            raise UserError(f"{path}: {name} is not a known table.{closest(name, known)} Known: {', '.join(sorted(known))}.")
        if not isinstance(value, known[name]):
            word = {"format": name, "study": "[study]", "scale": "[scale.small]", "paper": "[paper]"}.get(name, f"[[{name}]]")
            raise UserError(f"{path}: {name} must be written as {word}, got {value!r}.")
    if tree.get("format", FORMAT) > FORMAT:
        raise UserError(
            f"{path} has format {tree['format']}, and this unisono reads formats up to {FORMAT}: install a newer one."
        )


def _choose(scales: Mapping[str, Any], wanted: str | None, own: str | None, path: Path) -> str | None:
    """Return the table ``[scale.*]`` that counts; None where the file has none."""
    for name in scales:
        if name not in SCALES:
            raise UserError(f"{path}: scale.{name} is not a known scale.{closest(name, SCALES)} Known: {', '.join(SCALES)}.")
    available = _in_order(scales) or [own or "small"]
    if wanted is not None and wanted not in available:
        raise UserError(f"{path.stem} has no scale {wanted!r}; it has {' and '.join(available)}.")
    return (wanted or available[0]) if scales else None


def _in_order(scales: Iterable[str]) -> list[str]:
    return sorted(scales, key=lambda name: SCALES.index(name) if name in SCALES else len(SCALES))


def _at_scale(study: Mapping[str, Any], scales: Mapping[str, Any], scale: str | None) -> Tree:
    """Return the table ``[study]`` with that of its scale on top; assignments of both count."""
    if scale is None:
        return dict(study)
    over = scales[scale]
    if not isinstance(over, Mapping):
        raise UserError(f"scale.{scale} must be a table, got {over!r}.")
    merged = merge(study, over)
    merged["set"] = [*study.get("set", []), *over.get("set", [])]
    return {**merged, "scale": scale}


def _named(kind: type[C], tables: list[Any], path: str, scale: str) -> tuple[C, ...]:
    found = [make_section(kind, values, f"{path}.{number}") for number, values in enumerate(tables)]
    slugs: dict[str, str] = {slug(UNTRAINED): UNTRAINED} if path == "variant" else {}
    for choice in found:
        if slug(choice.name) in slugs:
            raise UserError(f"{path} {choice.name!r} and {slugs[slug(choice.name)]!r} would share a directory: rename one.")
        slugs[slug(choice.name)] = choice.name
    kept = tuple(choice for choice in found if not (choice.skip or getattr(choice, scale).skip))
    if not kept:
        raise UserError(f"The study has no {path} at scale {scale}.")
    return kept


def _check_names(study: Study, tree: Tree) -> None:
    """Names in overrides and in the paper's numbers are those of variants and settings, those of other scales included."""
    variants = [UNTRAINED, *(str(values["name"]) for values in tree.get("variant", [])), *study.row_names]
    settings = [*(str(values["name"]) for values in tree.get("setting", [])), *study.setting_names]
    for override in study.overrides:
        for name in override.variants:
            _check_known(name, variants, "override.variants", "variant")
        for name in override.settings:
            _check_known(name, settings, "override.settings", "setting")
    for metric, by_variant in study.paper.items():
        if not isinstance(by_variant, Mapping):
            raise UserError(f"paper.{metric} must be a table of variants, got {by_variant!r}.")
        for variant, by_setting in by_variant.items():
            _check_known(variant, variants, f"paper.{metric}", "variant")
            if not isinstance(by_setting, Mapping):
                raise UserError(f"paper.{metric}.{variant} must be a table of settings, got {by_setting!r}.")
            for setting in by_setting:
                _check_known(setting, settings, f"paper.{metric}.{variant}", "setting")


def _check_metrics(study: Study) -> None:
    """Refuse a metric whose name is nearly that of a probe's number; methods log names of their own, which nobody knows yet."""
    for entry in (study.config.metrics, *(variant.metrics.values() for variant in study.variants)):
        for metric in entry:
            for word in set(metric.split()) - set(NUMBERS):
                near = difflib.get_close_matches(word, NUMBERS, n=1, cutoff=0.85)
                if near:
                    raise UserError(f"study.metrics names {metric!r}, which no probe gives. Did you mean {near[0]!r}?")


def _check_known(name: str, known: list[str], where: str, what: str) -> None:
    if name not in known:
        raise UserError(f"{where} names the {what} {name!r}, which the study does not have.{closest(name, known)}")
