"""Weights to start from: the finished encoder of another run, or a checkpoint of others."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.models.checkpoints import adapted, read_checkpoint
from unisono.models.nets import load_state, state_view

PREFIX = "encoder/"
"""Prefix of tensor names in the file that a run writes."""
TRUNK = "trunk."
"""Prefix of the names in our encoders."""
MOST_NAMED = 4


def load_pretrained(encoder: nn.Module, path: str) -> str:
    """Copy finished weights into an encoder, in place; return a sentence about what fitted.

    Args:
        encoder: of the same architecture.
        path: a run directory, a safetensors file that ``unisono export`` or a run wrote, a .pth or .safetensors file of
            torchvision or timm, or a Hugging Face folder of a ViT or DINO model.
    """
    file = Path(path).expanduser()
    own_file = file / "model" / "encoder.safetensors"
    tensors = read_checkpoint(own_file if file.is_dir() and not (file / "config.json").exists() else file)
    own = state_view(encoder)
    if any(name.startswith(PREFIX) for name in tensors):
        try:
            load_state(encoder, {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})
        except ValueError as error:
            raise UserError(f"model.pretrained = {path!r} does not fit the table [model] or the samples: {error}.") from error
        return f"model.pretrained: all {len(own)} tensors of the run fitted"
    return _load_foreign(encoder, own, tensors, path)


def _load_foreign(encoder: nn.Module, own: dict[str, Tensor], tensors: dict[str, Tensor], path: str) -> str:
    loaded: dict[str, Tensor] = {}
    changed, used = [], set()
    for name, tensor in own.items():
        theirs = name.removeprefix(TRUNK)
        found = tensors.get(theirs)
        fitting = None if found is None else adapted(theirs, found, tensor.shape)
        if fitting is None:
            shape = "is missing in it" if found is None else f"has shape {tuple(found.shape)} in it"
            raise UserError(
                f"model.pretrained = {path!r} does not fit the table [model] or the samples: {theirs} must have shape "
                f'{tuple(tensor.shape)} and {shape}; leave model.backbone unset ("auto") to take the fitting one.'
            )
        if found is not None and fitting.shape != found.shape:
            changed.append(f"{theirs} from {'x'.join(map(str, found.shape))} to {'x'.join(map(str, fitting.shape))}")
        loaded[name] = fitting
        used.add(theirs)
    load_state(encoder, loaded)
    left = sorted(name for name in tensors if name not in used)
    sentence = f"model.pretrained: {len(loaded)} of {len(own)} tensors fitted"
    sentence += f"; adapted {', '.join(changed)}" if changed else ""
    named = ", ".join(left[:MOST_NAMED]) + (", ..." if len(left) > MOST_NAMED else "")
    return sentence + (f"; left out {named}" if left else "")
