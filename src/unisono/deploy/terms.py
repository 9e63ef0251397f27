"""What a client checks of a run before it takes part, and the samples that it brings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from unisono.config import Config, resolve
from unisono.core.method import RunInfo, methods
from unisono.core.registry import Registry
from unisono.data.datasets import DataConfig, Dataset, datasets, load_dataset
from unisono.deploy.layout import ClientConfig, ClientDirectory
from unisono.deploy.policy import RefusedError, owner_config
from unisono.models.backbones import backbones


def checked_config(tree: dict[str, Any], owner: ClientConfig) -> Config:
    """Return the server's config as this client follows it; refuse code that its owner has not agreed to.

    A registry imports whatever is written ``package.module:NAME`` or ``file.py``, and what another package adds under a name.
    """
    for word in _words({name: table for name, table in tree.items() if name != "recipe"}):
        origins = [origin for registry in REGISTRIES if (origin := registry.plugin(word)) is not None]
        is_code = ":" in word or word.endswith(".py") or bool(origins)
        if is_code and not {word, *origins} & set(owner.methods):
            raise RefusedError(f"The server asks for the code {word!r}, which client.toml does not list under methods.")
    return owner_config(resolve(tree), owner)


REGISTRIES: tuple[Registry[Any], ...] = (methods, backbones, datasets)
"""Whatever a recipe can name that is code."""


def _words(value: Any) -> Iterator[str]:
    """Every string in a tree."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _words(key)
            yield from _words(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)


def own_data(directory: ClientDirectory, wanted: DataConfig) -> Dataset:
    """This client's samples in the size and with the channels that the recipe asks for; read once."""
    config = directory.config
    path = Path(os.path.expanduser(config.data or ""))
    path = path if path.is_absolute() else directory.path / path
    return _load(str(path), config.layout, wanted.image_size, wanted.channels)


@lru_cache(maxsize=1)
def _load(path: str, layout: str, image_size: int | None, channels: int | None) -> Dataset:
    kind = "npz" if path.endswith(".npz") else "folder"
    values = {"dataset": kind, "path": path, "layout": layout, "image_size": image_size, "channels": channels}
    return load_dataset(DataConfig.model_validate({**values, "test_fraction": 0.0}, strict=False))


def run_info_of(values: dict[str, Any], config: Config) -> RunInfo:
    """Return the facts about a run, from the values in its terms."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return RunInfo(**{**fields, "sections": config.method_sections})


def provisional_run_info(dataset: Dataset, question: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as they would be with this client's data alone, to see whether the method can run on it."""
    return {
        "input_shape": dataset.input_shape,
        "mean": dataset.mean,
        "std": dataset.std,
        "num_classes": None,
        "num_clients": int(question["num_clients"]),
        "num_rounds": int(question["num_rounds"]),
    }
