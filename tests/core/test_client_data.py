"""What a client sees of a data set: its own rows, as floats."""

import pytest
import torch

from unisono.core.client_data import ClientData, as_float


def test_the_unlabelled_part_is_for_the_instance_loss_only() -> None:
    rows, labels = torch.tensor([1, 3, 8, 9]), torch.tensor([0, 1, -1, -1])
    data = ClientData(torch.arange(10.0).view(10, 1, 1), rows, labels, num_clustered_rows=7)
    assert data.instance_only.tolist() == [False, False, True, True]
    assert data.clustered.indices.tolist() == [1, 3]
    assert data.clustered.labels is not None
    assert data.clustered.labels.tolist() == [0, 1]
    assert data.subset(torch.tensor([0, 3])).instance_only.tolist() == [False, True]
    whole = ClientData(data.samples, data.indices)
    assert whole.clustered is whole
    assert not whole.instance_only.any()


def test_batches_come_from_the_clients_own_rows() -> None:
    samples = torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1) * 20
    data = ClientData(samples, torch.tensor([7, 2, 9]), torch.tensor([1, -1, 0]))
    positions = torch.tensor([2, 0, 2])
    assert len(data) == 3
    assert torch.allclose(data.batch(positions).flatten(), torch.tensor([180, 140, 180]) / 255)
    assert data.label_batch(positions).tolist() == [0, 1, 0]


def test_series_pass_as_they_are_and_samples_stay_untouched() -> None:
    samples = torch.full((2, 1, 3), 300.0)
    batch = ClientData(samples, torch.tensor([1])).batch(torch.tensor([0]))
    assert batch.tolist() == [[[300.0, 300.0, 300.0]]]
    batch.zero_()
    assert samples.min() == 300


def test_images_span_zero_to_one() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8)
    assert as_float(images).tolist() == [0.0, 1.0]
    assert images.tolist() == [0, 255]


def test_labels_that_were_not_asked_for_are_not_there() -> None:
    data = ClientData(torch.zeros(2, 1, 1, 1), torch.arange(2))
    with pytest.raises(RuntimeError, match="declared no need of labels"):
        data.label_batch(torch.tensor([0]))


def test_subset_by_mask_and_by_numbers() -> None:
    data = ClientData(torch.arange(10.0).view(10, 1, 1), torch.tensor([7, 2, 5]), torch.tensor([3, -1, 4]))
    for positions in (torch.tensor([True, False, True]), torch.tensor([0, 2])):
        part = data.subset(positions)
        assert len(part) == 2
        assert part.batch(torch.tensor([1])).flatten().tolist() == [5.0]
        assert part.label_batch(torch.tensor([0, 1])).tolist() == [3, 4]
    assert ClientData(data.samples, data.indices).subset(torch.tensor([1])).labels is None
