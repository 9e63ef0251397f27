"""Choice of hyper-parameters without labels: one run per point of a grid, the best score wins.

Lubana et al., "Orchestra" (ICML 2022), Section 5 and C.4: the score is Align + 0.2 Unif(tau = 0.2) on the clients' unlabelled
samples, after 20 rounds. Where there are labels, they say afterwards how well the score predicts kNN accuracy (the paper's
Figure 4), and choose nothing. Optuna keeps the books; everything lies in one directory, and the same call continues a search
that was stopped.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unisono.config import Config, resolve
from unisono.core.config import Tree, merge, parse_overrides, write_toml
from unisono.core.errors import ClientError, UserError
from unisono.data.datasets import Dataset, load_dataset
from unisono.experiment import Experiment
from unisono.federation.loop import Callback
from unisono.loaded import LoadedRun, load
from unisono.running import resume, start
from unisono.runs.directory import RunDirectory
from unisono.runs.files import write_atomically

LEARNING_RATES = {"sgd": (0.03, 0.01, 0.003, 0.001), "adam": (0.003, 0.001, 0.0003, 0.0001)}
"""Learning rates by ``training.optimizer``: those of C.4, and a tenth of them for Adam."""
EMA = (0.9, 0.99, 0.996)
"""Momenta of C.4, for methods with a moving average."""
NUM_ROUNDS = 20
MOST_TPE_TRIALS = 20
Value = float | int | str | bool
Grid = Mapping[str, Sequence[Value]]
Sampler = Literal["grid", "tpe"]


@dataclass(frozen=True)
class Trial:
    """One point of the grid.

    Args:
        values: by option, such as ``training.learning_rate``.
        path: its run directory.
        score: Align + 0.2 Unif; None if the run failed.
        knn: kNN accuracy, None without labels.
        problem: why it failed.
    """

    values: Mapping[str, Value]
    path: Path
    score: float | None
    knn: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Tuning:
    """Result of a search so far: its directory and its trials, best first, failed ones last."""

    directory: Path
    trials: Sequence[Trial]

    @property
    def best(self) -> Trial | None:
        """The trial of the highest score."""
        return self.trials[0] if self.trials and self.trials[0].score is not None else None

    @property
    def correlation(self) -> float | None:
        """Pearson's R between score and kNN accuracy, as in Figure 4; None for fewer than three trials or without labels."""
        pairs = [(trial.score, trial.knn) for trial in self.trials if trial.score is not None and trial.knn is not None]
        if len(pairs) < 3 or min(np.ptp(pairs, axis=0)) == 0:
            return None
        return float(np.corrcoef(np.array(pairs).T)[0, 1])


def default_grid(config: Config) -> dict[str, Sequence[Value]]:
    """Return the grid of C.4: learning rates, and momenta where the method has a moving average."""
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


def tune(
    tree: Mapping[str, Any],
    directory: Path,
    grid: Grid | None = None,
    *,
    sampler: Sampler = "grid",
    num_trials: int | None = None,
    rounds: int | None = None,
    on_start: Callable[[Config, Mapping[str, Value]], Sequence[Callback]] = lambda config, values: (),
    on_end: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Run the trials that are missing, and return all of them.

    Args:
        tree: the recipe, as ``unisono.recipes.build_tree`` makes it.
        directory: of the search; an earlier one with the same arguments is continued.
        grid: values by option; that of ``default_grid`` where None.
        sampler: every point of the grid, or Optuna's TPE over it.
        num_trials: at most this many; by default the whole grid, or 20 for TPE.
        rounds: per trial; by default 20, or the recipe's number where that is lower.
        on_start: told about a trial before it runs; returns the callbacks of its run.
        on_end: told about a trial that has ended.
    """
    optuna = _optuna()
    base = resolve(tree)
    grid = {key: list(values) for key, values in (grid or default_grid(base)).items()}
    num_points = math.prod(len(values) for values in grid.values())
    if num_trials is not None and num_trials < 1:
        raise UserError(f"The number of trials must be at least 1, got {num_trials}.")
    wanted = min(num_trials or num_points, num_points) if sampler == "grid" else num_trials or min(num_points, MOST_TPE_TRIALS)
    rounds = min(NUM_ROUNDS, base.federation.rounds) if rounds is None else rounds
    search = _Search(tree, directory, grid, rounds, load_dataset(base.data), on_start, on_end)
    for values in itertools.product(*grid.values()):
        search.config(dict(zip(grid, values, strict=True)))  # a value that is refused is better noticed now
    spec = {"recipe": base.as_tree(), "grid": grid, "sampler": sampler, "rounds": rounds}
    books = RunDirectory(_open(directory, spec))
    books.lock()
    try:
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(_journal(directory)), lock_obj=_NoLock())
        )
        chosen = (
            optuna.samplers.GridSampler(grid, base.run.seed)
            if sampler == "grid"
            else optuna.samplers.TPESampler(seed=base.run.seed)
        )
        study = optuna.create_study(
            storage=storage, study_name="tuning", direction="maximize", sampler=chosen, load_if_exists=True
        )
        if sampler == "tpe":
            _ask_again(study, optuna)
        while len(_ended(study)) < wanted and not (sampler == "grid" and chosen.is_exhausted(study)):
            study.optimize(search.run, n_trials=1)
        tuning = Tuning(directory, search.trials(study))
        _write(tuning, tree)
    finally:
        books.unlock()
    return tuning


class _Search:
    """The runs behind the trials."""

    def __init__(
        self,
        tree: Mapping[str, Any],
        directory: Path,
        grid: Grid,
        rounds: int,
        dataset: Dataset,
        on_start: Callable[[Config, Mapping[str, Value]], Sequence[Callback]],
        on_end: Callable[[Trial], None],
    ) -> None:
        self._tree = tree
        self._directory = directory
        self._grid = grid
        self._rounds = rounds
        has_labels = dataset.labels is not None and dataset.test_labels is not None and len(dataset.test_samples) > 0
        self._probes = ["alignment", "knn"] if has_labels else ["alignment"]
        self._on_start = on_start
        self._on_end = on_end

    def config(self, values: Mapping[str, Value]) -> Config:
        """Return the config of a trial."""
        tree = merge(self._tree, _as_tree(values))
        path = self._path(values)
        own: Tree = {
            "federation": {"rounds": self._rounds},
            "evaluation": {"probes": self._probes, "probe_every": 0},
            "run": {"directory": str(path.parent), "name": path.name},
        }
        return resolve(merge(tree, own))

    def run(self, trial: Any) -> float:
        """Return the score of the values that Optuna suggests: its objective."""
        values = {key: trial.suggest_categorical(key, choices) for key, choices in self._grid.items()}
        config = self.config(values)
        callbacks = self._on_start(config, values)
        try:
            finished = self._run(config, self._path(values), callbacks)
        except (UserError, ClientError) as error:
            trial.set_user_attr("problem", str(error))
            self._on_end(self._trial(values, None, trial.user_attrs))
            raise _optuna().TrialPruned from error
        last = finished.metrics[-1]
        if "probe.knn" in last:
            trial.set_user_attr("knn", last["probe.knn"])
        self._on_end(self._trial(values, last["probe.score"], trial.user_attrs))
        return float(last["probe.score"])

    def trials(self, study: Any) -> list[Trial]:
        """Return the trials that have ended, one for each point, best first."""
        found = {self._path(trial.params): self._trial(trial.params, trial.value, trial.user_attrs) for trial in _ended(study)}
        return sorted(found.values(), key=lambda trial: -math.inf if trial.score is None else trial.score, reverse=True)

    def _run(self, config: Config, path: Path, callbacks: Sequence[Callback]) -> LoadedRun:
        """Return the finished run of a trial: as it was left, continued, or new."""
        if RunDirectory(path).finished:
            return load(path)
        if (path / "config.toml").is_file():
            return resume(path, callbacks=callbacks)
        shutil.rmtree(path, ignore_errors=True)
        return start(Experiment.prepare(config), path, callbacks=callbacks)

    def _trial(self, values: Mapping[str, Value], score: float | None, attributes: Mapping[str, Any]) -> Trial:
        return Trial(dict(values), self._path(values), score, attributes.get("knn"), attributes.get("problem", ""))

    def _path(self, values: Mapping[str, Value]) -> Path:
        words = [f"{key.rpartition('.')[2]}={values[key]}".replace("/", "_") for key in self._grid]
        return self._directory / "trials" / ",".join(words)


class _NoLock:
    """Lock that does nothing: the directory is locked already, and Optuna's own lock would outlive a killed process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("Tuning needs the extra 'tune': pip install 'unisono[tune]'.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _open(directory: Path, spec: Mapping[str, Any]) -> Path:
    """Make the directory, or check that it belongs to the same search."""
    file = directory / "tuning.json"
    content = json.dumps(spec, indent=1) + "\n"
    if file.is_file():
        if json.loads(file.read_text(encoding="utf-8")) != json.loads(content):
            raise UserError(
                f"{directory} holds a search with another recipe, grid, sampler or number of rounds: "
                "choose another name or remove it."
            )
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists already and is no search: choose another name or remove it.")
    write_atomically(file, content.encode())
    return directory


def _journal(directory: Path) -> Path:
    """Return Optuna's journal, without the half line that a killed process may have left at its end."""
    journal = directory / "journal.jsonl"
    if journal.is_file():
        content = journal.read_bytes()
        if content and not content.endswith(b"\n"):
            write_atomically(journal, content[: content.rfind(b"\n") + 1])
    return journal


def _ended(study: Any) -> list[Any]:
    """Return trials with a score, or with a run that failed; not those that a kill cut short."""
    return [trial for trial in study.trials if trial.value is not None or "problem" in trial.user_attrs]


def _ask_again(study: Any, optuna: Any) -> None:
    """Queue trials that a kill cut short; the grid sampler comes back to them by itself."""
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params, skip_if_exists=False)


def _as_tree(values: Mapping[str, Value]) -> Tree:
    tree: Tree = {}
    for key, value in values.items():
        section, name = key.split(".")
        tree = merge(tree, {section: {name: value}})
    return tree


def _write(tuning: Tuning, tree: Mapping[str, Any]) -> None:
    """Write the trials as JSON, the plot, and the recipe with the best values."""
    from unisono.tune_plot import draw_tuning

    rows = [
        {"values": dict(trial.values), "score": trial.score, "knn": trial.knn, "run": str(trial.path), "problem": trial.problem}
        for trial in tuning.trials
    ]
    result = {"trials": rows, "correlation": tuning.correlation}
    write_atomically(tuning.directory / "trials.json", (json.dumps(result, indent=1) + "\n").encode())
    if tuning.best is not None:
        draw_tuning(tuning, tuning.directory / "tuning.png")
        recipe = merge(tree, _as_tree(tuning.best.values))
        write_atomically(tuning.directory / "best.toml", write_toml(recipe).encode())
