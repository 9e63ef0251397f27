import sys

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

hub = pytest.importorskip("datasets", reason="the package datasets is the extra hub")

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 8, 10, 3), dtype=np.uint8)
FEATURES = {"img": hub.Image(), "label": hub.ClassLabel(names=["a", "b", "c"]), "who": hub.Value("string")}


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.disable_progress_bars()


def make(rows, **features):
    columns = {
        "img": [Image.fromarray(PIXELS[row]) for row in rows],
        "label": [row % 3 for row in rows],
        "who": [f"u{row % 2}" for row in rows],
        **{name: [row % 3 for row in rows] for name in features},
    }
    return hub.Dataset.from_dict(columns, features=hub.Features({**FEATURES, **features}))


def load(path, **options):
    return load_dataset(DataConfig(dataset="hub", path=str(path), **options))


def rows_of(samples):
    whole = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    return [int((whole == sample).flatten(1).all(1).nonzero()) for sample in samples]


def saved(folder):
    hub.DatasetDict({"train": make(range(20)), "test": make(range(20, 30))}).save_to_disk(folder)


def parquets(folder):
    folder.mkdir()
    make(range(20)).to_parquet(folder / "train-00000-of-00001.parquet")
    make(range(20, 30)).to_parquet(folder / "test-00000-of-00001.parquet")


@pytest.mark.parametrize("write", [saved, parquets])
def test_a_directory_with_splits_is_read_offline(tmp_path, write):
    write(tmp_path / "d")
    dataset = load(tmp_path / "d", client_column="who")
    assert rows_of(dataset.samples) == list(range(20))
    assert rows_of(dataset.test_samples) == list(range(20, 30))
    assert dataset.labels.tolist() == [row % 3 for row in range(20)]
    assert dataset.test_labels.tolist() == [row % 3 for row in range(20, 30)]
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.owner_names == ("u0", "u1")
    assert dataset.owners.tolist() == [row % 2 for row in range(20)]


@pytest.mark.parametrize("kind", ["parquet", "disk"])
def test_without_a_test_split_a_fraction_is_held_out(tmp_path, kind):
    whole = make(range(30))
    path = tmp_path / f"d.{kind}"
    whole.to_parquet(path) if kind == "parquet" else whole.save_to_disk(path)
    dataset = load(path)
    train, test = rows_of(dataset.samples), rows_of(dataset.test_samples)
    assert sorted(train + test) == list(range(30))
    assert dataset.labels.tolist() == [row % 3 for row in train]
    assert dataset.test_labels.tolist() == [row % 3 for row in test]
    assert dataset.test_labels.bincount().tolist() == [2, 2, 2]


def test_limits_size_channels_and_splits(tmp_path):
    saved(tmp_path / "d")
    dataset = load(tmp_path / "d", split="test", test_split="train", limit=6, test_limit=3, image_size=5, channels=1)
    assert dataset.samples.shape == (6, 1, 5, 5)
    assert dataset.labels.bincount().tolist() == [2, 2, 2]
    assert dataset.test_labels.bincount().tolist() == [1, 1, 1]


def test_images_alone_are_enough_and_any_column_can_be_the_label(tmp_path):
    make(range(20)).remove_columns(["label"]).save_to_disk(tmp_path / "d")
    assert load(tmp_path / "d").labels is None
    dataset = load(tmp_path / "d", label_column="who")
    assert dataset.class_names == ("u0", "u1")
    assert dataset.labels.tolist() == [row % 2 for row in rows_of(dataset.samples)]


def test_two_label_columns_need_a_choice(tmp_path):
    make(range(20), coarse=hub.ClassLabel(names=["p", "q", "r"])).save_to_disk(tmp_path / "d")
    with pytest.raises(UserError, match=r"data\.label_column must be set: .* 2 are of kind ClassLabel"):
        load(tmp_path / "d")
    assert load(tmp_path / "d", label_column="coarse").class_names == ("p", "q", "r")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "x"}, r"data\.split must be one of train, test, got 'x'"),
        ({"test_split": "x"}, r"data\.test_split must be one of train, test"),
        ({"label_column": "x"}, r"data\.label_column must be one of img, label, who"),
        ({"image_column": "who"}, "Item 0 must be an image"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tmp_path, options, message):
    saved(tmp_path / "d")
    with pytest.raises(UserError, match=message):
        load(tmp_path / "d", **options)


def test_what_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="'nobody/nothing' cannot be loaded by the package datasets"):
        load("nobody/nothing")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"bad\.parquet' cannot be loaded"):
        load(tmp_path / "bad.parquet")
    with pytest.raises(UserError, match=r"data\.path must name a repository"):
        load_dataset(DataConfig(dataset="hub"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[hub\]'"):
        load("nobody/nothing")
