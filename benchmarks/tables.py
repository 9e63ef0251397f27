"""Tables of results, as text and as Markdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table with a title and a few sentences before it.

    Args:
        title: heading.
        text: what was measured, how, and what is wanted.
        header: names of the columns; the first column is of names.
        rows: cells.
    """

    title: str
    text: str
    header: list[str]
    rows: list[list[str]]

    def as_json(self) -> dict[str, Any]:
        """Return what the constructor takes."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the table for a terminal."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        shown = []
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            shown.append("  ".join((first.ljust(widths[0]), *cells)))
        return "\n".join((self.title, self.text, *shown))

    def as_markdown(self) -> str:
        """Return the table for the docs."""
        rule = ["---", *(["---:"] * (len(self.header) - 1))]
        lines = "\n".join(f"| {' | '.join(line)} |" for line in (self.header, rule, *self.rows))
        return f"## {self.title}\n\n{self.text}\n\n{lines}\n"
