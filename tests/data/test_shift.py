import math

import pytest
import torch

from tests.data.test_partition import balanced_labels, partition_of
from unisono.core.errors import UserError
from unisono.data.shift import ShiftConfig, apply_shift, bin_counts, rotate, rotation_angles

ROTATION = ShiftConfig(kind="rotation")


def disc(size=33, radius=13.0):
    axis = torch.arange(size) - (size - 1) / 2
    return (axis[:, None] ** 2 + axis**2 < radius**2).float()


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 7, 7)])
def test_quarter_turns_equal_rot90(turns, shape):
    images = torch.randint(256, shape, dtype=torch.uint8)
    angles = torch.full((shape[0],), turns * math.pi / 2)
    assert torch.equal(rotate(images, angles), torch.rot90(images, turns, (2, 3)))


def test_half_turn_of_a_wide_image():
    images = torch.randint(256, (2, 1, 6, 9), dtype=torch.uint8)
    assert torch.equal(rotate(images, torch.full((2,), math.pi)), images.flip(2, 3))


def test_rotating_back_restores_a_smooth_image():
    axis = torch.linspace(-1, 1, 33)
    image = (disc() * (1 + axis[:, None] - 0.5 * axis)).expand(1, 1, 33, 33)
    angle = torch.tensor([0.6])
    back = rotate(rotate(image, angle), -angle)
    inside = disc(radius=10.0).bool()
    torch.testing.assert_close(back[0, 0][inside], image[0, 0][inside], atol=0.02, rtol=0)


def test_each_image_has_its_own_angle_and_chunks_do_not_matter():
    images = torch.randint(256, (7, 3, 9, 9), dtype=torch.uint8)
    angles = torch.rand(7) * 6
    whole = rotate(images, angles)
    assert torch.equal(whole, rotate(images, angles, chunk=2))
    assert torch.equal(whole[3:4], rotate(images[3:4], angles[3:4]))


def test_clients_use_one_or_two_bins_and_all_of_their_width():
    """As on CIFAR-10 with 100 clients: "each client receives one or two bins of rotations"."""
    partition = partition_of("iid", balanced_labels(10, 5000), 100)
    angles = rotation_angles(ROTATION, partition, seed=1)
    assert angles.min() >= 0
    assert angles.max() < 2 * math.pi + 1e-6
    counts = bin_counts(ROTATION, partition, seed=1)
    num_bins = (counts > 0).sum(dim=1).float()
    assert 1.4 < num_bins.mean() < 1.9
    assert (num_bins <= 2).float().mean() > 0.8
    assert (counts.sum(dim=0) > 0).all()
    within = (angles / (2 * math.pi / 10)) % 1
    assert float(within.mean()) == pytest.approx(0.5, abs=0.02)


def test_shift_is_fixed_by_the_seed_and_leaves_its_input_alone():
    images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    before, partition = images.clone(), partition_of("iid", torch.zeros(40), 4)
    one, two = (apply_shift(ROTATION, images, partition, seed=3) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(images, before)
    assert one.dtype == torch.uint8
    assert not torch.equal(one, apply_shift(ROTATION, images, partition, seed=4))
    assert torch.equal(one, rotate(images, rotation_angles(ROTATION, partition, seed=3)))


def test_one_bin_covers_the_full_turn():
    angles = rotation_angles(ShiftConfig(kind="rotation", num_bins=1), partition_of("iid", torch.zeros(4000), 2), seed=0)
    assert float(angles.mean()) == pytest.approx(math.pi, abs=0.1)


def test_no_shift_returns_the_samples():
    images = torch.zeros(4, 1, 3, 3, dtype=torch.uint8)
    assert apply_shift(ShiftConfig(), images, partition_of("iid", torch.zeros(4), 2), seed=0) is images


def test_series_cannot_be_rotated():
    with pytest.raises(UserError, match=r"shift.kind 'rotation' needs images, got samples of shape \(3, 50\)"):
        apply_shift(ROTATION, torch.zeros(4, 3, 50), partition_of("iid", torch.zeros(4), 2), seed=0)


def test_bins_count_every_sample_where_its_angle_is():
    labels = balanced_labels(10, 30)
    partition = partition_of("iid", labels, 7)
    counts = bin_counts(ROTATION, partition, seed=1)
    assert torch.equal(counts.sum(dim=1), partition.sizes)
    angles = rotation_angles(ROTATION, partition, seed=1)
    for client, rows in enumerate(partition.indices):
        for number in range(10):
            low, high = number * math.pi / 5, (number + 1) * math.pi / 5
            assert int(((angles[rows] >= low) & (angles[rows] < high)).sum()) == int(counts[client, number])
