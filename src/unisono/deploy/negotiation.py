"""Negotiation before a run: the properties of the data that clients share, and the checks that each client makes."""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median, median_low
from typing import Any

import torch
from torch import Tensor

from unisono import __version__
from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.core.method import RunInfo, methods
from unisono.core.registry import Registry
from unisono.data.datasets import DataConfig, Dataset, datasets, load_dataset
from unisono.deploy.bounds import check_run_info
from unisono.deploy.directories import VERSION_FILE, ClientConfig, ClientDirectory
from unisono.deploy.policy import owner_config
from unisono.deploy.policy_tables import BUILT_IN
from unisono.deploy.refusal import RefusedError
from unisono.deploy.release import rounded
from unisono.federation.aggregate import AggregationConfig
from unisono.models.backbones import backbones
from unisono.runs.files import make_directory, write_atomically

log = logging.getLogger("unisono.client")
Description = Mapping[str, Any]

RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_WORD = 500
MOST_SAMPLES = 10**9
LARGEST_NUMBER = 1e6
"""Of a mean or a deviation: images lie in [0, 1], series are measured in sensible units."""
MOST_TIMES_MEDIAN = 10
"""No client counts for more than this many times the median number of samples, whatever it says."""


@dataclass(frozen=True)
class DataSpec:
    """Shape and normalisation of the samples of a run.

    Args:
        shape: of one sample.
        mean: per channel, over the samples of all clients that fit.
        std: per channel, likewise.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def rejection_reason(self, description: Description) -> str | None:
        """Return why a client's samples do not fit, None if they do."""
        problem = invalid(description)
        if problem is not None:
            return problem
        shape = tuple(description["shape"])
        if shape != self.shape:
            kind = "images" if len(shape) == 3 else "series"
            return (
                f"its samples are {kind} of shape {shape}, and this federation learns on {self.shape}; "
                "set data.image_size and data.channels in the recipe, or convert the samples"
            )
        return None


def invalid(description: Description) -> str | None:
    """Return why a description cannot be meant seriously, None if it can; it comes from a client and may hold anything."""
    shape, samples = description.get("shape"), description.get("samples")
    if not isinstance(shape, list | tuple) or not 2 <= len(shape) <= 3 or not all(_is_count(edge, 2**16) for edge in shape):
        return "its description has no shape of two or three positive whole numbers"
    if not _is_count(samples, MOST_SAMPLES):
        return "it has no samples" if samples == 0 else "its description has no sensible number of samples"
    for name, least in (("mean", -LARGEST_NUMBER), ("std", 0.0)):
        numbers = description.get(name)
        if not isinstance(numbers, list | tuple) or len(numbers) != shape[0]:
            return f"its description has no {name} for each channel"
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= LARGEST_NUMBER:
                return f"its description has a {name} that is no sensible number"
    return None


def capped_weights(sizes: Mapping[int, int], weight_of: Callable[[int], float], aggregation: AggregationConfig) -> str | None:
    """Return a sentence about the clients that count for less than their samples, None where there are none.

    Args:
        sizes: samples by client.
        weight_of: the method's weight of so many samples.
        aggregation: the run's.
    """
    if aggregation.weighting == "uniform" or len(sizes) < 2:
        return None
    most = {client: weight_of(number) for client, number in sizes.items()}
    middle, total = median(most.values()), sum(most.values())
    counted = {
        client: min(aggregation.capped(weight, total - weight), MOST_TIMES_MEDIAN * middle) for client, weight in most.items()
    }
    counts = sum(counted.values())
    lowered = [
        f"client {client} brings {weight / total:.0%} of all samples and counts for {counted[client] / counts:.0%}"
        for client, weight in sorted(most.items())
        if counted[client] < weight
    ]
    if not lowered:
        return None
    return f"{'; '.join(lowered)}: no client counts for more than {MOST_TIMES_MEDIAN} times the median" + (
        "" if aggregation.max_weight_share is None else ", or than aggregation.max_weight_share of a mean"
    )


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def negotiate(descriptions: Mapping[int, Description]) -> DataSpec:
    """Return the shape that most clients bring, and the mean and deviation of all samples of that shape.

    If two shapes are equally frequent, it is that of the client with the lowest number. Descriptions that cannot be meant
    seriously do not count, and no client counts for more than ten times the median.

    Args:
        descriptions: by client; ``shape``, ``samples``, and ``mean`` and ``std`` per channel.
    """
    valid = {client: descriptions[client] for client in sorted(descriptions) if invalid(descriptions[client]) is None}
    if not valid:
        raise UserError("No client has described its data: see the notes above, and 'unisono deploy status'.")
    shape = Counter(tuple(description["shape"]) for description in valid.values()).most_common(1)[0][0]
    fitting = [description for description in valid.values() if tuple(description["shape"]) == shape]
    most = MOST_TIMES_MEDIAN * median_low(description["samples"] for description in fitting)
    counts = [min(description["samples"], most) for description in fitting]
    total = sum(counts)
    means, deviations = [], []
    for channel in range(shape[0]):
        parts = [(n, float(d["mean"][channel]), float(d["std"][channel])) for n, d in zip(counts, fitting, strict=True)]
        mean = sum(count * value for count, value, _ in parts) / total
        square = sum(count * (deviation**2 + value**2) for count, value, deviation in parts) / total
        means.append(mean)
        deviations.append(max(math.sqrt(max(square - mean**2, 0.0)), 1e-6))
    return DataSpec(shape, tuple(means), tuple(deviations))


def checked_config(tree: dict[str, Any], owner: ClientConfig) -> Config:
    """Return the server's config as this client follows it; refuse code that its owner has not agreed to.

    A registry imports whatever is written ``package.module:NAME`` or ``file.py``, and what another package adds under a name.
    """
    allowed = {*owner.allow.methods, *owner.allow.code}
    for word in _words(tree):
        if len(word) > MOST_WORD or not word.isprintable():
            raise RefusedError(f"a recipe has words of at most {MOST_WORD} printable characters, for its owner reads them")
    for word in _words({name: table for name, table in tree.items() if name != "recipe"}):
        origins = [origin for registry in REGISTRIES if (origin := registry.plugin(word)) is not None]
        is_code = ":" in word or word.endswith(".py") or bool(origins)
        if is_code and not {word, *origins} & allowed:
            raise RefusedError(
                f"The server asks for the code {word!r}, which client.toml does not list under allow.methods or allow.code.",
                "allow.methods",
            )
    name = str(tree.get("method", {}).get("name"))
    is_built_in = name in methods and methods.plugin(name) is None
    if not (is_built_in and BUILT_IN in owner.allow.methods) and not {name, str(methods.plugin(name))} & allowed:
        raise RefusedError(f"client.toml: allow.methods does not list {name!r}.", "allow.methods")
    if dict(tree.get("model", {})).get("pretrained") is not None:
        raise RefusedError("model.pretrained names a file of the server, and this client reads none of its own for it")
    return owner_config(resolve(tree), owner)


REGISTRIES: tuple[Registry[Any], ...] = (methods, backbones, datasets)
"""Whatever a recipe can name that is code."""


def _words(value: Any) -> Iterator[str]:
    """Yield every string in a tree."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _words(key)
            yield from _words(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)


def load_client_data(directory: ClientDirectory, wanted: DataConfig) -> Dataset:
    """Return this client's samples in the size and with the channels that the recipe asks for; read once."""
    config = directory.config
    path = Path(os.path.expanduser(config.data or ""))
    path = path if path.is_absolute() else directory.path / path
    return _load(str(path), config.layout, config.bits, wanted.image_size, wanted.channels)


@lru_cache(maxsize=1)
def _load(path: str, layout: str, bits: int | None, image_size: int | None, channels: int | None) -> Dataset:
    kind = "npz" if path.endswith(".npz") else "folder"
    values = {"dataset": kind, "path": path, "layout": layout, "bits": bits, "image_size": image_size, "channels": channels}
    return load_dataset(DataConfig.model_validate({**values, "test_fraction": 0.0}, strict=False))


def run_info_of(values: dict[str, Any], config: Config) -> RunInfo:
    """Return the facts about a run, from the values in its specification."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    info = RunInfo(**{**fields, "sections": config.method_sections})
    check_run_info(info, config)
    return info


def run_name(value: Any) -> str:
    """Return the name of a run; refuse one that is no short word, for it stands in the ledger for ever."""
    if not isinstance(value, str) or not RUN_NAME.fullmatch(value):
        raise RefusedError("the name of a run has 1 to 64 letters, digits, dots or hyphens")
    return value


def told_number(num_samples: int, owner: ClientConfig) -> int:
    """Return the number of samples as the server may know it: exact, with two digits and never too large, or 1 for all."""
    kind = owner.require.statistics
    return num_samples if kind == "exact" else int(rounded(num_samples, 2, down=True)) if kind == "rounded" else 1


def described(dataset: Dataset, config: Config, owner: ClientConfig) -> dict[str, Any]:
    """Return what the server may know of a client's data, as exact as its owner allows.

    Args:
        dataset: the client's.
        config: the run's.
        owner: the table of the client.
    """
    kind = owner.require.statistics
    mean, std = list(dataset.mean), list(dataset.std)
    if kind == "none":
        if config.model.normalize_input is True:
            raise RefusedError(
                "require.statistics = 'none': set model.normalize_input to 'half' or false in the recipe.", "require.statistics"
            )
        mean, std = [0.5] * len(mean), [0.5] * len(std)
    if kind == "rounded":
        images = dataset.samples.dtype == torch.uint8  # their values lie in [0, 1]; series have any scale
        mean, std = ([round(x, 2) if images else rounded(x, 2) for x in values] for values in (mean, std))
        std = [max(value, 0.01) if images else value for value in std]
    return {
        "client": owner.client_id,
        "samples": told_number(len(dataset.samples), owner),
        "shape": list(dataset.input_shape),
        "mean": mean,
        "std": std,
    }


def visible_labels(dataset: Dataset, classes: Sequence[str], owner: ClientConfig) -> Tensor:
    """Return the labels that a method may see here, -1 for all others.

    A label is seen if recipe and owner both name its class, and enough samples here have it. If fewer samples than
    ``bounds.min_drawn`` have a label then, none is seen: an update of them alone would tell too much.

    Args:
        dataset: the client's.
        classes: those of the recipe; their order gives the numbers.
        owner: the table of the client.
    """
    table = owner.labels
    if dataset.labels is None:  # a semi-supervised method learns from them all the same
        return torch.full((len(dataset.samples),), -1)
    known = {name: number for number, name in enumerate(classes) if name in table.classes}
    labels = torch.tensor([*(known.get(name, -1) for name in dataset.class_names), -1])[dataset.labels]
    counts = torch.bincount(labels[labels >= 0], minlength=len(classes))
    rare = torch.cat([counts < table.min_per_class, torch.tensor([True])])
    labels = torch.where(rare[labels], -1, labels)
    return labels if int((labels >= 0).sum()) >= owner.bounds.min_drawn else torch.full_like(labels, -1)


def note_server_version(directory: ClientDirectory, version: Any) -> None:
    """Keep the version that the server runs, for ``unisono deploy check``, and warn of another than this one."""
    if not isinstance(version, str) or not RUN_NAME.fullmatch(version):
        return
    file = directory.path / VERSION_FILE
    if not file.is_file() or file.read_text() != version:
        make_directory(file.parent, 0o700)
        write_atomically(file, version.encode())
    if version != __version__:
        log.warning("the server runs unisono %s, and this client %s: all machines need the same", version, __version__)


def version_note(description: Description) -> str | None:
    """Return a sentence about a client that runs another version of unisono than this server; None if it does not."""
    version = description.get("version")
    if version == __version__:
        return None
    told = version if isinstance(version, str) and RUN_NAME.fullmatch(version) else "of an unknown version"
    return f"runs unisono {told}, and this server {__version__}: all machines need the same"


def provisional_run_info(dataset: Dataset, question: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return the facts as they would be with this client's data alone, to see whether the method can run on it."""
    return {
        "input_shape": dataset.input_shape,
        "mean": dataset.mean,
        "std": dataset.std,
        "num_classes": len(config.labels.classes) or None,
        "num_clients": int(question["num_clients"]),
        "num_rounds": int(question["num_rounds"]),
    }
