"""Pages of prose about results: tables, verdicts and figures between marks are made from the numbers kept in ``docs/results``.

A page holds lines such as ``<!-- table fedmcc-table-1 small cluster-accuracy -->``, ``<!-- figure cfcl-figure-3b mini linear
-->``, ``<!-- effects orchestra -->`` or ``<!-- verdicts orchestra -->``. What stands between such a line and ``<!-- end -->``
is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unisono.core.errors import UserError
from unisono.evaluation.floors import PIXELS, UNTRAINED
from unisono.studies.claims import Paper
from unisono.studies.findings_figures import draw_cells, draw_effects
from unisono.studies.numbers import CellNumbers, Numbers
from unisono.studies.results import Summary, marked, mean_and_deviation, number
from unisono.studies.tables import TextTable
from unisono.studies.verdict_text import num_seeds, our_effect, verdict_words
from unisono.studies.verdicts import Verdict, Word, judge_paper

BLOCK = re.compile(r"(<!-- (table|figure|effects|verdicts) ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_RUN = "*Not run at this scale.*\n"


@dataclass(frozen=True)
class FilledPage:
    """A page after its blocks were filled.

    Args:
        text: of the page.
        figures: SVG files by name, for the directory of figures.
    """

    text: str
    figures: Mapping[str, bytes]


def fill_page(text: str, papers: Sequence[Paper], numbers: Sequence[Numbers], figures: str = "figures") -> FilledPage:
    """Return a page with tables, verdicts and figures from the numbers.

    Args:
        text: of the page, with blocks.
        papers: with their claims.
        numbers: of studies, at any scale.
        figures: the directory of figures, as seen from the page.
    """
    drawn: dict[str, bytes] = {}

    def content(kind: str, words: Sequence[str]) -> str:
        if kind in ("effects", "verdicts"):
            judged = _judged(words[0], papers, numbers)
            if kind == "verdicts" or not judged:
                return _verdicts(judged)
            name, svg = f"{words[0]}-effects.svg", draw_effects([verdict for verdict in judged if verdict.difference], words[0])
            title = "Measured differences with 95% intervals, and the paper's"
        else:
            study, scale, metric = words[0], words[1], " ".join(words[2:])
            cells = [cell for one in numbers if (one.study, one.scale) == (study, scale) for cell in one.cells.values()]
            cells = [cell for cell in cells if cell.mean(metric) is not None]
            if not cells or kind == "table":
                return _table(cells, metric)
            name, svg = f"{study}-{scale}-{metric.replace(' ', '-')}.svg", draw_cells(cells, metric, study)
            title = f"{metric} of {study} at scale {scale}: a point per seed or a line per variant, floors dashed"
        if not svg:
            return NOT_RUN
        drawn[name] = svg
        return f"![{title}]({figures}/{name})\n"

    def replaced(found: re.Match[str]) -> str:
        try:
            return found[1] + content(found[2], found[3].split()) + found[4]
        except IndexError as error:
            raise UserError(f"{found[1].strip()} lacks words: give study, scale and metric, or a paper.") from error

    return FilledPage(BLOCK.sub(replaced, text), drawn)


def _judged(name: str, papers: Sequence[Paper], numbers: Sequence[Numbers]) -> list[Verdict]:
    found = [paper for paper in papers if paper.name == name]
    if not found:
        raise UserError(f"There is no paper '{name}': give one of {', '.join(paper.name for paper in papers)}.")
    return [verdict for verdict in judge_paper(found[0], numbers) if verdict.word is not Word.not_run]


def _verdicts(judged: Sequence[Verdict]) -> str:
    """Return a row for each claim that was run, at each scale."""
    rows = [[one.claim.text, our_effect(one), num_seeds(one), one.scale, verdict_words(one)] for one in judged]
    heads = ["claim", "ours (95% interval)", "seeds", "scale", "verdict"]
    return TextTable(heads, rows, num_names=len(heads)).as_markdown() if rows else NOT_RUN


def _table(cells: Sequence[CellNumbers], metric: str) -> str:
    """Return mean and deviation over seeds, variants down and settings across, floors first."""
    if not cells:
        return NOT_RUN
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    places = {(cell.variant, cell.setting): cell for cell in cells}
    rows = []
    for floor in (PIXELS, UNTRAINED):
        by_setting = {cell.setting: cell.floor(floor, metric) for cell in cells}
        if (floor, settings[0]) not in places and any(value is not None for value in by_setting.values()):
            rows.append([floor, "", *(number(by_setting[setting], metric) for setting in settings)])
    for variant in dict.fromkeys(cell.variant for cell in cells):
        own = [places.get((variant, setting)) for setting in settings]
        seeds = " or ".join(str(count) for count in sorted({len(cell.seeds) for cell in own if cell}))
        rows.append([variant, seeds, *(_mean(cell, metric, places) if cell else "" for cell in own)])
    heads = [metric if setting == "all" else setting for setting in settings]
    return TextTable(["", "seeds", *heads], rows).as_markdown()


def _mean(cell: CellNumbers, metric: str, places: Mapping[tuple[str, str], CellNumbers]) -> str:
    """Return mean and deviation of a cell, and whether it is void."""
    values = list(cell.by_seed(metric).values())
    text = mean_and_deviation(Summary(values, len(cell.seeds)), metric)
    row = places.get((UNTRAINED, cell.setting))
    floors = {name: cell.floor(name, metric) for name in (PIXELS, UNTRAINED)}
    least = floors if row is None else floors | {UNTRAINED: row.mean(metric)}
    return text if cell.variant == UNTRAINED else marked(text, cell.mean(metric), least)
