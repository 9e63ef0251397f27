"""Bars that are drawn again and again in one place of a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table


def can_redraw(console: Console) -> bool:
    """Whether bars can be drawn in place; FORCE_COLOR makes rich take a file for a terminal, where they do not belong."""
    return console.is_interactive and console.file.isatty()


def start_bars(console: Console, bars: Callable[[], RenderableType]) -> Live:
    """Draws until it is stopped. Begin when workers have been forked: they are better forked without the thread that draws."""
    live = Live(
        console=console,
        get_renderable=bars,
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live


def bar_grid() -> Table:
    """Columns for a name, a count, a bar and the time left."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right", min_width=12)
    return grid
