"""The finished encoder as files: safetensors, ONNX or torch.export, each with a model card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.models.nets import get_state
from unisono.runs.directory import RunDirectory
from unisono.runs.files import explained, payload_to_safetensors, write_atomically

FORMATS = ("safetensors", "onnx", "torch-export")


def save_model(
    directory: RunDirectory, encoder: nn.Module, config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Write ``model/`` of a run: weights, the data they were made for, and the card."""
    info = directory.load_run_info()
    write_atomically(directory.model / "encoder.safetensors", payload_to_safetensors(Payload({"encoder": get_state(encoder)})))
    write_atomically(directory.model / "model.json", (json.dumps({**info, "model": config["model"]}, indent=1) + "\n").encode())
    write_atomically(directory.model / "README.md", model_card(config, info, metrics).encode())


def export(encoder: nn.Module, input_shape: Sequence[int], format: str, path: Path) -> None:
    """Write the encoder to a file.

    Args:
        encoder: samples to features.
        input_shape: shape of one sample.
        format: one of ``FORMATS``.
        path: the file.
    """
    if format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}.")
    if format == "safetensors":
        write_atomically(path, payload_to_safetensors(Payload({"encoder": get_state(encoder)})))
        return
    example = torch.zeros(2, *input_shape)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(encoder.eval(), (example,), dynamic_shapes=({0: batch},))
    temporary = path.with_name(f".{path.stem}.tmp{'.onnx' if format == 'onnx' else '.pt2'}")  # torch warns of other endings
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if format == "torch-export":
                torch.export.save(program, temporary)
            else:
                _export_onnx(program, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def model_card(config: Mapping[str, Any], info: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the model card: all that a stranger needs to use the encoder, in Markdown."""
    shape = " x ".join(map(str, info["input_shape"]))
    is_image = len(info["input_shape"]) == 3
    probes = {name: value for entry in metrics for name, value in entry.items() if name.startswith("probe.")}
    moved = (
        "The clients agreed to share samples (consent.share_data), and the method may have moved some between them."
        if config["consent"]["share_data"]
        else "The encoder was learnt without moving the clients' samples."
    )
    rows = "\n".join(f"| {name.removeprefix('probe.')} | {value:.4f} |" for name, value in sorted(probes.items()))
    return f"""# Encoder learnt with {config["method"]["name"]}

| | |
|---|---|
| method | {config["method"]["name"]} |
| data set | {config["data"]["dataset"]} |
| clients | {info["num_clients"]}, split by {config["partition"]["scheme"]} |
| rounds | {info["num_rounds"]} |
| backbone | {config["model"]["backbone"]}, width {config["model"]["width"]}, {config["model"]["norm"]} norm |
| seed | {config["run"]["seed"]} |

Input: floats of shape (batch, {shape}){", pixel values in [0, 1]" if is_image else ""}; normalisation is part of the encoder.
Output: features of shape (batch, feature_dim).

## Probes at the end of training

| probe | value |
|---|---|
{rows or "| none | |"}

{moved} It may carry their biases; probe it on your own task before use.
"""


def _export_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError("Exporting to ONNX needs the extra 'onnx': pip install 'unisono[onnx]'.") from error
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
    if converted is None:
        raise RuntimeError("the ONNX exporter returned nothing")
    converted.save(str(path))
