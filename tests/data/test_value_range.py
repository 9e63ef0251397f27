"""Arrays of the user's own: read right, or refused with the remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.core.errors import UserError
from unisono.data.value_range import as_samples

SHAPE = (3, 4, 5)


def images(dtype: str, high: float) -> np.ndarray:
    return (np.random.default_rng(0).random((2, *SHAPE)) * high).astype(dtype)


def test_bytes_stay_bytes() -> None:
    given = images("uint8", 255)
    assert torch.equal(as_samples(given, SHAPE), torch.from_numpy(given))


def test_sixteen_bits_are_shares_of_their_range() -> None:
    given = images("uint16", 65535)
    np.testing.assert_allclose(as_samples(given, SHAPE).numpy(), given / 65535, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_shares_stay_and_rounding_is_cut(dtype: str) -> None:
    given = images(dtype, 1)
    given[0, 0, 0, 0], given[0, 0, 0, 1] = 1.0005, -0.0005
    found = as_samples(given, SHAPE)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), given.astype(np.float32).clip(0, 1))


def test_channels_may_come_last_and_tensors_are_taken() -> None:
    given = torch.from_numpy(images("uint8", 255))
    assert torch.equal(as_samples(given.permute(0, 2, 3, 1), SHAPE), given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (images("float32", 255), "divide them by 255"),
        (images("float32", 6) - 3, "undo their normalisation"),
        (images("float64", 1000), "undo their normalisation"),
        (images("int64", 255), "pass images.astype('uint8')"),
        (np.ones((2, *SHAPE), dtype=bool), "pass images.astype('float32')"),
        (images("int32", 70000), "uint8, uint16 or floats"),
        (images("uint16", 255), "pass images.astype('uint8')"),
        (images("float32", 1)[:, :2], "must have shape (any, 3, 4, 5)"),
        (images("float32", 1).astype(complex), "must be numbers"),
        (np.full((1, *SHAPE), np.nan), "60 values that are NaN"),
    ],
)
def test_what_is_unclear_is_refused_with_the_remedy(given: np.ndarray, remedy: str) -> None:
    with pytest.raises(UserError) as error:
        as_samples(given, SHAPE)
    assert remedy in str(error.value)


def test_series_keep_their_values_but_must_be_finite() -> None:
    series = np.array([[[1.0, -200.0, 3.0]]])
    assert torch.equal(as_samples(series, (1, 3)), torch.tensor([[[1.0, -200.0, 3.0]]]))
    assert torch.equal(as_samples(series.astype(int), (1, 3)), torch.tensor([[[1.0, -200.0, 3.0]]]))
    with pytest.raises(UserError, match="finite"):
        as_samples(np.array([[[1.0, np.inf, 3.0]]]), (1, 3))
