"""``unisono export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torch-export": ".pt2"}


def export(
    run: options.Run,
    format: Annotated[
        str, typer.Option(help="safetensors (default), onnx or torch-export.", show_default=False)
    ] = "safetensors",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; default RUN/model/encoder.*.")] = None,
) -> None:
    """Write the encoder to a file, with a model card beside it.

    RUN is a run directory.

    Example: unisono export runs/demo --format onnx --output encoder.onnx
    """
    from unisono.core.errors import UserError
    from unisono.loaded import load
    from unisono.runs.export import export as export_encoder
    from unisono.runs.export import model_card
    from unisono.runs.files import write_atomically

    if format not in SUFFIXES:
        raise UserError(f"--format must be one of {', '.join(SUFFIXES)}, got {format!r}.")
    loaded = load(run)
    path = output or loaded.directory.model / f"encoder{SUFFIXES[format]}"
    export_encoder(loaded.encoder, loaded.method.info.input_shape, format, path)
    card = path.with_suffix(".md")
    write_atomically(card, model_card(loaded.config.as_tree(), loaded.directory.load_run_info(), loaded.metrics).encode())
    make_console().print(f"{path}\n{card}", soft_wrap=True)
