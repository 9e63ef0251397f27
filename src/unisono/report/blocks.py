"""The parts of a page as plain data; the scripts in ``assets/`` draw each by its ``kind``.

All functions are pure and return what ``json.dumps`` takes. Numbers that are not finite become gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Block = dict[str, Any]
Section = dict[str, Any]
Document = dict[str, Any]
Number = float | int | None


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        name: in the legend.
        x: positions.
        y: values, as many; None is a gap.
        low: lower edge of a band around the line, as many; None draws no band.
        high: its upper edge.
        dashed: draw the line dashed.
    """

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    dashed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the series as the scripts read it."""
        values = {"name": self.name, "x": _finite(self.x), "y": _finite(self.y), "dashed": self.dashed}
        if self.low is not None and self.high is not None:
            values |= {"low": _finite(self.low), "high": _finite(self.high)}
        return values


def document(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    *,
    status: str = "",
    tiles: Iterable[tuple[str, str]] = (),
    assets: Mapping[str, Any] | None = None,
) -> Document:
    """Return a whole page.

    Args:
        title: heading.
        subtitle: a sentence below it.
        sections: in order; those without blocks are left out.
        status: a word beside the heading, such as finished, running or failed.
        tiles: a few headline numbers as (value, label).
        assets: pictures that blocks refer to by name, see ``thumbnails.Sprite``.
    """
    return {
        "title": title,
        "subtitle": subtitle,
        "status": status,
        "tiles": [{"value": value, "label": label} for value, label in tiles],
        "sections": [part for part in sections if part["blocks"]],
        "assets": dict(assets or {}),
    }


def section(id: str, title: str, blocks: Iterable[Block | None], note: str = "") -> Section:
    """Return a heading and what stands below it.

    Args:
        id: the anchor, a word.
        title: heading.
        blocks: in order; None is left out.
        note: a sentence below the heading.
    """
    return {"id": id, "title": title, "note": note, "blocks": [block for block in blocks if block is not None]}


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    note: str = "",
    references: Iterable[tuple[str, float]] = (),
    from_zero: bool = False,
    percent: bool = False,
    wide: bool = False,
) -> Block:
    """Return a line chart with a legend that hides and shows lines.

    Args:
        title: heading.
        x_label: with the unit, if there is one.
        y_label: with the unit.
        series: the lines.
        note: small print below.
        references: horizontal lines to compare with, as (name, y), such as a paper's number.
        from_zero: whether the axis of y includes 0.
        percent: whether y is a share of 1, shown in percent.
        wide: whether the chart takes the whole width.
    """
    return {
        "kind": "lines",
        "title": title,
        "note": note,
        "wide": wide,
        "x": {"label": x_label},
        "y": {"label": y_label, "from_zero": from_zero, "percent": percent},
        "series": [one.as_json() for one in series],
        "references": [{"name": name, "y": y} for name, y in references],
    }


def columns(
    title: str,
    x_label: str,
    y_label: str,
    groups: Sequence[str],
    parts: Sequence[str],
    values: Sequence[Sequence[Number]],
    *,
    note: str = "",
    shares: bool = False,
    wide: bool = True,
) -> Block:
    """Return stacked columns: one per group, one colour per part.

    Args:
        title: heading.
        x_label: what a column is.
        y_label: with the unit.
        groups: names of the columns.
        parts: names of the colours.
        values: a row per group, a number per part.
        note: small print below.
        shares: whether a switch shows shares of each column instead.
        wide: whether the chart takes the whole width.
    """
    return {
        "kind": "columns",
        "title": title,
        "note": note,
        "wide": wide,
        "x": {"label": x_label},
        "y": {"label": y_label},
        "groups": list(groups),
        "parts": list(parts),
        "values": [_finite(row) for row in values],
        "shares": shares,
    }


def table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str | Number]], *, note: str = "", digits: int = 4
) -> Block:
    """Return a table that sorts by a click on a head; columns of numbers stand to the right.

    Args:
        title: heading.
        heads: with units.
        rows: cells; None is empty.
        note: small print below.
        digits: significant digits of numbers that are not whole.
    """
    cells = [[cell if isinstance(cell, str) else _finite([cell])[0] for cell in row] for row in rows]
    return {"kind": "table", "title": title, "note": note, "heads": list(heads), "rows": cells, "digits": digits, "wide": True}


def facts(title: str, pairs: Iterable[tuple[str, str]]) -> Block:
    """Return names and what they are; empty ones are left out."""
    return {"kind": "facts", "title": title, "pairs": [[name, text] for name, text in pairs if text], "wide": True}


def code(title: str, text: str, *, folded: bool = False) -> Block:
    """Return text to copy, with a button for it; ``folded`` hides it behind its title."""
    return {"kind": "code", "title": title, "text": text, "folded": folded, "wide": True}


def prose(text: str, *, tone: str = "") -> Block:
    """Return a paragraph; the tone ``warning`` or ``error`` makes it stand out."""
    return {"kind": "prose", "title": "", "text": text, "tone": tone, "wide": True}


def link(file: str, text: str) -> Block:
    """Return a link to a file beside the page."""
    return {"kind": "link", "title": "", "file": file, "text": text, "wide": True}


def picture(title: str, source: str) -> Block:
    """Return a picture as wide as the page, or as itself if that is less.

    Args:
        title: what it shows, for readers who cannot see it.
        source: a data URL.
    """
    return {"kind": "picture", "title": "", "note": "", "words": title, "source": source, "wide": True}


def _finite(values: Iterable[Number]) -> list[Number]:
    return [None if value is None or not math.isfinite(value) else _short(value) for value in values]


def _short(value: float | int) -> float | int:
    """Return a number with seven significant digits, more than a screen shows, to keep the file small."""
    return value if isinstance(value, int) else float(f"{value:.7g}")
