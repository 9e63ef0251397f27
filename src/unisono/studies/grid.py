"""The cells of a study: one config and one run directory for every variant, setting and seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.config import Config, resolve
from unisono.core.config import closest, parse_overrides
from unisono.core.errors import UserError
from unisono.recipes import Layer, LayeredConfig, assemble
from unisono.studies.study import UNTRAINED, OverrideConfig, PartConfig, SettingConfig, Study, VariantConfig, slug

NO_REPORT = "report.enabled=false"
"""Override for every cell: a study has its own report; one for every run would take longer than many of the runs."""
ALL_SAMPLES = ("evaluation.max_train_samples=0", "evaluation.max_test_samples=0")
"""Overrides for every cell: papers probe on all samples."""
OTHER_RUN = re.compile(r"\{run of ([^{}]+)\}")


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Args:
        variant: name.
        setting: name.
        seed: of the run.
        path: the run directory.
        reference: the recipe or method that it begins with.
        method: the method to run, None for the recipe's default.
        assignments: what the study sets.
        overrides: assignments of the user; they win.
        needs: runs of other cells that it starts from.
        untrained: whether nothing is trained.
    """

    variant: str
    setting: str
    seed: int
    path: Path
    reference: str
    method: str | None
    assignments: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()
    untrained: bool = False

    @property
    def title(self) -> str:
        """Name of the cell on the screen."""
        return ", ".join(filter(None, [self.variant, "" if self.setting == "all" else self.setting, f"seed {self.seed}"]))

    def layers(self) -> list[Layer]:
        """Return what the study and the user set above the recipe."""
        chosen = {} if self.method is None else {"method": {"name": self.method}}
        own = {"seed": self.seed, "name": self.path.name, "directory": str(self.path.parent)}
        layers = [Layer("study", chosen), Layer("study", parse_overrides(self.assignments))]
        return [*layers, Layer("--set", parse_overrides(self.overrides)), Layer("study", {"run": own})]

    def layered(self) -> LayeredConfig:
        """Return the options of the run, each with its source."""
        return assemble(self.reference, self.layers())

    def config(self) -> Config:
        """Return the resolved config; UserError if its parts do not fit."""
        return resolve(self.layered().tree)


def make_cells(
    study: Study, directory: Path, *, seeds: Sequence[int] | None = None, overrides: Iterable[str] = ()
) -> list[Cell]:
    """Return all cells, the first seed of every cell before the second of any, so that a part of a study covers all cells.

    Args:
        study: what to vary.
        directory: where the study's own directory of runs lies.
        seeds: instead of the study's.
        overrides: assignments for every run; they win.
    """
    found = []
    for seed in study.config.seeds if seeds is None else seeds:
        for setting in study.settings:
            run = [variant for variant in study.variants if not variant.quoted]
            variants = [variant for variant in run if not _skipped(study, variant.name, setting.name)]
            if study.config.untrained and variants and not _skipped(study, UNTRAINED, setting.name):
                found.append(_make(study, variants[0], setting, seed, directory, overrides, UNTRAINED))
            found += [_make(study, variant, setting, seed, directory, overrides, variant.name) for variant in variants]
    return found


def check_cells(cells: Iterable[Cell], scale: str) -> None:
    """Raise a UserError if the parts of a cell do not fit, or if its method says that it would test nothing.

    Args:
        cells: before any of them runs.
        scale: of their study.
    """
    for cell in cells:
        config = cell.config()
        if cell.untrained or config.partition.scheme == "natural":  # nothing is trained, or nobody knows how many clients
            continue
        clients = config.cohort.expected_size(config.partition.num_clients)
        problem = config.method_class.study_problem(config.method, clients, scale)
        if problem is not None:
            raise UserError(f"{cell.title}: {problem}.")


def select(cells: Sequence[Cell], study: Study, names: Iterable[str]) -> list[Cell]:
    """Return the cells of these variants and settings; where no variant (or no setting) is named, of all.

    Args:
        cells: to choose from.
        study: theirs.
        names: of variants and settings, in any case of letters, or as directories of runs have them (``label-skew``).
    """
    variants: set[str] = set()
    settings: set[str] = set()
    kinds = [(name, variants) for name in study.row_names] + [(name, settings) for name in study.setting_names]
    known = {slug(name): (name, kind) for name, kind in kinds} | {name.lower(): (name, kind) for name, kind in kinds}
    for name in names:
        if name.lower() not in known:
            raise UserError(
                f"--only names {name!r}, which is neither a variant nor a setting of the study.{closest(name.lower(), known)} "
                f"Known: {', '.join([*study.row_names, *study.setting_names])}."
            )
        original, kind = known[name.lower()]
        kind.add(original)
    return [cell for cell in cells if (not variants or cell.variant in variants) and (not settings or cell.setting in settings)]


def cell_path(study: Study, directory: Path, variant: str, setting: str, seed: int) -> Path:
    """Return the run directory of a cell."""
    return directory / study.directory / "_".join([slug(variant), slug(setting), f"seed-{seed}"])


def _make(
    study: Study,
    variant: VariantConfig,
    setting: SettingConfig,
    seed: int,
    directory: Path,
    overrides: Iterable[str],
    name: str,
) -> Cell:
    parts: list[PartConfig] = [setting, getattr(setting, study.config.scale), variant, getattr(variant, study.config.scale)]
    reference = next((part.recipe for part in reversed(parts) if part.recipe is not None), study.config.recipe)
    method = next((part.method for part in reversed(parts) if part.method is not None), None)
    path = cell_path(study, directory, name, setting.name, seed)
    assignments = [NO_REPORT, *ALL_SAMPLES, *study.config.set, *(text for part in parts for text in part.set)]
    for override in study.overrides:
        if _applies(override, study, variant.name, setting.name):
            assignments += override.set
    needs = [cell_path(study, directory, run, setting.name, seed) for text in assignments for run in OTHER_RUN.findall(text)]
    assignments = [_filled(text, study, directory, setting.name, seed) for text in assignments]
    return Cell(
        name,
        setting.name,
        seed,
        path,
        _located(reference, study.root),
        method,
        tuple(assignments),
        tuple(overrides),
        tuple(needs),
        untrained=name == UNTRAINED or not variant.train,
    )


def _skipped(study: Study, variant: str, setting: str) -> bool:
    return any(override.skip and _applies(override, study, variant, setting) for override in study.overrides)


def _applies(override: OverrideConfig, study: Study, variant: str, setting: str) -> bool:
    return (
        override.scale in (None, study.config.scale)
        and (not override.variants or variant in override.variants)
        and (not override.settings or setting in override.settings)
    )


def _filled(text: str, study: Study, directory: Path, setting: str, seed: int) -> str:
    """Return an assignment with the path of another variant's run of the same setting and seed in it."""

    def path_of(match: re.Match[str]) -> str:
        name = match.group(1).strip()
        if name not in study.row_names:
            raise UserError(f"{text!r} names the run of {name!r}, which is no variant.{closest(name, study.row_names)}")
        return str(cell_path(study, directory, name, setting, seed))

    return OTHER_RUN.sub(path_of, text)


def _located(reference: str, root: Path) -> str:
    """Return a recipe file beside the study's own file, if there is one of this name."""
    beside = root / reference
    return str(beside) if reference.endswith(".toml") and beside.is_file() else reference
