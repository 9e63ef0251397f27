"""``unisono resume``."""

from __future__ import annotations

from unisono.cli import options
from unisono.cli.error_output import stopping
from unisono.cli.tables import make_console


def resume(run: options.Run, quiet: options.Quiet = False, json: options.Json = False) -> None:
    """Continue a run that was stopped.

    The result is the same, bit for bit, as if it had not been. RUN is its directory.

    Example: unisono resume runs/demo
    """
    from unisono.cli.progress import Progress, headline
    from unisono.cli.summary import summarise
    from unisono.config import resolve
    from unisono.running import resume as resume_run
    from unisono.runs.directory import RunDirectory

    config = resolve(RunDirectory.open(run).config_tree)
    console = make_console()
    console.quiet = quiet or json
    console.print(headline(config))
    with stopping(run), Progress(config, console) as progress:
        finished = resume_run(run, callbacks=[progress], on_note=lambda note: console.print(f"note: {note}", soft_wrap=True))
    summarise(finished, quiet=quiet, json=json)
