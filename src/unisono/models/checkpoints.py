"""Encoders of others as they lie on disk: ResNets of torchvision and timm, ViT and DINO of timm and Hugging Face."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.config import parse_json
from unisono.core.errors import UserError

State = dict[str, Tensor]
WRAPPERS = ("state_dict", "model", "teacher", "student", "model_state_dict")
"""Keys under which programs save the weights."""
PREFIXES = (
    "module.", "_orig_mod.", "encoder_q.", "base_encoder.", "backbone.", "model.", "encoder.", "vit.", "dinov2.", "resnet.",
)  # fmt: skip
DEPTHS = {(2, 2, False): "resnet18", (3, 6, False): "resnet34", (3, 6, True): "resnet50"}
"""Backbone by blocks of the first and third stage, and whether they have three convolutions."""
_RESNET = (
    (re.compile(r"^conv1\."), "conv."),
    (re.compile(r"^bn1\."), "norm."),
    (re.compile(r"^layer(\d)\."), lambda found: f"stages.{int(found[1]) - 1}."),
    (re.compile(r"\.bn(\d)\."), r".norm\1."),
    (re.compile(r"\.downsample\.0\."), ".shortcut.1."),
    (re.compile(r"\.downsample\.1\."), ".shortcut.2."),
)
_VIT = (
    (re.compile(r"^embeddings\.cls_token"), "cls_token"),
    (re.compile(r"^embeddings\.position_embeddings"), "pos_embed"),
    (re.compile(r"^embeddings\.patch_embeddings\.projection\."), "patch_embed.proj."),
    (re.compile(r"^encoder\.layer\."), "blocks."),
    (re.compile(r"^layernorm\."), "norm."),
    (re.compile(r"\.layernorm_before\."), ".norm1."),
    (re.compile(r"\.layernorm_after\."), ".norm2."),
    (re.compile(r"\.attention\.attention\.(query|key|value)\."), r".attn.\1."),
    (re.compile(r"\.attention\.output\.dense\."), ".attn.proj."),
    (re.compile(r"\.intermediate\.dense\."), ".mlp.fc1."),
    (re.compile(r"(blocks\.\d+)\.output\.dense\."), r"\1.mlp.fc2."),
    (re.compile(r"\.layer_scale(\d)\.lambda1$"), r".ls\1.gamma"),
)


def read_checkpoint(path: Path) -> State:
    """Return the tensors of a checkpoint under our names, as far as they are known.

    Args:
        path: a .safetensors, .pth, .pt or .bin file, or a Hugging Face folder.
    """
    if path.is_dir():
        files = [path / name for name in ("model.safetensors", "pytorch_model.bin")]
        path = next((file for file in files if file.is_file()), files[0])
    state = _without_prefixes(_tensors(path))
    rules = _RESNET if any(name.startswith("layer1.") for name in state) else _VIT
    renamed: State = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = pattern.sub(replacement, name)  # noqa: PLW2901
        renamed[name] = tensor
    return _joined(renamed)


def described(path: Path, side: int, stem_given: bool) -> dict[str, Any] | None:
    """Return the options of ``[model]`` that a checkpoint of others asks for; None where the file says nothing about it.

    Args:
        path: as for ``read_checkpoint``.
        side: the longer side of images; small ones keep their pixels in the first layer of a ResNet.
        stem_given: whether the user chose the first layer.
    """
    state = read_checkpoint(path)
    if "conv.weight" in state and "stages.0.0.conv1.weight" in state:
        first, third = (len({name.split(".")[2] for name in state if name.startswith(f"stages.{stage}.")}) for stage in (0, 2))
        name = DEPTHS.get((first, third, "stages.0.0.conv3.weight" in state))
        if name is None:
            raise UserError(
                f"model.pretrained = {str(path)!r} is no ResNet-18, -34 or -50: name the network in model.backbone."
            )
        stem = {} if stem_given else {"stem": "imagenet" if side >= 64 else "3x3"}
        return {"backbone": name, "norm": "batch", "width": state["conv.weight"].shape[0] / 64, **stem}
    if "patch_embed.proj.weight" not in state:
        return None
    dim, _, patch, _ = state["patch_embed.proj.weight"].shape
    depth = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    facts = _config(path)
    options = {
        "patch": patch,
        "dim": dim,
        "depth": depth,
        "heads": int(facts.get("num_attention_heads", max(1, dim // 64))),
        "hidden_dim": state["blocks.0.mlp.fc1.weight"].shape[0],
        "layer_scale": "blocks.0.ls1.gamma" in state,
        "epsilon": float(facts.get("layer_norm_eps", 1e-6)),
    }
    return {"backbone": "vit", "options": options}


def adapted(name: str, tensor: Tensor, shape: torch.Size) -> Tensor | None:
    """Return a tensor of a first layer, or of positions, in another shape; None where there is no sensible way.

    Grey kernels are the sum over the colours; other channels repeat the colours. Kernels of another size share every weight out
    among their neighbours. Both keep the sum, so a constant image has the same answer. Positions are interpolated.

    Args:
        name: ours.
        tensor: as it was saved.
        shape: as it must be.
    """
    if tensor.shape == shape:
        return tensor
    if name == "pos_embed" and tensor.ndim == len(shape) == 3 and tensor.shape[2] == shape[2]:
        return _positions(tensor, shape[1])
    if name not in ("conv.weight", "patch_embed.proj.weight") or tensor.ndim != 4 or tensor.shape[0] != shape[0]:
        return None
    own, wanted = tensor.shape[1], shape[1]
    if own != wanted:
        tensor = tensor.sum(1, keepdim=True) if wanted == 1 else tensor[:, torch.arange(wanted) % own] * (own / wanted)
    if tensor.shape[2:] != shape[2:]:
        rows, columns = (_shared_out(old, new) for old, new in zip(tensor.shape[2:], shape[2:], strict=True))
        tensor = rows @ tensor @ columns.T
    return tensor


def _shared_out(old: int, new: int) -> Tensor:
    """Return a matrix (new, old) whose columns add up to 1: it resamples a row of weights and keeps its sum."""
    resampled = F.interpolate(torch.eye(old)[None], size=new, mode="linear") if new > old else None
    if resampled is None:
        resampled = F.interpolate(torch.eye(old)[None, None], size=(old, new), mode="bilinear", antialias=True)[0]
    return (resampled[0] / resampled[0].sum(1, keepdim=True)).T


def _positions(tensor: Tensor, number: int) -> Tensor | None:
    """Return positions of another square grid, the class token first."""
    own, wanted = round((tensor.shape[1] - 1) ** 0.5), round((number - 1) ** 0.5)
    if own * own != tensor.shape[1] - 1 or wanted * wanted != number - 1:
        return None
    grid = tensor[:, 1:].reshape(1, own, own, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(wanted, wanted), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat((tensor[:, :1], grid.permute(0, 2, 3, 1).reshape(1, wanted * wanted, -1)), dim=1)


def _tensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    what = f"model.pretrained = {str(path)!r}"
    try:
        content: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{what} has no finished encoder: there is no such file.") from error
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{what} holds more than tensors, and reading it could run code; save its state_dict alone, or as .safetensors."
        ) from error
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise UserError(f"{what} cannot be read: {str(error).splitlines()[0].rstrip('.')}.") from error
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{what} must hold named tensors, as state_dict() gives them.")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    return {name: value.float() for name, value in tensors.items() if value.is_floating_point()}


def _without_prefixes(state: State) -> State:
    """Return the state without prefixes that the names of all layers but heads have in common."""
    while True:
        prefix = next((one for one in PREFIXES if _is_wrapped(state, one)), None)
        if prefix is None:
            return state
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _is_wrapped(state: State, prefix: str) -> bool:
    """Return whether layers stand below the prefix; the ``encoder.layer`` of Hugging Face is no prefix."""
    if any(name.startswith(("conv1.", "layer1.", "embeddings.", "patch_embed.", "blocks.", "trunk.")) for name in state):
        return False
    return any(name.startswith(prefix) for name in state)


def _joined(state: State) -> State:
    """Return the state with query, key and value of each layer as one tensor."""
    joined = {name: tensor for name, tensor in state.items() if not re.search(r"\.attn\.(query|key|value)\.", name)}
    for name in state:
        if ".attn.query." in name:
            parts = [state.get(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            found = [part for part in parts if part is not None]
            if len(found) == len(parts):
                joined[name.replace(".query.", ".qkv.")] = torch.cat(found)
    return joined


def _config(path: Path) -> Mapping[str, Any]:
    """Return what config.json of a Hugging Face folder says."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    try:
        content = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}.") from error
    return content if isinstance(content, Mapping) else {}
