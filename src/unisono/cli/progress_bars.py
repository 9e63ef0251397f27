"""Progress bars that are redrawn in one place of a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table


def can_redraw(console: Console) -> bool:
    """Return whether bars can be redrawn in place; FORCE_COLOR makes rich take any file for a terminal."""
    return console.is_interactive and console.file.isatty()


def start_bars(console: Console, bars: Callable[[], RenderableType]) -> Live:
    """Draw bars until stopped. Begin after the workers are forked, so that they do not inherit the drawing thread."""
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
    """Return an empty grid with columns for a name, a count, a bar and the time left."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right", min_width=12)
    return grid
