import numpy as np
import pytest
import torch

from unisono.data.sources import statistics
from unisono.data.sources.statistics import channel_statistics


@pytest.mark.parametrize("chunk_values", [1, 100, 1 << 22])
@pytest.mark.parametrize("kind", ["images", "series"])
def test_the_statistics_are_numpys_in_double_precision(monkeypatch, chunk_values, kind):
    monkeypatch.setattr(statistics, "CHUNK_VALUES", chunk_values)
    generator = torch.Generator().manual_seed(0)
    if kind == "images":
        samples = torch.randint(0, 256, (13, 3, 5, 4), dtype=torch.uint8, generator=generator)
        values, axes = samples.numpy() / 255, (0, 2, 3)
    else:
        # So far from zero that a sum of squares in single precision would be worthless.
        samples = torch.randn(13, 2, 7, generator=generator) + 10_000
        values, axes = samples.double().numpy(), (0, 2)
    mean, std = channel_statistics(samples)
    np.testing.assert_allclose(mean, values.mean(axis=axes), rtol=1e-12)
    np.testing.assert_allclose(std, values.std(axis=axes), rtol=1e-9)


def test_a_constant_channel_can_be_divided_by():
    mean, std = channel_statistics(torch.full((4, 1, 3, 3), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2,))
    assert std == (statistics.STD_FLOOR,)
