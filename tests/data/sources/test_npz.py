import numpy as np
import pytest
import torch

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 3, 6, 8), dtype=np.uint8)
SERIES = RNG.normal(size=(20, 2, 9))


def load(path, **arrays):
    np.savez(path / "d.npz", **arrays)
    return load_dataset(DataConfig(dataset="npz", path=str(path / "d.npz"), test_fraction=0.0))


@pytest.mark.parametrize("key", ["x", "images"])
def test_images_with_channels_first_last_or_none(tmp_path, key):
    expected = torch.from_numpy(IMAGES)
    assert torch.equal(load(tmp_path, **{key: IMAGES}).samples, expected)
    assert torch.equal(load(tmp_path, **{key: np.moveaxis(IMAGES, 1, 3)}).samples, expected)
    assert torch.equal(load(tmp_path, **{key: IMAGES[:, 0]}).samples, expected[:, :1])


@pytest.mark.parametrize("key", ["x", "series"])
def test_series(tmp_path, key):
    dataset = load(tmp_path, **{key: SERIES})
    assert dataset.samples.dtype == torch.float32
    np.testing.assert_array_equal(dataset.samples.numpy(), SERIES.astype(np.float32))
    assert dataset.labels is None


def test_all_arrays_find_their_place(tmp_path):
    dataset = load(
        tmp_path,
        x=IMAGES,
        y=np.arange(20) % 3,
        x_test=IMAGES[:5],
        y_test=np.arange(5) % 3,
        client=np.array(["ann", "bob"] * 10),
        class_names=np.array(["p", "q", "r"]),
    )
    assert dataset.name == "d"
    assert dataset.labels.tolist() == [number % 3 for number in range(20)]
    assert dataset.test_labels.tolist() == [0, 1, 2, 0, 1]
    assert dataset.class_names == ("p", "q", "r")
    assert dataset.owner_names == ("ann", "bob")
    assert dataset.owners.tolist() == [0, 1] * 10
    assert len(dataset.test_samples) == 5


def test_labels_of_any_values_become_positions(tmp_path):
    dataset = load(
        tmp_path, x=IMAGES, y=np.array([7, 3] * 10), x_test=IMAGES[:3], y_test=np.array([5, 3, -1]), owner=np.arange(20)
    )
    assert dataset.class_names == ("3", "5", "7")
    assert dataset.labels.tolist() == [2, 0] * 10
    assert dataset.test_labels.tolist() == [1, 0, -1]
    assert dataset.owner_names[10:12] == ("10", "11")


def test_without_a_test_part_a_fraction_is_held_out(tmp_path):
    np.savez(tmp_path / "d.npz", x=IMAGES, y=np.arange(20) % 2)
    dataset = load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "d.npz")))
    assert len(dataset.samples) == 16
    assert dataset.test_labels.bincount().tolist() == [2, 2]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES.astype(np.int64)}, "x of .* must be images .* got int64"),
        ({"x": IMAGES / 100}, r"must lie in \[0, 1\], got float64 .* divide them by 255"),
        ({"x": SERIES[:, 0]}, r"got float64 of shape \(20, 9\)"),
        ({"series": IMAGES[:, 0]}, "series of .* got uint8"),
        ({"images": SERIES - 9}, "must lie in"),
        ({"x": IMAGES[:, :, :, :3]}, "may have its channels on axis 1 or 3"),
        ({"x": IMAGES.reshape(20, 6, 4, 6)}, "no axis of channels"),
        ({"x": np.array([None, 1], dtype=object)}, "x of .* holds Python objects"),
        ({"x": IMAGES, "y": np.array([{}] * 20)}, "y of .* holds Python objects"),
        ({"x": IMAGES, "y": np.arange(19)}, r"y of .* must have shape \(20,\), got \(19,\)"),
        ({"x": IMAGES, "y": np.arange(20) / 2}, "Labels of .* must be integers or words"),
        ({"x": IMAGES, "x_test": IMAGES[:, :1]}, "must be alike"),
        ({"x": IMAGES, "client": np.zeros((20, 2))}, "client of .* must have shape"),
        ({"x": IMAGES, "images": IMAGES}, "must hold one array named x, images or series, got x, images"),
        ({"a": IMAGES}, "must hold one array named x, images or series, got a"),
        ({"x": IMAGES[:0]}, "has no training samples"),
        ({"x": np.full((4, 1, 5), np.nan)}, "not finite"),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence(tmp_path, arrays, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, **arrays)


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_truncated_file_is_named(tmp_path, kept, save):
    path = tmp_path / "d.npz"
    save(path, x=IMAGES)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(UserError, match=r"d\.npz.* is truncated or damaged"):
        load_dataset(DataConfig(dataset="npz", path=str(path)))


def test_flipped_bytes_are_noticed(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=IMAGES)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"d\.npz, array x, is truncated or damaged"):
        load_dataset(DataConfig(dataset="npz", path=str(path)))


def test_a_single_array_in_the_wrong_file_or_a_folder_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", IMAGES)
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    with pytest.raises(UserError, match=r"single array; write it with numpy\.savez"):
        load_dataset(DataConfig(dataset="npz", path=str(tmp_path / "d.npz")))
    with pytest.raises(UserError, match="is a folder"):
        load_dataset(DataConfig(dataset="npz", path=str(tmp_path)))
