"""Clipping, compression with error feedback, and noise: by hand and by their statistics."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unisono.core.config import make_section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.noise import SeededNoise, SystemNoise
from unisono.core.payload import Payload, Reduce, Share, Update
from unisono.federation.postprocess import RESIDUAL, CompressionConfig, Postprocessor, PrivacyConfig, clip

SHARES = {"net": Share(Reduce.MEAN), "other": Share(Reduce.MEAN), "centroids": Share(Reduce.STACK)}
CTX = Context(1, 2, "train", 3)
COMPRESSIONS = [
    CompressionConfig(bits=8),
    CompressionConfig(top_k=0.2),
    CompressionConfig(bits=8, top_k=0.3),
]


def postprocessor(
    clip_norm: float | None = None, noise: float = 0.0, compression: CompressionConfig | None = None
) -> Postprocessor:
    return Postprocessor(PrivacyConfig(clip_norm=clip_norm, noise_multiplier=noise), compression or CompressionConfig(), SHARES)


def random_payload(seed: int, scale: float = 1.0, groups: tuple[str, ...] = ("net", "other", "centroids")) -> Payload:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (4, 5), "b": (3,), "s": ()}
    return Payload(
        {group: {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()} for group in groups}
    )


def norm_of(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def difference(first: Payload, second: Payload, group: str = "net") -> dict[str, Tensor]:
    return {name: first.groups[group][name] - second.groups[group][name] for name in first.groups[group]}


# --- clip


def test_clip_by_hand() -> None:
    clipped = clip({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)}, 1.0)
    assert clipped["a"].tolist() == pytest.approx([0.6, 0.0])
    assert float(clipped["b"]) == pytest.approx(0.8)


@given(st.integers(0, 100), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_clip_scales_down_to_the_norm_exactly_and_never_up(seed: int, scale: float, limit: float) -> None:
    tensors = random_payload(seed, scale).flatten()
    clipped = clip(tensors, limit)
    assert norm_of(clipped) == pytest.approx(min(norm_of(tensors), limit), rel=1e-5)
    ratio = norm_of(clipped) / norm_of(tensors)
    assert all(torch.allclose(clipped[name], tensor * ratio, rtol=1e-4) for name, tensor in tensors.items())


def test_clip_leaves_short_updates_and_no_limit_alone() -> None:
    tensors = {"a": torch.tensor([3.0, 4.0])}
    assert clip(tensors, 5.0)["a"] is tensors["a"]
    assert clip(tensors, None)["a"] is tensors["a"]
    assert clip({}, 1.0) == {}


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 3e38), (torch.float64, 1e200)])
def test_clip_withstands_huge_values(dtype: torch.dtype, value: float) -> None:
    clipped = clip({"a": torch.full((4,), value, dtype=dtype), "b": torch.full((4,), value, dtype=dtype)}, 1.0)
    assert norm_of(clipped) <= 1 + 1e-6


# --- encode and decode


def test_without_clipping_or_compression_an_update_passes_as_it_is() -> None:
    update, local = Update(3, 1.0, random_payload(0)), Payload({"mine": {"x": torch.ones(1)}})
    plain = postprocessor()
    encoded, new_local = plain.encode(update, random_payload(1), local, CTX)
    assert encoded is update
    assert new_local is local
    assert plain.decode(update, random_payload(1)) is update


def test_encode_then_decode_without_compression_is_the_update_up_to_rounding() -> None:
    update, received = Update(3, 5.0, random_payload(0), {"loss": 1.0}), random_payload(1)
    loose = postprocessor(clip_norm=1e6)
    encoded, local = loose.encode(update, received, Payload(), CTX)
    assert torch.allclose(encoded.payload.groups["net"]["w"], difference(update.payload, received)["w"])
    decoded = loose.decode(encoded, received)
    assert decoded.payload.flatten().keys() == update.payload.flatten().keys()
    for name, tensor in update.payload.tensors():
        assert torch.allclose(decoded.payload.flatten()[name], tensor, atol=1e-6)
    assert (decoded.client_id, decoded.weight, decoded.metrics) == (3, 5.0, {"loss": 1.0})
    assert local == Payload()


def test_what_is_clipped_is_the_joint_difference_to_what_was_received() -> None:
    update, received = Update(3, 1.0, random_payload(0)), random_payload(1)
    short = postprocessor(clip_norm=0.5)
    encoded, _ = short.encode(update, received, Payload(), CTX)
    sent = {name: tensor for name, tensor in encoded.payload.tensors() if not name.startswith("centroids")}
    assert norm_of(sent) == pytest.approx(0.5, rel=1e-5)
    decoded = short.decode(encoded, received).payload
    moved = {
        f"{group}/{name}": tensor for group in ("net", "other") for name, tensor in difference(decoded, received, group).items()
    }
    assert norm_of(moved) == pytest.approx(0.5, rel=1e-4)


def test_the_server_clips_a_client_that_does_not() -> None:
    received = random_payload(1, groups=("net",))
    liar = Update(3, 1.0, random_payload(0, scale=1e4, groups=("net",)))
    decoded = postprocessor(clip_norm=0.5).decode(liar, received)
    assert norm_of(difference(decoded.payload, received)) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_stacks_are_untouched(compression: CompressionConfig) -> None:
    update, received = Update(3, 1.0, random_payload(0)), random_payload(1)
    both = postprocessor(0.1, 0.0, compression)
    encoded, local = both.encode(update, received, Payload(), CTX)
    decoded = both.decode(encoded, received)
    for payload in (encoded.payload, decoded.payload):
        assert all(payload.groups["centroids"][name] is tensor for name, tensor in update.payload.groups["centroids"].items())
    assert not any(name.startswith("centroids") for name in local.groups.get(RESIDUAL, {}))
    assert {name: tensor.shape for name, tensor in decoded.payload.tensors()} == {
        name: tensor.shape for name, tensor in update.payload.tensors()
    }


def test_groups_that_were_not_received_are_sent_whole() -> None:
    """A statistic of the round has no reference: its difference is to zero."""
    update = Update(3, 1.0, random_payload(0, groups=("net",)))
    loose = postprocessor(clip_norm=1e6)
    encoded, _ = loose.encode(update, Payload(), Payload(), CTX)
    assert torch.equal(encoded.payload.groups["net"]["w"], update.payload.groups["net"]["w"])
    assert torch.equal(loose.decode(encoded, Payload()).payload.groups["net"]["w"], update.payload.groups["net"]["w"])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_error_feedback_loses_nothing_over_time(compression: CompressionConfig) -> None:
    """The sum of what arrived is the sum of what was meant minus the residual that still waits."""
    lossy = postprocessor(compression=compression)
    local, meant, arrived = Payload(), torch.zeros(4, 5), torch.zeros(4, 5)
    for round in range(20):
        received, update = random_payload(100 + round), Update(3, 1.0, random_payload(round))
        encoded, local = lossy.encode(update, received, local, Context(0, round, "train", 3))
        meant += difference(update.payload, received)["w"]
        arrived += difference(lossy.decode(encoded, received).payload, received)["w"]
    residual = local.groups[RESIDUAL]["net/w"]
    assert float(residual.abs().max()) > 1e-3
    assert torch.allclose(arrived, meant - residual, atol=1e-4)


def test_without_error_feedback_nothing_is_remembered() -> None:
    lossy = postprocessor(compression=CompressionConfig(top_k=0.1, error_feedback=False))
    _, local = lossy.encode(Update(3, 1.0, random_payload(0)), random_payload(1), Payload(), CTX)
    assert local == Payload()


def test_the_residual_of_one_phase_survives_the_next() -> None:
    """A round may have several phases that send different groups, or stacks alone."""
    lossy = postprocessor(compression=CompressionConfig(top_k=0.1))
    local = Payload({"mine": {"x": torch.ones(1)}})
    for group in ("net", "other", "centroids"):
        _, local = lossy.encode(Update(3, 1.0, random_payload(0, groups=(group,))), random_payload(1), local, CTX)
    assert local.groups.keys() == {"mine", RESIDUAL}
    assert local.groups[RESIDUAL].keys() == {f"{group}/{name}" for group in ("net", "other") for name in ("w", "b", "s")}


def test_rounding_depends_on_the_context_alone() -> None:
    lossy = postprocessor(compression=CompressionConfig(bits=8))
    update, received = Update(3, 1.0, random_payload(0)), random_payload(1)

    def code(ctx: Context) -> Tensor:
        return lossy.encode(update, received, Payload(), ctx)[0].payload.groups["net"]["w#levels"]

    assert torch.equal(code(CTX), code(CTX))
    assert not torch.equal(code(CTX), code(Context(1, 3, "train", 3)))


# --- noise


def noise() -> SeededNoise:
    return SeededNoise(CTX.rng("noise 0"))


def test_noise_by_hand() -> None:
    """start + ((mean - start) * senders + clip * multiplier * z) / expected, z from the source."""
    private = postprocessor(clip_norm=2.0, noise=1.5)
    broadcast = Payload({"net": {"w": torch.tensor([1.0, 2.0])}})
    means = {"net": {"w": torch.tensor([4.0, 8.0])}, "other": {"w": torch.tensor([10.0])}}
    noisy = private.add_noise(means, broadcast, {"net": 3, "other": 2}, 6, noise())
    source = noise()
    z_net, z_other = source.normal(2).float(), source.normal(1).float()
    assert torch.allclose(noisy["net"]["w"], torch.tensor([1.0 + 9 / 6, 2.0 + 18 / 6]) + 3.0 * z_net / 6)
    assert torch.allclose(noisy["other"]["w"], 20 / 6 + 3.0 * z_other / 6)


def test_noise_has_the_promised_moments_and_is_repeatable() -> None:
    """200,000 draws of standard deviation 0.5 * 3 / 10 = 0.15: standard errors 0.15 / 447 and 0.15 / 632."""
    private = postprocessor(clip_norm=0.5, noise=3.0)
    broadcast = Payload({"net": {"w": torch.full((200_000,), 7.0)}})
    means = broadcast.groups
    noisy = private.add_noise(means, broadcast, {"net": 10}, 10, noise())["net"]["w"]
    assert float(noisy.double().mean()) == pytest.approx(7.0, abs=5 * 0.15 / 447)
    assert float(noisy.double().std()) == pytest.approx(0.15, abs=5 * 0.15 / 632)
    assert torch.equal(noisy, private.add_noise(means, broadcast, {"net": 10}, 10, noise())["net"]["w"])
    secret = private.add_noise(means, broadcast, {"net": 10}, 10, SystemNoise())["net"]["w"]
    assert float(secret.double().std()) == pytest.approx(0.15, abs=5 * 0.15 / 632)
    assert not torch.equal(noisy, secret)


def test_noise_differs_between_tensors() -> None:
    private = postprocessor(clip_norm=1.0, noise=1.0)
    broadcast = Payload({"net": {"a": torch.zeros(5), "b": torch.zeros(5)}, "other": {"a": torch.zeros(5)}})
    noisy = Payload(private.add_noise(broadcast.groups, broadcast, {"net": 1, "other": 1}, 1, noise())).flatten()
    assert list(noisy) == list(broadcast.flatten())
    assert all(not torch.equal(one, other) for one, other in itertools.combinations(noisy.values(), 2))


def test_no_noise_leaves_the_means_alone() -> None:
    means = {"net": {"w": torch.ones(1)}}
    assert postprocessor(clip_norm=1.0).add_noise(means, Payload(), {"net": 1}, 1, noise())["net"] is means["net"]


def test_a_group_that_few_sent_moves_no_further_than_its_senders_can() -> None:
    """One of ten clients sends 'other', clipped to 1: the private mean over ten may move by at most 1 / 10."""
    private = postprocessor(clip_norm=1.0, noise=1e-12)
    means = {"other": {"w": torch.tensor([1.0])}}
    noisy = private.add_noise(means, Payload({"other": {"w": torch.tensor([0.0])}}), {"other": 1, "net": 10}, 10, noise())
    assert float(noisy["other"]["w"]) == pytest.approx(0.1)


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(UserError, match=r"noise_multiplier needs clip_norm.*set privacy\.clip_norm"):
        make_section(PrivacyConfig, {"noise_multiplier": 1.0}, "privacy")
