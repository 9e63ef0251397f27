"""Choice of hyper-parameters without labels: one run per point of a grid, the best score wins.

Lubana et al., "Orchestra" (ICML 2022), Section 5 and C.4: the score is Align + 0.2 Unif(tau = 0.2) of the projector's outputs
on the clients' unlabelled samples. Where there are labels, they say afterwards how well the score predicts kNN accuracy (the
paper's Figure 4), and choose nothing. Optuna keeps the books; everything lies in one directory, and the same call continues a
search that was stopped.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unisono.config import Config
from unisono.core.errors import ClientError, UserError
from unisono.experiment import Experiment
from unisono.federation.loop import Callback
from unisono.loaded import LoadedRun, load
from unisono.running import resume, start
from unisono.runs.directory import RunDirectory
from unisono.runs.files import write_atomically
from unisono.tune_plan import Plan, Value
from unisono.tune_recipe import check_out, recipe_name, recipe_text


@dataclass(frozen=True)
class Trial:
    """One point of the grid.

    Args:
        values: by option, such as ``training.learning_rate``.
        path: its run directory.
        score: Align + 0.2 Unif; None if the run failed.
        knn: kNN accuracy, None without labels.
        encoder_score: the score of the encoder's features; None where the method has no projector, so that score is that.
        problem: why it failed.
    """

    values: Mapping[str, Value]
    path: Path
    score: float | None
    knn: float | None = None
    encoder_score: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Tuning:
    """Result of a search so far: its directory and its trials, best first, failed ones last.

    Args:
        directory: of the search.
        trials: those that have ended.
        recipe: the file with the best values; it is written if any trial has a score.
    """

    directory: Path
    trials: Sequence[Trial]
    recipe: Path = Path()

    @property
    def best(self) -> Trial | None:
        """The trial of the highest score."""
        return self.trials[0] if self.trials and self.trials[0].score is not None else None

    @property
    def correlation(self) -> float | None:
        """Pearson's R between score and kNN accuracy, as in Figure 4; None for fewer than three trials or without labels."""
        return _correlation([(trial.score, trial.knn) for trial in self.trials])

    @property
    def encoder_correlation(self) -> float | None:
        """The same for the score of the encoder's features."""
        return _correlation([(trial.encoder_score, trial.knn) for trial in self.trials])


def _correlation(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    whole = [(x, y) for x, y in pairs if x is not None and y is not None]
    if len(whole) < 3 or min(np.ptp(whole, axis=0)) == 0:
        return None
    return float(np.corrcoef(np.array(whole).T)[0, 1])


def tune(
    plan: Plan,
    directory: Path,
    *,
    out: Path | None = None,
    command: str = "",
    on_start: Callable[[Config, Mapping[str, Value]], Sequence[Callback]] = lambda config, values: (),
    on_end: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Run the trials that are missing, write the recipe with the best values, and return all trials.

    Args:
        plan: as ``unisono.tune_plan.make_plan`` makes it.
        directory: of the search; an earlier one with the same plan is continued.
        out: where the recipe goes; by default METHOD-DATASET.toml in the directory.
        command: the command line that asked for it, for the recipe.
        on_start: told about a trial before it runs; returns the callbacks of its run.
        on_end: told about a trial that has ended.
    """
    optuna = _optuna()
    grid = {key: list(values) for key, values in plan.grid.items()}
    recipe = directory / f"{recipe_name(plan.config)}.toml" if out is None else out
    check_out(recipe)
    search = _Search(plan, directory, on_start, on_end)
    spec = {"recipe": plan.config.as_tree(), "grid": grid, "sampler": plan.sampler, "rounds": plan.rounds}
    books = RunDirectory(_open(directory, spec))
    books.lock()
    try:
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(_journal(directory)), lock_obj=_NoLock())
        )
        seed, is_grid = plan.config.run.seed, plan.sampler == "grid"
        chosen = optuna.samplers.GridSampler(grid, seed) if is_grid else optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(
            storage=storage, study_name="tuning", direction="maximize", sampler=chosen, load_if_exists=True
        )
        if not is_grid:
            _ask_again(study, optuna)
        while len(_ended(study)) < plan.num_trials and not (is_grid and chosen.is_exhausted(study)):
            study.optimize(search.run, n_trials=1)
        tuning = Tuning(directory, search.trials(study), recipe)
        _write(tuning, plan, command)
    finally:
        books.unlock()
    return tuning


class _Search:
    """The runs behind the trials."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        on_start: Callable[[Config, Mapping[str, Value]], Sequence[Callback]],
        on_end: Callable[[Trial], None],
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._on_start = on_start
        self._on_end = on_end

    def run(self, trial: Any) -> float:
        """Return the score of the values that Optuna suggests: its objective."""
        values = {key: trial.suggest_categorical(key, choices) for key, choices in self._plan.grid.items()}
        config = self._plan.trial_config(values, self._path(values))
        callbacks = self._on_start(config, values)
        try:
            finished = self._run(config, self._path(values), callbacks)
        except (UserError, ClientError) as error:
            trial.set_user_attr("problem", str(error))
            self._on_end(self._trial(values, None, trial.user_attrs))
            raise _optuna().TrialPruned from error
        last = finished.metrics[-1]
        for name in ("knn", "encoder-score"):
            if f"probe.{name}" in last:
                trial.set_user_attr(name, last[f"probe.{name}"])
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
        knn, encoder_score = (attributes.get(name) for name in ("knn", "encoder-score"))
        return Trial(dict(values), self._path(values), score, knn, encoder_score, attributes.get("problem", ""))

    def _path(self, values: Mapping[str, Value]) -> Path:
        words = [f"{key.rpartition('.')[2]}={values[key]}".replace("/", "_") for key in self._plan.grid]
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


def _write(tuning: Tuning, plan: Plan, command: str) -> None:
    """Write the trials as JSON, the plot, and the recipe with the best values."""
    from unisono.tune_plot import draw_tuning

    best = tuning.best
    rows = [
        {
            "values": dict(trial.values),
            "score": trial.score,
            "knn": trial.knn,
            "encoder_score": trial.encoder_score,
            "run": str(trial.path),
            "problem": trial.problem,
        }
        for trial in tuning.trials
    ]
    result = {
        "trials": rows,
        "rounds": plan.rounds,
        "correlation": tuning.correlation,
        "encoder_correlation": tuning.encoder_correlation,
        "recipe": None if best is None else str(tuning.recipe),
    }
    write_atomically(tuning.directory / "trials.json", (json.dumps(result, indent=1) + "\n").encode())
    if best is None:
        return
    draw_tuning(tuning, tuning.directory / "tuning.png")
    scored = sum(trial.score is not None for trial in tuning.trials)
    what = "projector's outputs" if best.encoder_score is not None else "encoder's features"
    comments = [
        f"Align + 0.2 Unif of the {what}: {best.score:.4f}, the best of {scored} trials of {plan.rounds} rounds.",
        *([f"kNN accuracy of that trial: {100 * best.knn:.1f}; labels have chosen nothing."] if best.knn is not None else []),
        *([command] if command else []),
    ]
    text = recipe_text(plan, best.values, tuning.recipe, tuple(comments))
    write_atomically(tuning.recipe, text.encode())
