import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.test_partition import balanced_labels, partition_of
from unisono.data.partition_plot import COLOURS, draw_partition


def colours_in(path):
    red, green, blue = np.moveaxis(np.asarray(Image.open(path).convert("RGB"), dtype=int), -1, 0)
    colours, counts = np.unique(red * 2**16 + green * 2**8 + blue, return_counts=True)
    return {f"#{colour:06X}" for colour in colours[counts > 200]}


@pytest.mark.parametrize("num_clients", [5, 200])
def test_every_class_has_its_colour(tmp_path, num_clients):
    labels = balanced_labels(10, 200)
    draw_partition(partition_of("iid", labels, num_clients), labels, [f"class {n}" for n in range(10)], tmp_path / "bars.png")
    assert set(COLOURS) <= colours_in(tmp_path / "bars.png")


def test_many_classes_get_a_colour_scale(tmp_path):
    labels = balanced_labels(40, 10)
    draw_partition(partition_of("dirichlet", labels, 8), labels, None, tmp_path / "bars.png")
    assert {"#440154", "#FDE725"} <= colours_in(tmp_path / "bars.png")  # the ends of viridis


def test_without_labels_only_sizes_are_drawn(tmp_path):
    draw_partition(partition_of("iid", torch.zeros(40), 4), None, None, tmp_path / "bars.png")
    assert set(COLOURS) & colours_in(tmp_path / "bars.png") == {COLOURS[0]}


def test_rotations_are_drawn_beside_the_classes(tmp_path):
    labels = balanced_labels(10, 20)
    partition = partition_of("iid", labels, 5)
    turns = torch.zeros(5, 10, dtype=torch.int64)
    turns[:, 3] = partition.sizes
    draw_partition(partition, labels, None, tmp_path / "plain.png")
    draw_partition(partition, labels, None, tmp_path / "turned.png", turns)
    plain, turned = (Image.open(tmp_path / name).width for name in ("plain.png", "turned.png"))
    assert turned > 1.5 * plain
    assert set(COLOURS) < colours_in(tmp_path / "turned.png")
