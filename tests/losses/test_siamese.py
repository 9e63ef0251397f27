import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unisono.losses.siamese import byol_regression, negative_cosine, symmetric_byol_regression


def draw(seed: int, count: int = 2, batch: int = 5, dim: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, batch, dim, generator=generator, dtype=torch.float64))


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5))
def test_both_equal_the_loop(seed, batch, dim):
    p, z = draw(seed, batch=batch, dim=dim)
    cosines = [float(u @ v / (u.norm() * v.norm())) for u, v in zip(p, z, strict=True)]
    mean = sum(cosines) / batch
    assert negative_cosine(p, z).item() == pytest.approx(-mean)
    assert byol_regression(p, z).item() == pytest.approx(2 - 2 * mean)


def test_byol_is_the_squared_distance_of_unit_vectors():
    p, z = draw(1)
    unit = [v / v.norm(dim=1, keepdim=True) for v in (p, z)]
    assert byol_regression(p, z).item() == pytest.approx((unit[0] - unit[1]).square().sum(1).mean().item())


def test_closed_forms():
    p = torch.tensor([[3.0, 0.0]])
    for z, cosine in ((p, 1.0), (-2 * p, -1.0), (torch.tensor([[0.0, 5.0]]), 0.0)):
        assert negative_cosine(p, z).item() == pytest.approx(-cosine)
        assert byol_regression(p, z).item() == pytest.approx(2 - 2 * cosine)


def test_symmetrised_form():
    p_a, p_b, z_a, z_b = draw(2, count=4)
    expected = byol_regression(p_a, z_b) + byol_regression(p_b, z_a)
    assert symmetric_byol_regression(p_a, p_b, z_a, z_b).item() == pytest.approx(expected.item())
    swapped = symmetric_byol_regression(p_b, p_a, z_b, z_a)
    assert swapped.item() == pytest.approx(expected.item()), "swapping the views changes nothing"


@pytest.mark.parametrize("loss", [negative_cosine, byol_regression])
def test_gradients_flow_to_the_prediction_only(loss):
    p, z = (tensor.requires_grad_() for tensor in draw(3))
    loss(p, z).backward()
    assert z.grad is None
    assert p.grad.abs().sum() > 0
    fixed = z.detach()
    assert torch.autograd.gradcheck(lambda prediction: loss(prediction, fixed), (p,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_raised(dtype):
    p, z = (50 * tensor.to(dtype) for tensor in draw(4, dim=300))
    for loss in (negative_cosine, byol_regression):
        assert loss(p, z).dtype == torch.float32
        assert loss(p, z).item() == pytest.approx(loss(p.double(), z.double()).item(), abs=1e-5)


def test_keywords_are_raised_too():
    p, z = (50 * tensor.half() for tensor in draw(5, dim=300))
    assert negative_cosine(p=p, z=z).item() == pytest.approx(negative_cosine(p, z).item())
