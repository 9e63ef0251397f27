"""Stand-ins for data sets that are not on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unisono.core.errors import MissingDataError, UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.synthetic import FACTS, SyntheticDataset, load_or_imitate


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UNISONO_DATA", raising=False)
    monkeypatch.setattr("unisono.data.sources.idx.DEBIAN_FOLDER", tmp_path)


@pytest.mark.parametrize("name", sorted(FACTS.keys() - {"folder"}))
def test_official_sizes(name: str) -> None:
    with pytest.raises(MissingDataError):
        load_dataset(DataConfig(dataset=name))
    found, facts = load_or_imitate(DataConfig(dataset=name)), FACTS[name]
    assert isinstance(found, SyntheticDataset)
    assert (len(found.samples), len(found.test_samples)) == (facts.num_train, facts.num_test)
    assert (found.input_shape, found.num_classes) == (facts.shape, facts.num_classes)
    assert found.labels is not None
    counts = found.labels.bincount()
    assert int(counts.max() - counts.min()) <= 1
    assert max(found.mean) < 1
    assert min(found.std) > 0.2


def test_large_images_take_no_memory_and_differ() -> None:
    found = load_or_imitate(DataConfig(dataset="tiny-imagenet", image_size=224))
    assert found.samples.shape == (100_000, 3, 224, 224)
    assert found.samples.untyped_storage().nbytes() < 1e6
    some = found.samples[torch.tensor([0, 1, 99_999])].float()
    assert float((some[0] - some[1]).abs().mean()) > 50
    assert float((some[0] - some[2]).abs().mean()) > 50


def test_options_choose_rows_and_shapes_as_they_do_for_real_data() -> None:
    found = load_or_imitate(DataConfig(dataset="cifar100", limit=1000, test_limit=200, channels=1, image_size=16))
    assert found.samples.shape == (1000, 1, 16, 16)
    assert len(found.test_samples) == 200
    assert found.labels is not None
    assert found.labels.bincount().tolist() == [10] * 100
    with_more = load_or_imitate(DataConfig(dataset="stl10", unlabelled=True))
    assert with_more.labels is not None
    assert (len(with_more.samples), int((with_more.labels < 0).sum())) == (105_000, 100_000)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    config = DataConfig(dataset="folder", path=str(tmp_path / "nowhere"), layout="clients/classes", image_size=64)
    found = load_or_imitate(config)
    assert found.input_shape == (3, 64, 64)
    assert found.owners is not None
    assert len(found.samples) + len(found.test_samples) == 13_000
    flat = load_or_imitate(DataConfig(dataset="folder", path=str(tmp_path / "nowhere"), layout="flat"))
    assert (flat.labels, flat.owners) == (None, None)


def test_real_data_stay_real_unless_they_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = load_or_imitate(DataConfig(dataset="digits", image_size=16))
    assert torch.equal(small.samples, load_dataset(DataConfig(dataset="digits", image_size=16)).samples)
    monkeypatch.setattr("unisono.data.synthetic.LARGEST", 1000)
    large = load_or_imitate(DataConfig(dataset="digits", image_size=16))
    assert isinstance(large, SyntheticDataset)
    assert large.labels is not None
    assert small.labels is not None
    assert torch.equal(large.labels, small.labels)


def test_damage_is_no_absence(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    (folder / "train_X.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="lacks the file train_y"):
        load_or_imitate(DataConfig(dataset="stl10", path=str(tmp_path)))
