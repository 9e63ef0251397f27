import gzip
import struct

import numpy as np
import pytest
import torch

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset
from unisono.data.sources import idx
from unisono.data.sources.idx import FILES, read_idx


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_set(folder, packed=True, seed=0):
    """Four official files; returns the arrays in them."""
    rng = np.random.default_rng(seed)
    arrays = []
    for file, count in zip(FILES, (20, 20, 10, 10), strict=True):
        array = (
            rng.integers(0, 256, (count, 28, 28), dtype=np.uint8) if "images" in file else np.arange(count, dtype=np.uint8) % 10
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array))) if packed else (folder / file).write_bytes(
            idx_bytes(array)
        )
        arrays.append(array)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_official_files_are_read(tmp_path, name, packed):
    images, labels, test_images, test_labels = write_set(tmp_path, packed)
    dataset = load_dataset(DataConfig(dataset=name, path=str(tmp_path)))
    np.testing.assert_array_equal(dataset.samples[:, 0].numpy(), images)
    np.testing.assert_array_equal(dataset.test_samples[:, 0].numpy(), test_images)
    np.testing.assert_array_equal(dataset.labels.numpy(), labels)
    np.testing.assert_array_equal(dataset.test_labels.numpy(), test_labels)
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.num_classes == 10


def test_a_set_of_its_own_folder_comes_before_files_of_the_same_name(tmp_path):
    write_set(tmp_path, seed=1)
    images, *_ = write_set(tmp_path / "FashionMNIST" / "raw", seed=2)
    dataset = load_dataset(DataConfig(dataset="fashion-mnist", path=str(tmp_path)))
    np.testing.assert_array_equal(dataset.samples[:, 0].numpy(), images)


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    config = DataConfig(dataset="fashion-mnist")
    places = [
        tmp_path / "debian",
        tmp_path / "home/.cache/unisono/fashion-mnist",
        tmp_path / "data/fashion-mnist",
    ]
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", places[0])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UNISONO_DATA", str(tmp_path / "data"))
    for seed, place in enumerate(places):
        images, *_ = write_set(place, seed=seed)
        np.testing.assert_array_equal(load_dataset(config).samples[:, 0].numpy(), images)
    # A path that holds no such files is an error, though all other places hold them.
    (tmp_path / "given").mkdir()
    with pytest.raises(UserError, match=r"in none of [^;]*given") as error:
        load_dataset(DataConfig(dataset="fashion-mnist", path=str(tmp_path / "given")))
    assert "debian" not in str(error.value).partition(";")[0]


def test_files_of_another_set_beside_the_folders_are_not_taken(tmp_path, monkeypatch):
    write_set(tmp_path)
    monkeypatch.setenv("UNISONO_DATA", str(tmp_path))
    with pytest.raises(UserError, match="needs the file train-images-idx3-ubyte"):
        load_dataset(DataConfig(dataset="fashion-mnist"))


def test_a_missing_set_says_what_where_and_whence(tmp_path, monkeypatch):
    monkeypatch.setenv("UNISONO_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(UserError) as error:
        load_dataset(DataConfig(dataset="mnist"))
    message = str(error.value)
    for part in ("mnist", "train-images-idx3-ubyte", str(tmp_path / "elsewhere/mnist"), "https://"):
        assert part in message


def test_a_missing_file_is_named(tmp_path):
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"lacks the file t10k-labels-idx1-ubyte in .*https://"):
        load_dataset(DataConfig(dataset="mnist", path=str(tmp_path)))


@pytest.mark.parametrize("damage", ["cut", "short", "long", "other", "empty", "header"])
@pytest.mark.parametrize("packed", [True, False])
def test_damage_is_one_sentence_about_the_file(tmp_path, damage, packed):
    whole = idx_bytes(np.zeros((5, 28, 28), dtype=np.uint8))
    content = {
        "short": whole[:-1],
        "long": whole + b"\0",
        "other": b"\x89PNG" + whole,
        "empty": b"",
        "header": whole[:9],
    }.get(damage, whole)
    stored = gzip.compress(content) if packed else content
    path = tmp_path / "images"
    (tmp_path / "images.gz" if packed else path).write_bytes(stored[: len(stored) // 2] if damage == "cut" else stored)
    with pytest.raises(UserError, match=r"images.*(truncated|promises|not an idx file)"):
        read_idx(path)


def test_more_labels_than_images_are_refused(tmp_path):
    write_set(tmp_path)
    (tmp_path / f"{FILES[1]}.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(21, dtype=np.uint8))))
    with pytest.raises(UserError, match="labels of the data set mnist"):
        load_dataset(DataConfig(dataset="mnist", path=str(tmp_path)))


def test_any_number_of_axes_is_read(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx_bytes(array))
    assert torch.equal(read_idx(tmp_path / "a"), torch.from_numpy(array))
