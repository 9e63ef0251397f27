"""Groups of runs that differ by their seed alone, and the options that distinguish the groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.studies.history import History
from unisono.studies.results import Summary
from unisono.studies.runner import comparable

UNCOMPARED = ("run.", "evaluation.")
"""Tables in which runs of one group may differ, besides those that change no number."""
MOST_DIFFERENCES = 4
"""Most options that fit into a name."""
ANY_SEED = "seed-N"
"""Placeholder for a run's own seed inside an option, such as the path of the run that it starts from."""


@dataclass(frozen=True)
class RunSummary:
    """A run as far as a comparison needs it.

    Args:
        path: its directory.
        seed: of the run.
        options: all options by full name, but for those of ``UNCOMPARED``.
        history: what it logged.
        finished: whether it came to its end.
        num_rounds: of the whole run.
    """

    path: Path
    seed: int
    options: Mapping[str, Any]
    history: History
    finished: bool
    num_rounds: int

    @property
    def rounds_done(self) -> int:
        """Number of rounds done."""
        return int(self.history.records[-1]["rounds"]) if self.history.records else 0

    @property
    def standing(self) -> str:
        """``seed 1 at round 5 of 20``."""
        return f"seed {self.seed} at round {self.rounds_done} of {self.num_rounds}"

    @property
    def options_of_any_seed(self) -> Mapping[str, Any]:
        """The options with ``seed-N`` wherever a text in them names the run's own seed."""
        own = re.compile(rf"(?<![0-9A-Za-z])seed-{self.seed}(?!\d)")

        def neutral(value: Any) -> Any:
            if isinstance(value, str):
                return own.sub(ANY_SEED, value)
            return [neutral(part) for part in value] if isinstance(value, list) else value

        return {name: neutral(value) for name, value in self.options.items()}


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone.

    Args:
        label: what tells it from the other groups.
        runs: one for each seed.
    """

    label: str
    runs: Sequence[RunSummary]

    @property
    def unfinished(self) -> list[RunSummary]:
        """Runs whose values are not final."""
        return [run for run in self.runs if not run.finished]

    def values(self, metric: str) -> dict[int, float]:
        """Return the latest value of a metric by seed."""
        found = {run.seed: run.history.value(metric) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def summary(self, metric: str) -> Summary:
        """Return the same over seeds."""
        return Summary(list(self.values(metric).values()), len(self.runs))


def read_runs(paths: Iterable[Path]) -> list[RunSummary]:
    """Return runs of these run directories, or directories of such."""
    return [_read(path) for given in paths for path in _expand(given)]


def put_together(runs: Sequence[RunSummary]) -> list[Group]:
    """Return groups in the order of their first runs, seeds in order.

    Runs of equal options are a group. Those that are alone with theirs are put together where their options differ in nothing
    but their own seed, such as ``model.pretrained = ".../fedu_seed-0"``.
    """
    exact = [_key(run.options) for run in runs]
    found: dict[str, list[RunSummary]] = {}
    shared: list[Mapping[str, Any]] = []
    for run, key in zip(runs, exact, strict=True):
        options = run.options if exact.count(key) > 1 else run.options_of_any_seed
        if _key(options) not in found:
            shared.append(options)
        found.setdefault(_key(options), []).append(run)
    members = [sorted(together, key=lambda run: run.seed) for together in found.values()]
    for together in members:
        for run, following in pairwise(together):
            if run.seed == following.seed:
                raise UserError(
                    f"Two of the runs have the same settings and the same seed, {run.seed}: "
                    f"leave one of them out, such as {run.path}."
                )
    return [Group(label, together) for label, together in zip(_labels(members, shared), members, strict=True)]


def _expand(path: Path) -> list[Path]:
    """Return a run directory itself, or the run directories inside."""
    if (path / "config.toml").is_file():
        return [path]
    inside = sorted(child.parent for child in path.glob("*/config.toml"))
    return inside or [RunDirectory.open(path).path]


def _read(path: Path) -> RunSummary:
    directory = RunDirectory.open(path)
    tree = directory.config_tree
    history = History(path)
    options = {name: value for name, value in comparable(tree).items() if not name.startswith(UNCOMPARED)}
    if history.records and history.records[-1]["round"] < 0:
        options["method.name"] = "untrained"
    num_rounds = int(tree["federation"]["rounds"])
    return RunSummary(path, int(tree["run"]["seed"]), options, history, directory.finished, num_rounds)


def _key(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


def _labels(groups: Sequence[Sequence[RunSummary]], shared: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what tells each group from the others: its method, and the options in which groups of that method differ.

    Falls back to the name of its runs where that would be too long, and to names for all where two would be called the same.

    Args:
        groups: their runs.
        shared: the options that runs of a group have in common, a mapping per group.
    """
    names = [_name_without_seed(runs) for runs in groups]
    labels = [_differences(options, shared) or name for options, name in zip(shared, names, strict=True)]
    paths = [runs[0].path for runs in groups]
    located = [str(path.parent / name) for path, name in zip(paths, names, strict=True)]
    choices = (labels, names, located, [path.resolve().name for path in paths], list(map(str, paths)))
    return next(words for words in choices if len(set(words)) == len(groups))


def _differences(options: Mapping[str, Any], shared: Sequence[Mapping[str, Any]]) -> str:
    """Return the method and the options in which groups of that method differ; empty where they are too many."""
    alike = [other for other in shared if other.get("method.name") == options.get("method.name")]
    names = sorted({name for other in alike for name in other})
    differing = [name for name in names if any(other.get(name) != options.get(name) for other in alike)]
    if len(differing) > MOST_DIFFERENCES:
        return ""
    words = [f"{name.partition('.')[2]} {_word(options.get(name))}" for name in differing]
    return ", ".join([str(options.get("method.name", "")), *words])


def _name_without_seed(runs: Sequence[RunSummary]) -> str:
    """Return the name of the first run without its seed, or the common beginning of all names if it does not hold the seed."""
    names = [run.path.resolve().name for run in runs]
    shortened = re.sub(rf"[-_. ]?seed[-_ ]?{runs[0].seed}(?!\d)", "", names[0])
    if len(names) > 1 and shortened == names[0]:
        alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
        shortened = "".join(letters[0] for letters in alike).rstrip("-_. 0123456789")
    return shortened or names[0]


def _word(value: Any) -> str:
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
