"""The official files themselves, where UNISONO_DATA names a folder of them or Debian brought them."""

import pytest

from tests.data.sources.conftest import DEBIAN_FOLDER, REAL_DATA
from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.sources import idx

# Sizes, first labels and, where the literature gives them, means and deviations.
FACTS = {
    "mnist": (60_000, 10_000, (1, 28, 28), [5, 0, 4, 1, 9], (0.1307,), (0.3081,)),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), [9, 0, 0, 3, 0], (0.2860,), (0.3530,)),
    "cifar10": (50_000, 10_000, (3, 32, 32), [6, 9, 9, 4, 1], (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": (50_000, 10_000, (3, 32, 32), [19, 29, 0, 11, 1], (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "stl10": (5_000, 8_000, (3, 96, 96), [], None, None),
    "tiny-imagenet": (100_000, 10_000, (3, 64, 64), [], None, None),
}


@pytest.mark.parametrize("name", FACTS)
def test_official_files_are_what_the_literature_says(name, monkeypatch):
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", DEBIAN_FOLDER)
    num_train, num_test, shape, labels, mean, std = FACTS[name]
    try:
        dataset = load_dataset(DataConfig(dataset=name, path=REAL_DATA))
    except UserError as error:
        if "which is in none of" not in str(error):
            raise
        pytest.skip(f"there are no official files of {name}; set UNISONO_DATA to a folder of them")
    assert (len(dataset.samples), len(dataset.test_samples)) == (num_train, num_test)
    assert dataset.input_shape == shape
    assert dataset.labels[: len(labels)].tolist() == labels
    assert len(set(dataset.labels.bincount().tolist())) == 1 or name == "mnist"
    if mean is not None:
        assert dataset.mean == pytest.approx(mean, abs=1e-4)
        assert dataset.std == pytest.approx(std, abs=1e-4)
