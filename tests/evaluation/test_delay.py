from __future__ import annotations

import pytest

from unisono.evaluation.delay import DelayConfig, exchange_seconds, upload_seconds


def test_numbers_of_the_paper() -> None:
    """45433 x 32 / 10^6 = 1.45 s for a model, 28 x 28 x 8 / 10^6 = 6.27 ms (the paper writes 6.2) for an image."""
    assert upload_seconds(DelayConfig(), 45433) == pytest.approx(1.453856)
    assert exchange_seconds(DelayConfig(), [1], 28 * 28) == pytest.approx(0.006272)


def test_busiest_link_decides() -> None:
    config = DelayConfig(neighbor_rate=100.0, bits_per_value=4, bits_per_parameter=16)
    assert exchange_seconds(config, [3, 5, 0], 10) == pytest.approx(5 * 10 * 4 / 100)
    assert exchange_seconds(config, [3, 5, 0], 10, 7) == pytest.approx((5 * 10 * 4 + 7 * 16) / 100)


def test_nothing_takes_no_time() -> None:
    assert exchange_seconds(DelayConfig(), [], 784) == 0
    assert upload_seconds(DelayConfig(), 0) == 0
