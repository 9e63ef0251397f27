import numpy as np
import pytest
from PIL import Image

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, load_dataset


def write(root, names, size=(8, 8)):
    """One image per name, whose grey value is its position in the list."""
    for value, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).save(root / name)


def load(root, **options):
    return load_dataset(DataConfig(dataset="folder", path=str(root), **options))


def values(samples):
    return samples[:, 0, 0, 0].tolist()


NESTED = [f"{client}/{label}/{number}.png" for client in ("ann", "bob") for label in ("cat", "dog") for number in range(5)]


def test_subfolders_are_clients(tmp_path):
    write(tmp_path, NESTED)
    dataset = load(tmp_path)
    assert dataset.labels is None
    assert dataset.num_classes is None
    assert dataset.owner_names == ("ann", "bob")
    assert len(dataset.samples) == 16
    assert dataset.owners.tolist() == [value // 10 for value in values(dataset.samples)]
    assert sorted(values(dataset.samples) + values(dataset.test_samples)) == list(range(20))


def test_subfolders_are_classes(tmp_path):
    write(tmp_path, [f"{label}/{number}.png" for label in ("cat", "dog") for number in range(10)])
    dataset = load(tmp_path, layout="classes")
    assert dataset.owners is None
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [value // 10 for value in values(dataset.samples)]
    assert dataset.test_labels.tolist() == [value // 10 for value in values(dataset.test_samples)]
    assert dataset.test_labels.bincount().tolist() == [2, 2]


def test_subfolders_are_clients_of_classes(tmp_path):
    write(tmp_path, NESTED)
    dataset = load(tmp_path, layout="clients/classes")
    assert dataset.owners.tolist() == [value // 10 for value in values(dataset.samples)]
    assert dataset.labels.tolist() == [value // 5 % 2 for value in values(dataset.samples)]
    assert sorted(value // 5 for value in values(dataset.test_samples)) == [0, 1, 2, 3], "one of five of each client and class"


def test_subfolders_mean_nothing(tmp_path):
    write(tmp_path, ["0.png", "a/1.png", "a/b/2.png"])
    dataset = load(tmp_path, layout="flat", test_fraction=0.0)
    assert dataset.owners is None
    assert dataset.labels is None
    assert values(dataset.samples) == [0, 1, 2]
    assert dataset.test_samples.shape == (0, 3, 8, 8)


def test_train_and_test_are_the_parts_where_there_are_both(tmp_path):
    write(tmp_path, ["train/dog/0.png", "train/dog/1.png", "test/cat/2.png", "test/dog/3.png"])
    dataset = load(tmp_path, layout="classes")
    assert values(dataset.samples) == [0, 1]
    assert values(dataset.test_samples) == [2, 3]
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [1, 1]
    assert dataset.test_labels.tolist() == [0, 1]


def test_a_client_with_one_image_keeps_it(tmp_path):
    write(tmp_path, [f"c{number}/x.png" for number in range(10)])
    assert load(tmp_path, test_fraction=0.5).owners.tolist() == list(range(10))


def test_limits_come_before_reading(tmp_path):
    write(tmp_path, NESTED)
    full = load(tmp_path, layout="clients/classes")
    few = load(tmp_path, layout="clients/classes", limit=4, test_limit=2)
    assert sorted(value // 5 for value in values(few.samples)) == [0, 1, 2, 3]
    for name in (NESTED[value] for value in values(full.samples) if value not in values(few.samples)):
        (tmp_path / name).write_bytes(b"damaged")
    assert values(load(tmp_path, layout="clients/classes", limit=4).samples) == values(few.samples)


def test_sizes_and_channels(tmp_path):
    write(tmp_path, ["a/0.png", "a/1.png"], size=(12, 20))
    assert load(tmp_path).input_shape == (3, 12, 20)
    assert load(tmp_path, image_size=16, channels=1).input_shape == (1, 16, 16)


def test_images_of_two_sizes_need_one_to_be_chosen(tmp_path):
    write(tmp_path, ["a/0.png"], size=(12, 20))
    write(tmp_path, ["a/1.png"], size=(8, 8))
    with pytest.raises(UserError, match=r"8x8 pixels but .*20x12 pixels: set data\.image_size"):
        load(tmp_path, test_fraction=0.0)
    assert load(tmp_path, image_size=8).input_shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("layout", "names", "message"),
    [
        ("clients", ["a/0.png", "stray.png"], r"stray\.png lies outside"),
        ("clients/classes", ["a/b/0.png", "a/1.png"], r"1\.png lies outside"),
        ("clients", [], "holds no images"),
    ],
)
def test_a_layout_that_does_not_fit_names_the_file(tmp_path, layout, names, message):
    write(tmp_path, names)
    with pytest.raises(UserError, match=message):
        load(tmp_path, layout=layout)


def test_what_cannot_be_used_is_named(tmp_path):
    write(tmp_path, ["a/0.png", "a/1.png"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        load(tmp_path)
    (tmp_path / "empty").rmdir()
    whole = (tmp_path / "a" / "1.png").read_bytes()
    (tmp_path / "a" / "1.png").write_bytes(whole[:-30])
    with pytest.raises(UserError, match=r"1\.png is not a readable image"):
        load(tmp_path)


@pytest.mark.parametrize(("path", "message"), [(None, "it is not set"), ("nowhere", "there is no"), ("file.txt", "is a file")])
def test_a_path_must_be_a_folder(tmp_path, path, message):
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(UserError, match=rf"data\.path must name a folder of images.*{message}"):
        load_dataset(DataConfig(dataset="folder", path=None if path is None else str(tmp_path / path)))


def test_squeezed_images_keep_their_borders(tmp_path):
    """A wide image with a white left and right quarter: the central square is black."""
    pixels = np.zeros((8, 32, 3), dtype=np.uint8)
    pixels[:, :8] = pixels[:, 24:] = 255
    Image.fromarray(pixels).save(tmp_path / "0.png")
    cut, squeezed = (load(tmp_path, layout="flat", test_fraction=0, image_size=8, squeeze=choice) for choice in (False, True))
    assert cut.samples.float().mean() < 10
    assert squeezed.samples[0, 0, 0].gt(128).tolist() == [True] * 2 + [False] * 4 + [True] * 2


def test_all_images_of_a_folder_are_trained_on(tmp_path):
    """ImageNet-10 in Contrastive Clustering and FedMCC: nothing is held out, by either way."""
    write(tmp_path, [f"{label}/{number}.png" for label in ("cat", "dog") for number in range(5)])
    dataset = load(tmp_path, layout="classes", test_fraction=0)
    assert (len(dataset.samples), len(dataset.test_samples), dataset.labels.bincount().tolist()) == (10, 0, [5, 5])
    joined = load(tmp_path, layout="classes", part="train+test")
    assert sorted(values(joined.samples)) == values(dataset.samples)
    assert len(joined.test_samples) == 0
