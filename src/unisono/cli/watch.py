"""``unisono watch``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console

if TYPE_CHECKING:
    from unisono.runs.directory import RunDirectory

SECONDS_BETWEEN_LOOKS = 1.0


def watch(
    run: options.Run,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show it here instead of in a browser.")] = False,
    port: Annotated[int, typer.Option(help="Of the server; default any that is free.", show_default=False)] = 0,
    once: Annotated[bool, typer.Option("--once", help="Show the present state and end.")] = False,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.", show_default=False)] = True,
) -> None:
    """Watch a run while it goes on.

    RUN is a run directory. The report is that of 'unisono report', served to this machine alone, and follows the run without
    reloading; --terminal shows curves in letters. Ctrl-C ends the watch, not the run.

    Example: unisono watch runs/demo --terminal --once
    """
    from unisono.core.errors import UserError
    from unisono.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    if not 0 <= port <= 65535:
        raise UserError(f"--port must lie between 0 and 65535, got {port}.")
    if once and not terminal:
        raise UserError("--once goes with --terminal; 'unisono report' writes the present state as a report.")
    if terminal:
        _watch_here(directory, once=once)
    else:
        _serve(directory, port, open_it)


def _watch_here(directory: RunDirectory, *, once: bool) -> None:
    """Redraw the view until the run ends."""
    import time

    from unisono.cli.watch_view import watch_view

    console = make_console()
    if once or not console.is_terminal:
        console.print(watch_view(directory, console.width))
        return
    from rich.live import Live

    view = watch_view(directory, console.width)
    with suppress(KeyboardInterrupt), Live(view, console=console, auto_refresh=False) as live:
        while directory.in_use:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            live.update(watch_view(directory, console.width), refresh=True)


def _serve(directory: RunDirectory, port: int, open_it: bool) -> None:
    """Serve the report until Ctrl-C."""
    from unisono.core.errors import UserError
    from unisono.report.live import LiveServer

    try:
        server = LiveServer(directory, port)
    except OSError as error:
        raise UserError(f"--port {port} cannot be used: {error.strerror}. Leave it out to take one that is free.") from error
    with suppress(KeyboardInterrupt), server:
        make_console().print(f"{directory.path} at {server.address}, until Ctrl-C", soft_wrap=True)
        if open_it:
            typer.launch(server.address)
        server.serve_forever()
