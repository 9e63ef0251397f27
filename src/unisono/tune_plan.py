"""The plan of a search: its grid, and as many trials and rounds as a budget of minutes allows.

The budget is counted as ``unisono.fitting`` counts that of a run, in operations of two cores, never by a clock: the same
command gives the same search everywhere. The estimate for this machine is said beside it. Where the budget is short, trials
have fewer rounds; where even ``LEAST_ROUNDS`` of every point are too many, fewer points are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from unisono.config import Config, resolve
from unisono.core.config import Tree, merge, parse_overrides
from unisono.core.errors import UserError
from unisono.data.datasets import load_dataset
from unisono.experiment import Experiment
from unisono.fitting import BUDGET, estimate_seconds, fit, fitting_notes, in_minutes, num_workers, operations_per_round
from unisono.recipes import Layer, LayeredConfig, Reference, assemble

LEARNING_RATES = {"sgd": (0.03, 0.01, 0.003, 0.001), "adam": (0.003, 0.001, 0.0003, 0.0001)}
"""Learning rates by ``training.optimizer``: those of C.4, and a tenth of them for Adam."""
EMA = (0.9, 0.99, 0.996)
"""Momenta of C.4, for methods with a moving average."""
MINUTES = 10.0
MOST_ROUNDS = 20
"""Rounds of a trial in C.4."""
LEAST_ROUNDS = 5
LEAST_TRIALS = 2
MOST_TPE_TRIALS = 20
TRIAL_SECONDS = 6.0
"""Time of a trial besides training: its processes start, and its last state is probed."""
OPERATIONS_PER_SECOND = BUDGET / 120
Value = float | int | str | bool
Grid = Mapping[str, Sequence[Value]]
Sampler = Literal["grid", "tpe"]


@dataclass(frozen=True)
class Plan:
    """A search before it starts.

    Args:
        reference: the recipe or method.
        layered: its options and their sources; those of a method by name fit data and budget.
        config: the same, resolved, with a backbone in place of "auto".
        grid: values by option.
        sampler: every point of the grid, or Optuna's TPE over it.
        rounds: of a trial.
        num_trials: how many.
        has_labels: whether kNN accuracy can be measured beside the score.
        notes: sentences that the user should read before it.
    """

    reference: Reference
    layered: LayeredConfig
    config: Config
    grid: Grid
    sampler: Sampler
    rounds: int
    num_trials: int
    has_labels: bool
    notes: tuple[str, ...]

    def trial_config(self, values: Mapping[str, Value], path: Path) -> Config:
        """Return the config of a trial.

        Args:
            values: by option.
            path: its run directory.
        """
        return _trial_config(self.layered.tree, values, self.rounds, self.has_labels, path)


def make_plan(
    reference: Reference,
    over: Sequence[Layer] = (),
    grid: Grid | None = None,
    *,
    sampler: Sampler = "grid",
    num_trials: int | None = None,
    rounds: int | None = None,
    budget: float | None = None,
) -> Plan:
    """Return the plan of a search; raise a UserError if a trial could not start.

    Args:
        reference: as ``unisono.recipes.load_recipe`` takes it; a method by name gets options that fit.
        over: flags and assignments above the recipe.
        grid: values by option; that of ``default_grid`` where None, without the options that ``over`` sets.
        sampler: every point of the grid, or Optuna's TPE over it.
        num_trials: by default as many as grid (20 for TPE) and budget allow.
        rounds: per trial; by default as many as the budget allows, at most 20 and at most the recipe's number.
        budget: minutes on two cores; 10 where None, and no limit where rounds are given.
    """
    if num_trials is not None and num_trials < 1:
        raise UserError(f"The number of trials must be at least 1, got {num_trials}.")
    if budget is not None and not (budget > 0 and math.isfinite(budget)):
        raise UserError(f"The budget must be a number of minutes above 0, got {budget:g}.")
    layered = assemble(reference, over)
    dataset = load_dataset(resolve(layered.tree).data)
    layered = fit(layered, dataset)
    base = resolve(layered.tree)
    grid = {key: list(values) for key, values in (grid or _open_grid(base, over)).items()}
    has_labels = dataset.labels is not None and dataset.test_labels is not None and len(dataset.test_samples) > 0
    first = {key: values[0] for key, values in grid.items()}
    length = base.federation.rounds if rounds is None else rounds
    for point in itertools.product(*grid.values()):  # a value that is refused is better noticed now
        _trial_config(layered.tree, dict(zip(grid, point, strict=True)), length, has_labels, Path("x"))
    experiment = Experiment.prepare(_trial_config(layered.tree, first, length, has_labels, Path("x")), dataset)
    num_points = math.prod(len(values) for values in grid.values())
    trials = min(num_points, MOST_TPE_TRIALS) if sampler == "tpe" else num_points
    if num_trials is not None:
        trials = num_trials if sampler == "tpe" else min(num_trials, num_points)
    minutes = MINUTES if budget is None and rounds is None else budget
    if minutes is not None:
        fewest = trials if num_trials is not None else LEAST_TRIALS
        trials, length = _within(minutes, operations_per_round(experiment), (fewest, trials), rounds, base.federation.rounds)
    notes = (*layered.notes, *experiment.notes, *fitting_notes(layered), *_estimate(experiment, trials, length, minutes))
    config = replace(base, model=experiment.config.model)
    return Plan(reference, layered, config, grid, sampler, length, trials, has_labels, notes)


def default_grid(config: Config) -> dict[str, Sequence[Value]]:
    """Return the grid of C.4: learning rates, and momenta where the method has a moving average."""
    if not hasattr(config.method_class, "loss"):
        raise UserError(
            f"{config.method_name} has no learning rate, so there is no grid for it: say what to tune with --grid "
            "section.key=value,value."
        )
    grid: dict[str, Sequence[Value]] = {"training.learning_rate": LEARNING_RATES[config.training.optimizer]}
    return grid | ({"method.ema": EMA} if "ema" in type(config.method).model_fields else {})


def parse_grid(assignments: Iterable[str]) -> dict[str, Sequence[Value]]:
    """Return ``["training.learning_rate=0.1,0.01"]`` as a grid."""
    grid: dict[str, Sequence[Value]] = {}
    for assignment in assignments:
        key, equals, texts = assignment.partition("=")
        if not equals or key.count(".") != 1 or not all(text.strip() for text in texts.split(",")):
            raise UserError(f"--grid takes section.key=value,value,..., got {assignment!r}.")
        section, name = key.strip().split(".")
        values = [parse_overrides([f"{key.strip()}={text}"])[section][name] for text in texts.split(",")]
        if not all(isinstance(value, (float, int, str)) for value in values):
            raise UserError(f"--grid takes numbers, words, true and false, got {assignment!r}.")
        grid[key.strip()] = list(dict.fromkeys(values))
    return grid


def as_tree(values: Mapping[str, Value]) -> Tree:
    """Return values by option as tables."""
    tree: Tree = {}
    for key, value in values.items():
        section, name = key.split(".")
        tree = merge(tree, {section: {name: value}})
    return tree


def _open_grid(config: Config, over: Sequence[Layer]) -> dict[str, Sequence[Value]]:
    """Return the default grid without the options that the user has set."""
    given = LayeredConfig(tuple(over))
    grid = {key: values for key, values in default_grid(config).items() if given.source(key.split(".")) is None}
    if not grid:
        raise UserError("--set sets every option of the grid, so there is nothing to choose: leave one out, or give --grid.")
    return grid


def _trial_config(tree: Mapping[str, object], values: Mapping[str, Value], rounds: int, has_labels: bool, path: Path) -> Config:
    own: Tree = {
        "federation": {"rounds": rounds},
        "evaluation": {
            "probes": ["alignment", "knn"] if has_labels else ["alignment"],
            "probe_every": 0,
            "floors": False,
            "cluster_consistency": False,
        },
        "report": {"projection": "pca"},
        "run": {"directory": str(path.parent), "name": path.name},
    }
    return resolve(merge(merge(tree, as_tree(values)), own))


def _within(minutes: float, per_round: float, trials: tuple[int, int], rounds: int | None, run_rounds: int) -> tuple[int, int]:
    """Return the numbers of trials and of rounds that a budget allows.

    Args:
        minutes: the budget.
        per_round: operations of a round.
        trials: the fewest and the most.
        rounds: of a trial, where they are given.
        run_rounds: of the run that is tuned.
    """

    def affordable(number: int) -> float:
        seconds = max(0.0, 60 * minutes - TRIAL_SECONDS * number)
        return math.inf if per_round == 0 else seconds * OPERATIONS_PER_SECOND / per_round / number

    least = min(LEAST_ROUNDS, run_rounds) if rounds is None else rounds
    fewest, number = trials
    while number > fewest and affordable(number) < least:
        number -= 1
    most = min(MOST_ROUNDS, run_rounds) if rounds is None else rounds
    return number, max(least, int(min(most, affordable(number))))


def _estimate(experiment: Experiment, trials: int, rounds: int, minutes: float | None) -> list[str]:
    """Return what was chosen and how long it takes on this machine."""
    chosen = f"{_number(trials, 'trial')} of {_number(rounds, 'round')}"
    whole = estimate_seconds(experiment)
    if whole is None:
        return [chosen]
    seconds = trials * (whole * rounds / experiment.config.federation.rounds + TRIAL_SECONDS)
    text = f"{chosen}: this takes about {in_minutes(seconds)} on {num_workers(experiment.config)} workers"
    if minutes is None or seconds <= 1.5 * 60 * minutes:
        return [text]
    return [f"{text}, longer than the budget of {minutes:g} min of two free cores: lower --budget, or set --rounds or --trials"]


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
