"""``unisono verify``."""

from __future__ import annotations

import typer

from unisono.cli import options

DAMAGED = 1


def verify(run: options.Run) -> None:
    """Check that no file of a run is damaged or edited.

    RUN is a run directory. One line per file, and exit code 1 if something is wrong. Logs are checked as far as they were when
    the last checkpoint was written.

    Example: unisono verify runs/demo
    """
    from unisono.runs.directory import RunDirectory
    from unisono.runs.verify import verify as verify_run

    found = verify_run(RunDirectory.open(run))
    for name, problem in found.items():
        print(f"good     {name}" if problem is None else f"DAMAGED  {name}: {problem}")
    if any(found.values()):
        raise typer.Exit(DAMAGED)
