"""A table of text as Markdown, LaTeX or CSV, and the table of a study in the shape of the paper's."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.evaluation.floors import UNTRAINED
from unisono.studies.results import Results, marked, mean_and_deviation, number

_LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "±": r"$\pm$", "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": "$<$", ">": "$>$", "|": "$|$",
}  # fmt: skip


@dataclass(frozen=True)
class TextTable:
    """Heads and rows of cells.

    Args:
        heads: one for each column.
        rows: as many cells each; the first ones are names.
        num_names: how many columns hold names and not numbers.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_names: int = 1

    def as_markdown(self) -> str:
        """Return a table of GitHub's Markdown."""
        marks = ["---"] * self.num_names + ["---:"] * (len(self.heads) - self.num_names)
        lines = [self.heads, marks, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines) + "\n"

    def as_latex(self) -> str:
        """Return a tabular of the package booktabs."""
        alignment = "l" * self.num_names + "r" * (len(self.heads) - self.num_names)
        lines = [" & ".join(map(latex_text, line)) + r" \\" for line in [self.heads, *self.rows]]
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        return "\n".join([rf"\begin{{tabular}}{{{alignment}}}", *body, r"\end{tabular}"]) + "\n"

    def as_csv(self) -> str:
        """Return the table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.heads, *self.rows])
        return text.getvalue()


def study_table(results: Results, metric: str, paper: bool = True) -> TextTable:
    """Return mean and deviation of a metric, floors first: variants down and settings across, or as the study says.

    A mean that is not above raw pixels and untrained weights is marked void.

    Args:
        results: of the study.
        metric: one of the study's.
        paper: whether the paper's number stands in brackets behind ours.
    """
    study = results.study
    by_variant = study.config.rows == "variants"
    floors = results.floors(metric)
    names = [*floors, *study.row_names]
    down, across = (names, study.setting_names) if by_variant else (study.setting_names, names)

    def cell(row: str, column: str) -> str:
        variant, setting = (row, column) if by_variant else (column, row)
        if variant in floors:
            return number(floors[variant].get(setting), metric)
        summary = results.summary(metric, variant, setting)
        ours = mean_and_deviation(summary, metric)
        if variant != UNTRAINED:
            least = {name: scores.get(setting) for name, scores in floors.items()}
            own = {UNTRAINED: results.summary(metric, UNTRAINED, setting).mean} if UNTRAINED in study.row_names else {}
            ours = marked(ours, summary.mean, least | own)
        theirs = paper_number(study.paper_number(metric, variant, setting)) if paper else ""
        return f"{ours or '-'} [{theirs}]" if theirs else ours

    heads = ["" if name == "all" else name for name in across]
    if across == ["all"]:
        heads = [metric]
    rows = [["" if row == "all" else row, *(cell(row, column) for column in across)] for row in down]
    return TextTable(["", *heads], [row for row in rows if any(row[1:])])


def run_table(results: Results) -> TextTable:
    """Return every run with all its digits, for other programs."""
    metrics = results.study.config.metrics
    heads = ["variant", "setting", "seed", "status", *metrics, "seconds", "run"]
    rows = []
    for cell_result in results.cell_results:
        cell, history = cell_result.cell, cell_result.history
        values = ["" if (value := cell_result.values[metric]) is None else repr(value) for metric in metrics]
        seconds = "" if history is None else f"{history.seconds:.1f}"
        status = "failed" if cell_result.reason else str(cell_result.status)
        rows.append([cell.variant, cell.setting, str(cell.seed), status, *values, seconds, cell.path.name])
    return TextTable(heads, rows, num_names=4)


def paper_number(value: float | str | None) -> str:
    """Return the paper's number as it is printed there."""
    return "" if value is None else str(value)


def latex_text(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
