"""The finished encoder of another run, to start from."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from unisono.core.errors import UserError
from unisono.models.nets import load_state

PREFIX = "encoder/"
"""Prefix of tensor names in the file that a run writes."""


def load_pretrained(encoder: nn.Module, path: str) -> None:
    """Copy the weights of a finished encoder into this one, in place.

    Args:
        encoder: of the same architecture.
        path: a run directory, or a safetensors file that ``unisono export`` or a run wrote.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(path).expanduser()
    file = file / "model" / "encoder.safetensors" if file.is_dir() else file
    try:
        tensors = load_file(file)
    except FileNotFoundError as error:
        raise UserError(f"model.pretrained = {path!r} has no finished encoder: there is no file {file}.") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"model.pretrained = {path!r} cannot be read: {error}.") from error
    try:
        load_state(encoder, {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})
    except ValueError as error:
        raise UserError(f"model.pretrained = {path!r} does not fit the table [model] or the samples: {error}.") from error
