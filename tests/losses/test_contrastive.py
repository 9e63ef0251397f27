import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unisono.losses.contrastive import info_nce, nt_xent, spectral_contrastive, triplet


def views(seed: int = 0, batch: int = 5, dim: int = 4, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(2, batch, dim, generator=generator, dtype=torch.float64)
    return z[0], z[1]


def cosine(u: Tensor, v: Tensor) -> float:
    return float(u @ v / (u.norm() * v.norm()))


def naive_nt_xent(z_a: Tensor, z_b: Tensor, temperature: float) -> float:
    z, batch, total = [*z_a, *z_b], len(z_a), 0.0
    for i in range(2 * batch):
        j = (i + batch) % (2 * batch)
        others = sum(math.exp(cosine(z[i], z[k]) / temperature) for k in range(2 * batch) if k != i)
        total -= math.log(math.exp(cosine(z[i], z[j]) / temperature) / others)
    return total / (2 * batch)


def naive_info_nce(z_1: Tensor, z_2: Tensor, temperature: float) -> float:
    size, total = len(z_1), 0.0
    for k in range(size):
        mean = sum(math.exp(cosine(z_1[j], z_2[k]) / temperature) for j in range(size)) / size
        total += math.log(math.exp(cosine(z_1[k], z_2[k]) / temperature) / mean)
    return -total / size


def naive_spectral(z_1: Tensor, z_2: Tensor, mu: float) -> float:
    def clip(z: Tensor) -> Tensor:
        return z if z.norm() < math.sqrt(mu) else z / z.norm() * math.sqrt(mu)

    size = len(z_1)
    positive = sum(float(clip(z_1[i]) @ clip(z_2[i])) for i in range(size)) / size
    negatives = [float(clip(z_1[i]) @ clip(z_2[j])) ** 2 for i in range(size) for j in range(size) if i != j]
    return -2 * positive + sum(negatives) / len(negatives)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 5), st.floats(0.05, 2))
def test_nt_xent_equals_the_double_loop(seed, batch, dim, temperature):
    z_a, z_b = views(seed, batch, dim)
    assert nt_xent(z_a, z_b, temperature).item() == pytest.approx(naive_nt_xent(z_a, z_b, temperature))


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 5), st.floats(0.05, 2))
def test_info_nce_equals_the_double_loop(seed, batch, dim, temperature):
    z_1, z_2 = views(seed, batch, dim)
    assert info_nce(z_1, z_2, temperature).item() == pytest.approx(naive_info_nce(z_1, z_2, temperature), abs=1e-9)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 5), st.floats(0.1, 10))
def test_spectral_equals_the_double_loop(seed, batch, dim, mu):
    z_1, z_2 = views(seed, batch, dim, scale=1.5)
    assert spectral_contrastive(z_1, z_2, mu).item() == pytest.approx(naive_spectral(z_1, z_2, mu), abs=1e-9)


def test_nt_xent_closed_form():
    """Orthonormal positives: one partner at similarity 1, 2B - 2 negatives at 0: log(e^(1/t) + 2B - 2) - 1/t."""
    z = torch.eye(4)
    expected = math.log(math.exp(1 / 0.5) + 6) - 1 / 0.5
    assert nt_xent(z, z, 0.5).item() == pytest.approx(expected, rel=1e-6)


def test_nt_xent_of_a_collapsed_encoder_is_chance():
    z = torch.ones(4, 3)
    assert nt_xent(z, z, 0.1).item() == pytest.approx(math.log(7), rel=1e-6)


def test_info_nce_closed_forms():
    """Collapsed: no information, 0. Orthonormal at a low temperature: the bound's ceiling, log K."""
    assert info_nce(torch.ones(4, 3), torch.ones(4, 3), 0.1).item() == pytest.approx(0, abs=1e-6)
    assert info_nce(torch.eye(4), torch.eye(4), 0.01).item() == pytest.approx(-math.log(4), rel=1e-6)


def test_spectral_closed_forms():
    """Orthonormal: -2. Collapsed to unit vectors: -2 + 1. Long vectors are clipped to length sqrt(mu)."""
    assert spectral_contrastive(torch.eye(3), torch.eye(3), 1.0).item() == pytest.approx(-2)
    ones = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    assert spectral_contrastive(ones, ones, 1.0).item() == pytest.approx(-1)
    assert spectral_contrastive(100 * ones, 100 * ones, 4.0).item() == pytest.approx(-2 * 4 + 4**2)


def test_spectral_gradient_at_the_origin_is_finite():
    z = torch.zeros(3, 2, requires_grad=True)
    spectral_contrastive(z, torch.ones(3, 2), 1.0).backward()
    assert z.grad.isfinite().all()


def test_nt_xent_and_spectral_are_symmetric_in_the_views():
    z_a, z_b = views(3)
    assert nt_xent(z_a, z_b, 0.2).item() == pytest.approx(nt_xent(z_b, z_a, 0.2).item())
    assert spectral_contrastive(z_a, z_b, 1.0).item() == pytest.approx(spectral_contrastive(z_b, z_a, 1.0).item())


def test_info_nce_contrasts_first_views_only():
    """Eq. 3 sums over z_1j for a fixed z_2k, so the views are not interchangeable."""
    z_1, z_2 = views(3)
    assert info_nce(z_1, z_2, 0.2).item() != pytest.approx(info_nce(z_2, z_1, 0.2).item(), rel=1e-3)


@pytest.mark.parametrize("loss", [nt_xent, info_nce])
def test_cosine_losses_ignore_length(loss):
    z_a, z_b = views(4)
    assert loss(7 * z_a, 0.1 * z_b, 0.2).item() == pytest.approx(loss(z_a, z_b, 0.2).item())


@pytest.mark.parametrize("loss", [nt_xent, info_nce, spectral_contrastive])
def test_order_of_samples_does_not_matter(loss):
    z_a, z_b = views(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert loss(z_a[order], z_b[order], 0.5).item() == pytest.approx(loss(z_a, z_b, 0.5).item())


@pytest.mark.parametrize("loss", [nt_xent, info_nce, spectral_contrastive])
def test_gradients(loss):
    z_a, z_b = views(6)
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, 0.5), (z_a.requires_grad_(), z_b.requires_grad_()))


@pytest.mark.parametrize("loss", [nt_xent, info_nce])
def test_low_temperatures_do_not_overflow(loss):
    z_a, z_b = views(7)
    z = z_a.float().requires_grad_()
    value = loss(z, z_b.float(), 1e-3)
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [nt_xent, info_nce, spectral_contrastive])
def test_half_precision_is_raised(loss, dtype):
    z_a, z_b = (z.to(dtype) for z in views(8, batch=16, dim=300, scale=20))
    value = loss(z_a, z_b, 0.1)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(z_a.double(), z_b.double(), 0.1).item(), rel=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(z_a, z_b, 0.1) == value


@pytest.mark.parametrize("loss", [nt_xent, info_nce, spectral_contrastive])
def test_negatives_need_two_samples(loss):
    with pytest.raises(ValueError, match=f"{loss.__name__} needs at least 2 samples, got 1"):
        loss(torch.ones(1, 3), torch.ones(1, 3), 0.5)


@pytest.mark.parametrize("shapes", [((3, 2), (4, 2)), ((3, 2), (3, 4)), ((3,), (3,))])
def test_shapes_are_checked(shapes):
    with pytest.raises(ValueError, match=r"two \(batch, dim\) tensors"):
        nt_xent(torch.ones(shapes[0]), torch.ones(shapes[1]), 0.5)


def test_triplet_by_hand():
    """Triplet 1: 1 - 4 + 0.5 < 0, so 0. Triplet 2: 4 - 1 + 0.5 = 3.5."""
    anchor = torch.zeros(2, 2)
    positive = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    negative = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert triplet(anchor, positive, negative, 0.5).item() == pytest.approx(1.75)
    assert torch.allclose(triplet(anchor, positive, negative, 0.5, reduction="none"), torch.tensor([0.0, 3.5]))


@given(st.integers(0, 1000), st.floats(0, 3))
def test_triplet_equals_the_loop(seed, margin):
    anchor, positive = views(seed)
    negative, _ = views(seed + 1)
    losses = [
        max(0.0, float((a - p).norm() ** 2 - (a - n).norm() ** 2) + margin)
        for a, p, n in zip(anchor, positive, negative, strict=True)
    ]
    assert triplet(anchor, positive, negative, margin).item() == pytest.approx(sum(losses) / len(losses), abs=1e-9)


def test_triplet_broadcasts_anchors_against_candidates():
    anchors, positives = views(1, batch=3)
    candidates, _ = views(2, batch=4)
    table = triplet(anchors[:, None], positives[:, None], candidates, 1.0, reduction="none")
    assert table.shape == (3, 4)
    assert table[1, 2].item() == pytest.approx(triplet(anchors[1:2], positives[1:2], candidates[2:3], 1.0).item())


def test_triplet_takes_a_batch_of_one_and_has_the_right_gradient():
    anchor, positive = (z.requires_grad_() for z in views(9, batch=1))
    negative = views(10, batch=1)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda a, p, n: triplet(a, p, n, 50.0), (anchor, positive, negative))


def test_nt_xent_with_further_negatives():
    """They stand in every anchor's denominator, and in nothing else."""
    z_a, z_b = views(3)
    negatives = views(4, batch=3)[0]
    z, total = [*z_a, *z_b], 0.0
    for i in range(10):
        similarities = [cosine(z[i], z[k]) for k in range(10) if k != i] + [cosine(z[i], other) for other in negatives]
        total += math.log(sum(math.exp(s / 0.5) for s in similarities)) - cosine(z[i], z[(i + 5) % 10]) / 0.5
    assert nt_xent(z_a, z_b, 0.5, negatives).item() == pytest.approx(total / 10)
