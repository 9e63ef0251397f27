"""Codes: exact where they promise it, unbiased where they round."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.attacks import attack
from unisono.core.payload import Payload, Reduce, Reveals, Share, Update
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.compress import LEVELS, compress, decompress, largest_entries, quantize
from unisono.federation.postprocess import CompressionConfig, Postprocessor, PrivacyConfig


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_largest_entries_by_hand() -> None:
    values, indices = largest_entries(torch.tensor([[1.0, -5.0], [0.5, 3.0]]), 0.5)
    assert values.tolist() == [-5.0, 3.0]
    assert indices.tolist() == [1, 3]
    assert indices.dtype == torch.int32


@pytest.mark.parametrize(
    ("share", "size", "expected"),
    [(0.07, 100, 7), (0.1, 30, 3), (0.01, 5, 1), (0.5, 3, 2), (1.0, 9, 9), (1e-12, 10, 1), (0.5, 0, 0)],
)
def test_as_many_entries_as_promised(share: float, size: int, expected: int) -> None:
    assert len(largest_entries(torch.randn(size, generator=rng()), share)[0]) == expected


@given(st.lists(st.integers(0, 5), max_size=3), st.floats(0.01, 1), st.integers(0, 1000))
def test_top_k_keeps_the_largest_exactly_and_zeroes_the_rest(shape: list[int], share: float, seed: int) -> None:
    tensor = torch.randn(shape, generator=rng(seed))
    back = decompress(compress({"w": tensor}, share, None, rng()))["w"]
    assert back.shape == tensor.shape
    kept = back != 0
    assert torch.equal(back[kept], tensor[kept])
    if tensor.numel():
        assert int(kept.sum()) == max(1, math.ceil(share * tensor.numel() - 1e-9))
        assert not bool((~kept).any()) or float(tensor[~kept].abs().max()) <= float(tensor[kept].abs().min())


@given(st.lists(st.integers(0, 5), max_size=3), st.floats(-30, 30), st.integers(0, 1000))
def test_quantisation_is_within_one_step(shape: list[int], exponent: float, seed: int) -> None:
    tensor = torch.randn(shape, generator=rng(seed)) * 10**exponent
    levels, step = quantize(tensor, rng(seed))
    assert levels.dtype == torch.int8
    assert levels.shape == tensor.shape
    error = levels.float() * step.reshape(()) - tensor
    assert error.shape == tensor.shape
    assert not tensor.numel() or float(error.abs().max()) <= float(step) * (1 + 1e-4)
    assert not tensor.numel() or float(step) == pytest.approx(float(tensor.abs().max()) / LEVELS, rel=1e-6, abs=2e-38)


def test_quantisation_is_unbiased() -> None:
    """Stochastic rounding has variance at most step^2 / 4, so 4000 draws leave a standard error of step / 126."""
    tensor = torch.tensor([1.0, -1.0, 0.5003, -0.2502, 0.001, 0.0])
    generator = rng(7)
    draws = torch.stack([decompress(compress({"w": tensor}, None, 8, generator))["w"] for _ in range(4000)])
    step = 1 / LEVELS
    assert float((draws.mean(dim=0) - tensor).abs().max()) < 5 * step / 126
    assert draws[:, 0].unique().tolist() == [pytest.approx(1.0)]
    assert len(draws[:, 2].unique()) == 2
    assert draws[:, 5].unique().tolist() == [0.0]


def test_zeros_have_level_zero_and_a_step() -> None:
    levels, step = quantize(torch.zeros(5), rng())
    assert levels.tolist() == [0] * 5
    assert float(step) > 0


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-40, 1e-37])
def test_quantisation_of_the_tiniest_numbers(value: float) -> None:
    back = decompress(compress({"w": torch.full((500,), value)}, None, 8, rng()))["w"]
    assert bool(torch.isfinite(back).all())
    assert float(back.double().mean()) == pytest.approx(value, abs=2e-38)


@pytest.mark.parametrize(("top_k", "bits"), [(None, 8), (0.5, 8), (0.5, None), (1.0, None)])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (4, 3)])
def test_names_order_and_shapes_come_back_over_the_wire(top_k: float | None, bits: int | None, shape: tuple[int, ...]) -> None:
    tensors = {"z#1": torch.randn(shape, generator=rng(1)), "a/b": torch.randn(shape, generator=rng(2))}
    coded = compress(tensors, top_k, bits, rng())
    back = decompress(from_bytes(to_bytes(Payload({"g": coded}))).groups.get("g", {}))
    assert [(name, tensor.shape) for name, tensor in back.items()] == [(name, tensor.shape) for name, tensor in tensors.items()]
    if top_k == 1.0:
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def size_of(tensors: dict[str, Tensor]) -> int:
    return Payload({"g": tensors}).num_bytes


def test_codes_are_smaller() -> None:
    tensors = {"w": torch.randn(100, 100, generator=rng())}
    assert size_of(compress(tensors, None, 8, rng())) == 10_000 + 4
    assert size_of(compress(tensors, 0.1, None, rng())) == 1000 * (4 + 4) + 2 * 4
    assert size_of(compress(tensors, 0.1, 8, rng())) == 1000 * (4 + 1) + 2 * 4 + 4


def test_the_same_generator_gives_the_same_code() -> None:
    tensors = {"w": torch.randn(1000, generator=rng())}
    first, second, other = (compress(tensors, None, 8, rng(seed))["w#levels"] for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@attack("B8", "Sends a compressed update of a few bytes that stands for gigabytes", "refused before memory is taken")
@pytest.mark.parametrize("compression", [CompressionConfig(top_k=0.1), CompressionConfig(bits=8)], ids=["top_k", "bits"])
@pytest.mark.parametrize("group", ["net", "totals"])
def test_a_code_stands_for_no_more_than_it_can_hold(compression: CompressionConfig, group: str) -> None:
    """The group ``totals`` is not among what the client received, so that nobody knows its shape."""
    share = Share(Reduce.MEAN, Reveals.PARAMETERS)
    post = Postprocessor(PrivacyConfig(), compression, {"net": share, "totals": share})
    received = Payload({"net": {"x": torch.zeros(40)}})
    honest = compress({f"{group}/x": torch.arange(40.0)}, compression.top_k, compression.bits, rng())
    assert post.decode(Update(0, 1.0, Payload.unflatten(honest), {}), received).payload.groups[group]["x"].shape == (40,)
    bomb = {"indices": torch.zeros(1, dtype=torch.int32), "shape": torch.tensor([2**15, 2**16]), "values": torch.ones(1)}
    lie = Payload.unflatten({f"{group}/x#{part}": tensor for part, tensor in bomb.items()})
    with pytest.raises(ValueError, match=r"stands for a tensor of shape \[32768, 65536\]"):
        post.decode(Update(0, 1.0, lie, {}), received)
