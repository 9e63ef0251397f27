import numpy as np
import pytest
import torch
from PIL import Image

from unisono.core.errors import UserError
from unisono.data.sources.items import from_items

PIXELS = np.random.default_rng(0).integers(0, 256, (10, 6, 8, 3), dtype=np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


class TorchvisionLike:
    classes = ("cat", "dog")

    def __init__(self, transform=lambda image: image):
        self.transform = transform
        self.reads = 0

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, index):
        self.reads += 1
        return self.transform(Image.fromarray(PIXELS[index])), index % 2


@pytest.mark.parametrize(
    "transform",
    [
        lambda image: image,
        np.asarray,
        lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1),
        lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255,
        lambda image: np.asarray(image, dtype=np.float64) / 255,
    ],
    ids=["pillow", "uint8 HWC", "uint8 CHW tensor", "float CHW tensor", "float HWC"],
)
def test_every_kind_of_image_gives_the_same_samples(transform):
    items = TorchvisionLike(transform)
    dataset = from_items(items, test_fraction=0.0)
    assert torch.equal(dataset.samples, TENSOR)
    assert dataset.labels.tolist() == [0, 1] * 5
    assert dataset.class_names == ("cat", "dog")
    assert items.reads == 10, "each item is read once"


def test_test_items_owners_and_words(tmp_path):
    train = [(image, "b" if number % 2 else "a") for number, image in enumerate(PIXELS)]
    dataset = from_items(train, [(PIXELS[0], "c"), (PIXELS[1], None)], name="mine", owners=["x", "y"] * 5)
    assert dataset.name == "mine"
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.test_labels.tolist() == [2, -1]
    assert dataset.owners.tolist() == [0, 1] * 5
    assert len(dataset.samples) == 10


def test_without_test_items_a_fraction_is_held_out_by_class_and_owner():
    dataset = from_items([(image, number % 2) for number, image in enumerate(PIXELS)])
    assert dataset.test_labels.tolist() in ([0, 1], [1, 0])


def test_samples_without_labels():
    for items in (list(PIXELS), [(image,) for image in PIXELS], [(image, None) for image in PIXELS]):
        dataset = from_items(items, test_fraction=0.0)
        assert dataset.labels is None
        assert torch.equal(dataset.samples, TENSOR)


def test_series():
    dataset = from_items([(np.full((2, 7), number / 3), number % 2) for number in range(10)], test_fraction=0.0)
    assert dataset.samples.dtype == torch.float32
    assert dataset.input_shape == (2, 7)


def test_size_and_channels():
    dataset = from_items(
        [(Image.fromarray(PIXELS[0, :, :width]), 0) for width in (4, 8)], image_size=5, channels=1, test_fraction=0.0
    )
    assert dataset.input_shape == (1, 5, 5)
    dataset = from_items([(image[..., 0], 0) for image in PIXELS], image_size=5, test_fraction=0.0)
    assert dataset.input_shape == (1, 5, 5)


def test_grey_among_coloured_images_is_coloured_but_never_the_other_way_round():
    grey, coloured = Image.fromarray(PIXELS[0]).convert("L"), Image.fromarray(PIXELS[1])
    dataset = from_items([coloured, grey], test_fraction=0.0)
    assert torch.equal(dataset.samples[1], torch.from_numpy(np.array(grey)).expand(3, -1, -1))
    with pytest.raises(UserError, match=r"Item 1 has shape .* set image_size or channels"):
        from_items([grey, coloured])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no items"),
        ([PIXELS[0], PIXELS[1, :4]], "Item 1 has shape .* but item 0"),
        ([PIXELS[0] / 255 * 4 - 2], "Item 0 has values from .* floats in"),
        ([PIXELS[0].astype(np.int64)], "got ndarray of int64"),
        ([{"image": 1}], "got dict"),
        ([np.zeros((0, 6, 3))], "shape"),
        ([(PIXELS[0], {"boxes": []})], "Labels must be integers or words"),
        ([(PIXELS[0], 0.5)], "Labels must be integers or words"),
        ([(PIXELS[0], "a"), (PIXELS[1], 1)], "must all be words from a, got 1"),
        ([(PIXELS[0], "a"), (PIXELS[1], {})], "must all be words from a, got {}"),
        ([np.full((2, 5), np.inf)], "not finite"),
    ],
)
def test_items_that_do_not_fit_are_one_sentence(items, message):
    with pytest.raises(UserError, match=message):
        from_items(items)


def test_class_names_and_owners_must_fit():
    with pytest.raises(UserError, match="labels of the data set items must lie between -1 and 0"):
        from_items(TorchvisionLike(), class_names=["only"])
    with pytest.raises(UserError, match="owners of the data set items"):
        from_items(TorchvisionLike(), owners=[0, 1])
