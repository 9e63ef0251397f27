"""``unisono evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli import options


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    json: options.Json = False,
) -> None:
    """Probe.

    Example: unisono evaluate runs/demo
    """
