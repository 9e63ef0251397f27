"""``unisono compare``."""

from __future__ import annotations

import json as json_format
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from unisono.studies.comparison import Comparison


MOST_METRICS = 4
"""Columns that fit beside the names of groups."""


class Format(StrEnum):
    """Output formats of the table."""

    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", hidden=True)],
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", metavar="NAME", help="Default: all probes; repeatable.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="Ask whether groups are equal: differences up to so many points count as none."),
    ] = None,
    format: Annotated[Format, typer.Option(help="Default terminal.", show_default=False)] = Format.terminal,
    html: Annotated[Path | None, typer.Option(help="Also write a report with all curves to this .html file.")] = None,
    json: options.Json = False,
) -> None:
    """Compare runs in one table.

    RUN is a run directory, or a directory of such. Runs that differ in their seeds alone are shown as mean and standard
    deviation; all others are compared with the first: paired differences, and from three seeds on their 95% interval, the
    smallest difference that could have been seen, and a verdict by the rule of the papers' claims.

    Example: unisono compare runs/demo runs/clusters --metric linear
    """
    from unisono.runs.files import write_atomically
    from unisono.studies.comparison import compare as compare_runs

    comparison = compare_runs(runs, metrics or (), margin)
    if html is not None:
        from unisono.studies.comparison_report import comparison_report

        words = [*map(str, runs), *(word for metric in metrics or () for word in ("--metric", metric))]
        words += [*([] if margin is None else ["--margin", f"{margin:g}"]), "--html", str(html)]
        write_atomically(html, comparison_report(comparison, shlex.join(["unisono", "compare", *words])).encode())
    if json:
        print(json_format.dumps(comparison.as_json()))
    elif format is Format.terminal:
        _show(comparison, html)
    else:
        print(_text(comparison, format), end="")


def _text(comparison: Comparison, format: Format) -> str:
    if format is Format.latex:
        return comparison.as_latex()
    return comparison.number_table().as_csv() if format is Format.csv else comparison.as_markdown()


def _show(comparison: Comparison, html: Path | None) -> None:
    console = make_console()
    table, differences = comparison.table(), comparison.difference_table()
    if len(comparison.metrics) > MOST_METRICS:
        turned = list(zip(table.heads, *table.rows, strict=True))
        console.print(make_table(turned[0], turned[1:], right=turned[0][1:]))
    else:
        console.print(make_table(table.heads, table.rows, right=table.heads[1:]))
    console.print("\n" + comparison.note(), soft_wrap=True)
    if differences.rows:
        console.print()
        console.print(make_table(differences.heads, differences.rows, right=differences.heads[2:]))
        console.print("\n" + comparison.explanation(), soft_wrap=True)
    if html is not None:
        console.print(f"Report: {html}", soft_wrap=True)
