"""Plot of a search: the score against kNN accuracy where there are labels, else the score of every trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unisono.tune import Tuning

COLOUR = "#332288"
BEST = "#CC6677"


def draw_tuning(tuning: Tuning, path: Path) -> None:
    """Write the picture as an image whose format the path's suffix names.

    Args:
        tuning: has at least one trial with a score.
        path: the file to write.
    """
    from matplotlib.figure import Figure

    trials = [trial for trial in tuning.trials if trial.score is not None]
    labelled = all(trial.knn is not None for trial in trials)
    figure = Figure(figsize=(7, 4.5 if labelled else 1.5 + 0.3 * len(trials)), layout="constrained")
    axes = figure.add_subplot()
    colours = [BEST] + [COLOUR] * (len(trials) - 1)
    scores = [trial.score for trial in trials if trial.score is not None]
    if labelled:
        accuracies = [trial.knn for trial in trials if trial.knn is not None]
        axes.scatter(scores, accuracies, c=colours)
        for trial, score, accuracy in zip(trials, scores, accuracies, strict=True):
            axes.annotate(describe(trial.values), (score, accuracy), xytext=(4, 4), textcoords="offset points", fontsize=7)
        axes.set_ylabel("kNN accuracy")
        if tuning.correlation is not None:
            axes.set_title(f"R = {tuning.correlation:.2f} over {len(trials)} trials")
    else:
        axes.barh(range(len(trials)), scores, color=colours)
        axes.set_yticks(range(len(trials)), [describe(trial.values) for trial in trials], fontsize=8)
        axes.invert_yaxis()
    axes.set_xlabel("Align + 0.2 Unif, higher is better")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def describe(values: Mapping[str, object]) -> str:
    """Return text such as ``learning_rate 0.01, ema 0.99``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())
