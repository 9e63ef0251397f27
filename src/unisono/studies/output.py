"""Files of a study beside its runs: results.json, results.csv, results.md, figure.png, figure.svg, report.html."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unisono.runs.evaluation import PREFIX
from unisono.runs.files import write_atomically
from unisono.studies.claims import read_papers
from unisono.studies.correlation import correlations
from unisono.studies.figure import draw_study
from unisono.studies.history import parse_time_to_target
from unisono.studies.results import VOID_RULE, Results
from unisono.studies.runner import CellStatus
from unisono.studies.study_report import study_report
from unisono.studies.tables import run_table, study_table
from unisono.studies.verdict_text import SMALL_PRINT, verdict_json, verdict_table
from unisono.studies.verdicts import Verdict, judge_study


def write_numbers(results: Results, path: Path) -> None:
    """Write results.json, results.csv and results.md; cheap enough to be done after every run.

    Args:
        results: so far.
        path: the study's directory.
    """
    write_atomically(path / "results.json", (json.dumps(as_json(results), indent=1) + "\n").encode())
    write_atomically(path / "results.csv", run_table(results).as_csv().encode())
    write_atomically(path / "results.md", as_markdown(results).encode())


def write_pictures(results: Results, path: Path, command: str = "") -> None:
    """Write the figure and the report.

    Args:
        results: so far.
        path: the study's directory.
        command: what repeats the study.
    """
    files = draw_study(results)
    for ending, content in files.items():
        write_atomically(path / f"figure.{ending}", content)
    page = study_report(results, command, files.get("svg", b""), verdicts_of(results))
    write_atomically(path / "report.html", page.encode())


def as_json(results: Results) -> dict[str, Any]:
    """Return the whole result as JSON: the content of results.json."""
    return {**results.as_json(), "claims": [verdict_json(verdict) for verdict in verdicts_of(results)]}


def as_markdown(results: Results) -> str:
    """Return the whole result as Markdown: claim, a table per metric, what is missing."""
    config = results.study.config
    parts = [f"# {config.title}\n"]
    if config.claim:
        parts.append(f"Claim: {config.claim}\n")
    facts = [f"{config.scale} scale", config.source, f"seeds {', '.join(map(str, seeds_of(results)))}", config.cost]
    parts.append("; ".join(filter(None, facts)) + ".\n")
    for metric in config.metrics:
        parts.append(f"## {metric}\n\n{study_table(results, metric).as_markdown()}")
    parts.append(small_print(results) + "\n")
    verdicts = verdicts_of(results)
    if verdicts:
        parts.append(f"## Claims\n\n{verdict_table(verdicts).as_markdown()}\n{SMALL_PRINT}\n")
    if config.note:
        parts.append(config.note + "\n")
    missing = [cell_result for cell_result in results.cell_results if cell_result.status is not CellStatus.finished]
    if missing:
        lines = "\n".join(f"- {cell_result.cell.title}: {cell_result.reason or cell_result.status}" for cell_result in missing)
        parts.append(f"## Not finished\n\n{lines}\n")
    return "\n".join(parts)


def verdicts_of(results: Results) -> list[Verdict]:
    """Return verdicts on the papers' claims that belong to the study; none for a study of one's own."""
    return judge_study(read_papers(), results.numbers())


def small_print(results: Results) -> str:
    """Return how to read the table."""
    config = results.study.config
    words = [f"Mean ± {config.spread} over seeds; accuracies in percent."]
    if any(map(results.study.has_paper_numbers, config.metrics)):
        words.append("The paper's numbers are in square brackets.")
    if config.plot == "scatter" and len(config.metrics) > 1:
        words.append(correlations(results, config.metrics[0], config.metrics[1]))
    lines = [" ".join([*words, *_empty_columns(results)])]
    return "\n".join([*lines, *([VOID_RULE] if any(map(results.floors, config.metrics)) else [])])


def _empty_columns(results: Results) -> list[str]:
    """Return a sentence about each metric that no finished run has; one that asks for a time may not have been reached."""
    finished = [run for run in results.cell_results if run.history is not None]
    empty = [
        metric
        for metric in results.study.config.metrics
        if finished and parse_time_to_target(metric) is None and all(run.values[metric] is None for run in finished)
    ]
    numbers = {name for run in finished if run.history for record in run.history.records for name in record}
    known = ", ".join(sorted(name.removeprefix(PREFIX) for name in numbers))
    return [f"No run has a number {metric!r} (study.metrics). Known: {known}." for metric in empty]


def seeds_of(results: Results) -> list[int]:
    """Return the seeds that were asked for, in order."""
    return list(dict.fromkeys(cell_result.cell.seed for cell_result in results.cell_results))
