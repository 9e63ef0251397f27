import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset


def test_all_digits_are_there_once_and_scaled():
    dataset = load_dataset(DataConfig(dataset="digits"))
    assert dataset.samples.shape == (1438, 1, 8, 8)
    assert dataset.test_samples.shape == (359, 1, 8, 8)
    assert dataset.samples.max() == 255
    content = load_digits()
    expected = sorted(zip(map(bytes, np.round(content.data * 255 / 16).astype(np.uint8)), content.target.tolist(), strict=True))
    samples, labels = torch.cat([dataset.samples, dataset.test_samples]), torch.cat([dataset.labels, dataset.test_labels])
    assert sorted(zip(map(bytes, samples.flatten(1).numpy()), labels.tolist(), strict=True)) == expected


def test_the_split_is_stratified_and_always_the_same():
    dataset, again = (load_dataset(DataConfig(dataset="digits", test_fraction=fraction)) for fraction in (0.2, 0.5))
    assert torch.equal(dataset.test_samples, again.test_samples)
    shares = dataset.test_labels.bincount() / (dataset.labels.bincount() + dataset.test_labels.bincount())
    assert (shares - 0.2).abs().max() < 0.006


def test_a_path_means_other_data():
    with pytest.raises(UserError, match=r"data\.path is 'photos', but the data set digits reads no path"):
        load_dataset(DataConfig(dataset="digits", path="photos"))
