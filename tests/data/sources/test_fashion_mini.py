import importlib.util
import io
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.sources.conftest import DEBIAN_FOLDER
from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.sources import idx

SHIPPED = files("unisono.data") / "files" / "fashion_mini.npz"
ZLIB_OF_SHIPPED = "1.2.13"


def test_it_is_small_balanced_and_looks_like_clothing():
    assert len(SHIPPED.read_bytes()) < 6_000_000
    dataset = load_dataset(DataConfig())
    assert dataset.samples.shape == (10_000, 1, 28, 28)
    assert dataset.test_samples.shape == (2_000, 1, 28, 28)
    assert dataset.labels.bincount().tolist() == [1000] * 10
    assert dataset.test_labels.bincount().tolist() == [200] * 10
    assert dataset.class_names == idx.FASHION_CLASSES
    # Near the published statistics of the whole set.
    assert dataset.mean == pytest.approx((0.2860,), abs=0.003)
    assert dataset.std == pytest.approx((0.3530,), abs=0.003)


def test_labels_belong_to_their_images():
    dataset = load_dataset(DataConfig())
    means = torch.stack([dataset.samples[dataset.labels == label].float().mean(0) for label in range(10)])
    nearest = torch.cdist(dataset.test_samples.flatten(1).float(), means.flatten(1)).argmin(1)
    # Nearest class means reach 0.68 on the whole set.
    assert (nearest == dataset.test_labels).float().mean() > 0.6


def test_no_test_image_is_a_training_image():
    dataset = load_dataset(DataConfig())
    train = {bytes(image) for image in dataset.samples.flatten(1).numpy()}
    assert sum(bytes(image) in train for image in dataset.test_samples.flatten(1).numpy()) == 0


def test_the_licence_is_beside_it():
    text = (files("unisono.data") / "files" / "fashion_mini.LICENSE.txt").read_text()
    assert "MIT License" in text
    assert "Copyright (c) 2017 Zalando SE" in text


def test_a_path_means_other_data():
    with pytest.raises(UserError, match=r"set data\.dataset to folder"):
        load_dataset(DataConfig(path="photos"))


def test_the_script_makes_the_shipped_file_again():
    if not DEBIAN_FOLDER.is_dir():
        pytest.skip("needs the files of the Debian package dataset-fashion-mnist")
    script = Path(__file__).parents[3] / "scripts" / "make_fashion_mini.py"
    spec = importlib.util.spec_from_file_location("make_fashion_mini", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    packed = module.pack(idx.read_idx_folder(DEBIAN_FOLDER, "fashion-mnist", idx.FASHION_CLASSES))
    with np.load(io.BytesIO(packed)) as made, np.load(io.BytesIO(SHIPPED.read_bytes())) as shipped:
        assert set(made) == set(shipped)
        for key in shipped:
            np.testing.assert_array_equal(made[key], shipped[key])
    if zlib.ZLIB_RUNTIME_VERSION == ZLIB_OF_SHIPPED:
        assert packed == SHIPPED.read_bytes()
