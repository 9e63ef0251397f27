"""The cells of a study: one config and one run directory for every variant, setting and seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.config import Config, read_recipe, resolve
from unisono.core.config import closest, merge, parse_overrides
from unisono.core.errors import UserError
from unisono.studies.study import UNTRAINED, CellConfig, PartConfig, SettingConfig, Study, VariantConfig, slug

NO_PAGE = "report.enabled=false"
"""A study draws its own page; one for every run would take longer than many of the runs."""
WORD = re.compile(r"\{([^{} ]+)\}")
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
        method: takes the place of the recipe's table ``[method]``; None leaves it.
        assignments: what is set on top.
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
    needs: tuple[Path, ...] = ()
    untrained: bool = False

    @property
    def title(self) -> str:
        """As it is called on the screen."""
        return ", ".join(filter(None, [self.variant, "" if self.setting == "all" else self.setting, f"seed {self.seed}"]))

    def config(self) -> Config:
        """The resolved config; UserError if its parts do not fit."""
        tree = read_recipe(self.reference)
        if self.method is not None:
            tree = {**tree, "method": {"name": self.method}}
        return resolve(merge(tree, parse_overrides(self.assignments)))


def make_cells(
    study: Study, directory: Path, *, seeds: Sequence[int] | None = None, overrides: Iterable[str] = ()
) -> list[Cell]:
    """All cells, the first seed of every cell before the second of any, so that a part of a study says something about all.

    Args:
        study: what to vary.
        directory: where the study's own directory of runs lies.
        seeds: instead of the study's.
        overrides: assignments for every run; they win.
    """
    found = []
    for seed in study.config.seeds if seeds is None else seeds:
        for setting in study.settings:
            variants = [variant for variant in study.variants if not _skipped(study, variant.name, setting.name)]
            if study.config.untrained and variants and not _skipped(study, UNTRAINED, setting.name):
                found.append(_make(study, variants[0], setting, seed, directory, overrides, UNTRAINED))
            found += [_make(study, variant, setting, seed, directory, overrides, variant.name) for variant in variants]
    return found


def select(cells: Sequence[Cell], study: Study, names: Iterable[str]) -> list[Cell]:
    """The cells of these variants and settings; where no variant (or no setting) is named, of all.

    Args:
        cells: to choose from.
        study: theirs.
        names: of variants and settings, in any case of letters.
    """
    variants: set[str] = set()
    settings: set[str] = set()
    known = {name.lower(): (name, variants) for name in study.row_names}
    known |= {name.lower(): (name, settings) for name in study.setting_names}
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
    """The run directory of a cell."""
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
    reference = next((part.recipe for part in reversed(parts) if part.recipe is not None), study.config.base)
    method = next((part.method for part in reversed(parts) if part.method is not None), None)
    words = dict(study.config.words)
    for part in parts:
        words |= part.words
    reference = _with_words(reference, words)
    path = cell_path(study, directory, name, setting.name, seed)
    assignments = [NO_PAGE, *study.config.set, *(text for part in parts for text in part.set)]
    for exception in study.exceptions:
        if _applies(exception, study, variant.name, setting.name):
            assignments += exception.set
    needs = [cell_path(study, directory, run, setting.name, seed) for text in assignments for run in OTHER_RUN.findall(text)]
    assignments = [_filled(text, study, directory, setting.name, seed) for text in assignments]
    own = [f"run.seed={seed}", f"run.name={_quoted(path.name)}", f"run.directory={_quoted(str(path.parent))}"]
    return Cell(
        name,
        setting.name,
        seed,
        path,
        _located(reference, study.root),
        method,
        (*assignments, *overrides, *own),
        tuple(needs),
        untrained=name == UNTRAINED or not variant.train,
    )


def _skipped(study: Study, variant: str, setting: str) -> bool:
    return any(exception.skip and _applies(exception, study, variant, setting) for exception in study.exceptions)


def _applies(exception: CellConfig, study: Study, variant: str, setting: str) -> bool:
    return (
        exception.scale in (None, study.config.scale)
        and (not exception.variants or variant in exception.variants)
        and (not exception.settings or setting in exception.settings)
    )


def _filled(text: str, study: Study, directory: Path, setting: str, seed: int) -> str:
    """An assignment with the path of another variant's run of the same setting and seed in it."""

    def path_of(match: re.Match[str]) -> str:
        name = match.group(1).strip()
        if name not in study.row_names:
            raise UserError(f"{text!r} names the run of {name!r}, which is no variant.{closest(name, study.row_names)}")
        return str(cell_path(study, directory, name, setting, seed))

    return OTHER_RUN.sub(path_of, text)


def _with_words(reference: str, words: dict[str, str]) -> str:
    """The name of a recipe with its words filled in."""

    def text_of(match: re.Match[str]) -> str:
        if match.group(1) not in words:
            raise UserError(f"The recipe {reference!r} has a word that the study does not explain: {match.group(1)!r}.")
        return words[match.group(1)]

    return WORD.sub(text_of, reference)


def _located(reference: str, root: Path) -> str:
    """A recipe file beside the study's own file, if there is one of this name."""
    beside = root / reference
    return str(beside) if reference.endswith(".toml") and beside.is_file() else reference


def _quoted(text: str) -> str:
    """A TOML string, so that a directory called 1 stays one."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
