"""Shoulder exercises of ten people, recorded by a wrist-worn sensor: series with natural clients.

Burns et al., Shoulder physiotherapy exercise recognition: machine learning the inertial signals from a smartwatch,
arXiv:1802.01489. The recordings are part of the package seglearn (BSD licence), extra ``series``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.arrays import number
from unisono.data.sources.locate import reading, refuse_path
from unisono.data.sources.select import hold_out


@datasets.register("watch")
def load(config: DataConfig) -> Dataset:
    """Windows of 6 channels (acceleration in g, rotation), 7 exercises, 10 owners: the subjects.

    Each of the 140 recordings is one subject doing one exercise with one arm. ``test_fraction`` of the recordings of every
    exercise are held out whole, so that overlapping windows never stand on both sides.
    """
    refuse_path(config)
    content = _recordings()
    shortest = min(map(len, content["X"]))
    if config.window > shortest:
        raise UserError(f"data.window must be at most {shortest}, the length of the shortest recording, got {config.window}.")
    held_out = hold_out(np.asarray(content["y"], dtype=np.int64), config.test_fraction)
    samples, recordings = _windows(content["X"], ~held_out, config)
    test_samples, test_recordings = _windows(content["X"], held_out, config)
    exercises = torch.from_numpy(np.asarray(content["y"], dtype=np.int64))
    subjects, subject_names = number(content["subject"].tolist(), None, "Subjects")
    return Dataset(
        "watch",
        samples,
        exercises[recordings],
        test_samples,
        exercises[test_recordings],
        class_names=tuple(content["y_labels"]),
        owners=subjects[recordings],
        owner_names=subject_names,
    )


def _windows(series: list[NDArray[Any]], chosen: NDArray[np.bool_], config: DataConfig) -> tuple[Tensor, Tensor]:
    """Return windows of the chosen recordings, float32 of shape (num, channels, window), and the recording of each."""
    cut = [torch.empty(0, series[0].shape[1], config.window)]
    numbers = [torch.empty(0, dtype=torch.int64)]
    for position in np.flatnonzero(chosen).tolist():
        recording = torch.from_numpy(series[position].astype(np.float32))
        cut.append(recording.unfold(0, config.window, config.stride))
        numbers.append(torch.full((len(cut[-1]),), position))
    return torch.cat(cut), torch.cat(numbers)


def _recordings() -> dict[str, Any]:
    """Return the result of ``seglearn.datasets.load_watch``.

    The file is read without importing seglearn, which takes a second and needs scikit-learn and pandas of the right age.
    """
    package = importlib.util.find_spec("seglearn")
    if package is None or package.origin is None:
        raise UserError("The data set watch needs the package seglearn; install it with: pip install 'unisono[series]'.")
    path = Path(package.origin).parent / "data" / "watch_dataset.npy"
    with reading(path):
        # Pickled, and as much to be trusted as the installed package it is part of.
        return np.load(path, allow_pickle=True).item()  # type: ignore[no-any-return]
