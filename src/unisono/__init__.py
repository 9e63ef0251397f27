"""Unsupervised federated learning: encoders and clusters from unlabelled data that stays with its owners."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.core.errors import UserError as UserError
    from unisono.core.method import Method as Method
    from unisono.core.method import register as register
    from unisono.loaded import LoadedRun as LoadedRun
    from unisono.loaded import load as load
    from unisono.running import resume as resume
    from unisono.running import run as run
    from unisono.transformer import EncoderTransformer as EncoderTransformer

__version__ = "0.2.0"

# Importing torch takes a second; a name is imported when it is first used.
_HOMES = {
    "EncoderTransformer": "unisono.transformer",
    "LoadedRun": "unisono.loaded",
    "Method": "unisono.core.method",
    "UserError": "unisono.core.errors",
    "load": "unisono.loaded",
    "register": "unisono.core.method",
    "resume": "unisono.running",
    "run": "unisono.running",
}

__all__ = ["EncoderTransformer", "LoadedRun", "Method", "UserError", "__version__", "load", "register", "resume", "run"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'unisono' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
