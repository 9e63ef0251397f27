"""Numbers in a ring: sums are exact to a step and never overflow; the vector of a client holds all that is averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.core.payload import Payload
from unisono.privacy.masked_vector import Layout, Template, default_limits
from unisono.privacy.ring import Ring

RNG = np.random.default_rng(0)
BROADCAST = Payload(
    {
        "encoder": {"w": torch.full((4, 3), 0.5), "b": torch.zeros(3), "seen": torch.tensor(7)},
        "centroids": {"centroids": torch.zeros(2, 5)},
        "empty": {},
    }
)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("num_clients", [3, 10, 100, 258, 1000])
def test_a_sum_at_the_top_of_the_range_does_not_overflow(bits: int, num_clients: int) -> None:
    if bits == 16 and num_clients > 258:
        with pytest.raises(ValueError, match="too short for a sum over 1000 clients: take 32"):
            Ring(bits, num_clients)
        return
    ring = Ring(bits, num_clients)
    for value in (1.0, -1.0, 5.0, -5.0):
        words = np.zeros(2, ring.dtype)
        ring.encode(np.array([value, 0.0]), 1.0, 1.0, RNG, words)
        total = np.zeros(2, ring.dtype)
        for _ in range(num_clients):
            total += words
        assert ring.decode(total, 1.0)[0] == pytest.approx(num_clients * np.sign(value), abs=1e-9)
    too_many = np.zeros(1, ring.dtype)
    ring.encode(np.array([1.0]), 1.0, 1.0, RNG, too_many)
    beyond = (ring.top * (num_clients + num_clients // 2 + 1)) % 2**bits
    assert beyond >= 2 ** (bits - 1), "half as many clients again would overflow"


def test_few_levels_are_unbiased_and_many_are_exact_to_a_step() -> None:
    short, long = Ring(16, 100), Ring(32, 10)
    values = np.full(10_000, 0.3 / short.top)
    words = np.zeros(len(values), short.dtype)
    short.encode(values, 1.0, 1.0, RNG, words)
    levels = short.decode(words, 1.0) * short.top
    assert set(np.unique(levels).round()) == {0.0, 1.0}
    assert abs(levels.mean() - 0.3) < 6 * (0.21 / len(values)) ** 0.5
    values = RNG.normal(size=1000)
    words = np.zeros(len(values), long.dtype)
    assert long.encode(values, 0.25, 16.0, RNG, words) == 0
    assert np.abs(long.decode(words, 16.0) - 0.25 * values).max() <= 0.5 * 16 / long.top * 1.001
    assert long.encode(np.array([17.0, -20.0, 1.0]), 1.0, 16.0, RNG, words[:3]) == 2


def layout(metrics: tuple[str, ...] = (), bits: int = 32) -> Layout:
    own = {"totals": {"sums": torch.zeros(2, 5)}}
    template = Template.of(["encoder", "totals", "empty"], BROADCAST, own)
    return Layout(template, metrics, default_limits(BROADCAST), Ring(bits, 3), Ring(64, 3))


def test_a_vector_holds_tensors_weights_and_metrics() -> None:
    place = layout(("loss", "other"))
    assert place.sizes == (12, 3 + 1 + 10 + 1 + 6 + 4)
    clients = [
        ({"encoder/w": torch.randn(4, 3), "encoder/b": torch.randn(3), "encoder/seen": torch.tensor(5)}, 0.5, {"loss": 2.0}),
        ({"encoder/w": torch.randn(4, 3), "encoder/b": torch.randn(3), "encoder/seen": torch.tensor(1)}, 1.0, {"loss": 5.0}),
        ({"totals/sums": torch.randn(2, 5)}, 0.25, {"other": -3.0}),
    ]
    total = place.empty()
    for deltas, weight, metrics in clients:
        words, cut = place.pack(deltas, weight, metrics, RNG)
        assert cut == 0
        total = [sums + part for sums, part in zip(total, words, strict=True)]
    found = place.unpack(total)
    for name in ("encoder/w", "encoder/b", "encoder/seen"):
        expected = 0.5 * clients[0][0][name] + 1.0 * clients[1][0][name]
        torch.testing.assert_close(found.tensors[name], expected.double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.tensors["totals/sums"], 0.25 * clients[2][0]["totals/sums"].double(), atol=1e-7, rtol=0)
    assert found.weight == pytest.approx(1.75)
    assert found.weights == pytest.approx({"encoder": 1.5, "totals": 0.25, "empty": 0.0})
    assert found.counts == {"encoder": 2, "totals": 1, "empty": 0}
    assert found.metrics["loss"] == pytest.approx((6.0, 1.5))
    assert found.metrics["other"] == pytest.approx((-0.75, 0.25))


def test_a_template_is_the_phases_own() -> None:
    place = layout()
    assert Template.read(place.template.as_json()) == place.template
    assert [name for name, _, short in place.template.tensors if short] == ["encoder/w"]
    place.template.check(["encoder", "totals", "empty"], BROADCAST, 100)
    with pytest.raises(ValueError, match="other groups, names or shapes"):
        place.template.check(["encoder", "empty"], BROADCAST, 100)
    with pytest.raises(ValueError, match="larger than the server reads"):
        place.template.check(["encoder", "totals", "empty"], BROADCAST, 20)
    with pytest.raises(ValueError, match="has no 'totals' to send"):
        Template.of(["totals"], BROADCAST, {})
    for damaged in ({}, {"groups": [], "tensors": [["a", [-1], True]]}, None):
        with pytest.raises(ValueError, match="template of a masked sum is damaged"):
            Template.read(damaged)


def test_limits_follow_the_largest_weight() -> None:
    limits = default_limits(Payload({"a": {"w": torch.full((2, 2), -3.0), "v": torch.zeros(2, 2), "b": torch.zeros(9)}}))
    assert limits == {"a/w": 64.0, "a/v": 16.0}
    with pytest.raises(ValueError, match="a/w of the model holds a value that is not finite"):
        default_limits(Payload({"a": {"w": torch.full((2, 2), torch.nan)}}))
