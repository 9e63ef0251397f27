import numpy as np
import pytest

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset

NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


@pytest.fixture
def arrays(tmp_path):
    """The official files with a few images; returns them by file, shape (num, 3, 96, 96), as they should be seen."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    arrays = {part: rng.integers(0, 256, (num, 3, 96, 96), dtype=np.uint8) for part, num in
              (("train", 10), ("test", 5), ("unlabeled", 7))}  # fmt: skip
    for part, images in arrays.items():
        # Column by column, as MATLAB writes.
        (folder / f"{part}_X.bin").write_bytes(np.ascontiguousarray(images.swapaxes(2, 3)).tobytes())
    (folder / "train_y.bin").write_bytes(bytes(range(1, 11)))
    (folder / "test_y.bin").write_bytes(bytes(range(1, 6)))
    (folder / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    return arrays


def test_the_labelled_part_is_read(tmp_path, arrays):
    dataset = load_dataset(DataConfig(dataset="stl10", path=str(tmp_path)))
    np.testing.assert_array_equal(dataset.samples.numpy(), arrays["train"])
    np.testing.assert_array_equal(dataset.test_samples.numpy(), arrays["test"])
    assert dataset.labels.tolist() == list(range(10))
    assert dataset.test_labels.tolist() == list(range(5))
    assert dataset.class_names == NAMES


def test_the_unlabelled_part_follows_with_unknown_labels(tmp_path, arrays):
    dataset = load_dataset(DataConfig(dataset="stl10", path=str(tmp_path), unlabelled=True))
    np.testing.assert_array_equal(dataset.samples.numpy(), np.concatenate([arrays["train"], arrays["unlabeled"]]))
    assert dataset.labels.tolist() == [*range(10), *[-1] * 7]
    assert (dataset.num_classes, dataset.num_unlabelled, dataset.num_clustered) == (10, 7, 10)
    half = load_dataset(DataConfig(dataset="stl10", path=str(tmp_path), unlabelled=True, limit=5))
    np.testing.assert_array_equal(half.samples.numpy(), np.concatenate([arrays["train"][:5], arrays["unlabeled"][:4]]))
    assert (half.num_unlabelled, half.labels.tolist()) == (4, [0, 1, 2, 3, 4, -1, -1, -1, -1])


@pytest.mark.parametrize("limits", [{}, {"limit": 10}], ids=["read joined", "joined afterwards"])
def test_all_labelled_images_and_then_the_unlabelled(tmp_path, arrays, limits):
    """The 13,000 of Contrastive Clustering and FedMCC."""
    config = DataConfig(dataset="stl10", path=str(tmp_path), part="train+test", unlabelled=True, **limits)
    dataset = load_dataset(config)
    whole = np.concatenate([arrays["train"], arrays["test"], arrays["unlabeled"]])
    np.testing.assert_array_equal(dataset.samples.numpy(), whole)
    assert dataset.labels.tolist() == [*range(10), *range(5), *[-1] * 7]
    assert (dataset.num_clustered, len(dataset.test_samples)) == (15, 0)


@pytest.mark.usefixtures("arrays")
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train_X.bin", b"\0" * 27647, r"train_X\.bin is truncated"),
        ("test_X.bin", b"", r"test_X\.bin is truncated"),
        ("train_y.bin", bytes(9), "10 training images but 9 labels"),
        ("test_y.bin", bytes(3), "test_labels of the data set stl10"),
        ("test_y.bin", None, r"lacks the file test_y\.bin"),
    ],
)
def test_damage_is_one_sentence(tmp_path, file, content, message):
    path = tmp_path / "stl10_binary" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_dataset(DataConfig(dataset="stl10", path=str(tmp_path)))
