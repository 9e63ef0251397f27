"""A fingerprint changes with any sample or label, and with nothing else."""

from dataclasses import replace

import torch

from unisono.data.datasets import Dataset
from unisono.data.fingerprint import fingerprint


def make(count: int = 5000) -> Dataset:
    samples = torch.arange(count * 4).reshape(count, 1, 2, 2).to(torch.uint8)
    return Dataset("x", samples, torch.arange(count) % 3, samples[:7].clone(), torch.arange(7) % 3, ("a", "b", "c"))


def test_the_same_data_have_the_same_fingerprint() -> None:
    assert fingerprint(make()) == fingerprint(make())
    assert len(fingerprint(make())) == 8


def test_any_change_shows() -> None:
    data = make()
    found = {fingerprint(data)}
    for tensor in (data.samples, data.labels, data.test_samples, data.test_labels):
        assert tensor is not None
        tensor.view(-1)[-1] += 1
        found.add(fingerprint(data))
        tensor.view(-1)[-1] -= 1
    found.add(fingerprint(replace(data, owners=torch.zeros(5000, dtype=torch.int64), owner_names=("o",))))
    found.add(fingerprint(replace(data, samples=data.samples.flip(0))))
    found.add(fingerprint(replace(data, labels=None, test_labels=None, class_names=())))
    assert len(found) == 8
