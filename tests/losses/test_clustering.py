from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unisono.losses.clustering import assignment_entropy, cluster_contrast, instance_contrast, one_sided_contrast
from unisono.losses.contrastive import nt_xent


def vectors(seed: int, num: int = 5, dim: int = 4) -> tuple[Tensor, Tensor]:
    u, v = torch.randn(2, num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return u, v


def assignments(seed: int, batch: int = 6, num_clusters: int = 3) -> tuple[Tensor, Tensor]:
    u, v = vectors(seed, batch, num_clusters)
    return u.softmax(dim=1), v.softmax(dim=1)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    return u @ v / (u.norm() * v.norm())


def naive_eq_1(u: Tensor, v: Tensor, tau: float) -> float:
    total = 0.0
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        below = sum(math.exp(cosine(u[i], u[j]) / tau) + math.exp(cosine(u[i], v[j]) / tau) for j in others)
        total -= math.log(math.exp(cosine(u[i], v[i]) / tau) / below)
    return total / len(u)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 5), st.floats(0.1, 2))
def test_one_sided_contrast_is_equation_1(seed: int, num: int, dim: int, tau: float) -> None:
    u, v = vectors(seed, num, dim)
    assert one_sided_contrast(u, v, tau).item() == pytest.approx(naive_eq_1(u, v, tau), rel=1e-9, abs=1e-12)


def test_one_sided_contrast_in_closed_form() -> None:
    """Orthogonal anchors that equal their partners: -1/tau + log(2 (n - 1) exp(0))."""
    u = torch.eye(4, dtype=torch.float64)
    assert one_sided_contrast(u, 3 * u, 0.5).item() == pytest.approx(-2 + math.log(6))


def test_one_sided_contrast_anchors_one_side_only() -> None:
    u, v = vectors(0)
    assert one_sided_contrast(u, v, 0.5).item() != pytest.approx(one_sided_contrast(v, u, 0.5).item())
    assert instance_contrast(u, v, 0.5).item() == pytest.approx(instance_contrast(v, u, 0.5).item())


def test_one_sided_contrast_refuses_what_has_no_negatives() -> None:
    with pytest.raises(ValueError, match="num >= 2"):
        one_sided_contrast(torch.ones(1, 3), torch.ones(1, 3), 0.5)


def test_contrast_chooses_the_formula() -> None:
    u, v = vectors(1)
    assert torch.equal(instance_contrast(u, v, 0.5), nt_xent(u, v, 0.5))
    assert torch.equal(instance_contrast(u, v, 0.5, "paper"), one_sided_contrast(u, v, 0.5))


@pytest.mark.parametrize("contrast", ["ntxent", "paper"])
def test_cluster_contrast_compares_columns(contrast: str) -> None:
    c_a, c_b = assignments(0)
    expected = instance_contrast(c_a.T.contiguous(), c_b.T.contiguous(), 1.0, contrast)  # type: ignore[arg-type]
    assert cluster_contrast(c_a, c_b, 1.0, contrast).item() == pytest.approx(expected.item())  # type: ignore[arg-type]
    perfect = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    uniform = torch.full((6, 3), 1 / 3, dtype=torch.float64)
    best, worst = (cluster_contrast(c, c, 1.0, contrast).item() for c in (perfect, uniform))  # type: ignore[arg-type]
    assert best < worst


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5))
def test_assignment_entropy_is_equation_3(seed: int, batch: int, num_clusters: int) -> None:
    c, _ = assignments(seed, batch, num_clusters)
    masses = [float(c[:, i].abs().sum()) for i in range(num_clusters)]
    expected = -sum(mass / sum(masses) * math.log(mass / sum(masses)) for mass in masses)
    assert assignment_entropy(c).item() == pytest.approx(expected)
    assert 0 <= assignment_entropy(c).item() <= math.log(num_clusters) + 1e-12


def test_assignment_entropy_at_its_ends() -> None:
    one_takes_all = torch.tensor([[1.0, 0.0, 0.0]] * 4)
    assert assignment_entropy(one_takes_all).item() == pytest.approx(0, abs=1e-30)
    assert assignment_entropy(torch.eye(3)).item() == pytest.approx(math.log(3))


def test_gradients_stay_finite_where_a_softmax_underflows() -> None:
    logits = torch.tensor([[0.0, -200.0, 3.0], [1.0, -300.0, 0.0]], requires_grad=True)
    c = logits.softmax(dim=1)
    (cluster_contrast(c, c.flip(0), 1.0) - assignment_entropy(c)).backward()
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())


# --- The closed forms of section VI, corrected, against autograd


def similarity_gradient(u: Tensor, v: Tensor) -> Tensor:
    """Eq. 14, corrected: ds(u, v)/du = v / (|u| |v|) - s(u, v) u / |u|^2; the paper has a plus."""
    return v / (u.norm() * v.norm()) - cosine(u, v) * u / u.norm() ** 2


def exponential(u: Tensor, v: Tensor, tau: float) -> Tensor:
    return (cosine(u, v) / tau).exp()


def denominators(u: Tensor, v: Tensor, tau: float) -> list[Tensor]:
    """Eq. 13."""
    num = len(u)
    pairs = [[exponential(u[i], u[j], tau) + exponential(u[i], v[j], tau) for j in range(num) if j != i] for i in range(num)]
    return [torch.stack(row).sum() for row in pairs]


def gradient_of_anchors(u: Tensor, v: Tensor, tau: float) -> Tensor:
    """Eq. 15, corrected: the second exponential is divided by xi_l, which the paper leaves out."""
    xi = denominators(u, v, tau)
    rows = []
    for k in range(len(u)):
        row = -similarity_gradient(u[k], v[k])
        for i in range(len(u)):
            if i != k:
                row = row + (1 / xi[k] + 1 / xi[i]) * exponential(u[k], u[i], tau) * similarity_gradient(u[k], u[i])
                row = row + 1 / xi[k] * exponential(u[k], v[i], tau) * similarity_gradient(u[k], v[i])
        rows.append(row / (len(u) * tau))
    return torch.stack(rows)


def gradient_of_partners(u: Tensor, v: Tensor, tau: float) -> Tensor:
    """Eq. 16."""
    xi = denominators(u, v, tau)
    rows = []
    for k in range(len(v)):
        row = -similarity_gradient(v[k], u[k])
        for i in range(len(v)):
            if i != k:
                row = row + 1 / xi[i] * exponential(v[k], u[i], tau) * similarity_gradient(v[k], u[i])
        rows.append(row / (len(v) * tau))
    return torch.stack(rows)


def gradient_of_entropy(c: Tensor) -> Tensor:
    """Eq. 17, for the columns of c."""
    masses = c.abs().sum(dim=0)
    total = masses.sum()
    columns = []
    for k in range(c.shape[1]):
        indicator = (torch.arange(c.shape[1]) == k) * total
        factor = ((masses - indicator) / total**2 * (1 + (masses / total).log())).sum()
        columns.append(factor * c[:, k].sign())
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_equations_14_to_16(tau: float) -> None:
    u, v = (tensor.requires_grad_() for tensor in vectors(4))
    loss = one_sided_contrast(u, v, tau)
    expected_u, expected_v = torch.autograd.grad(loss, (u, v))
    with torch.no_grad():
        torch.testing.assert_close(gradient_of_anchors(u, v, tau), expected_u)
        torch.testing.assert_close(gradient_of_partners(u, v, tau), expected_v)


def test_equation_17() -> None:
    c = assignments(5)[0].detach().requires_grad_()
    (expected,) = torch.autograd.grad(assignment_entropy(c), c)
    torch.testing.assert_close(gradient_of_entropy(c.detach()), expected)


def test_equations_10_to_18_together() -> None:
    """All six alphas: alpha_1, alpha_3 from Eq. 15, alpha_2, alpha_4 from Eq. 16 (the paper names 15 for alpha_2), with the
    clusters' transposed as in Eq. 18, and minus the entropies' from Eq. 17.
    """
    z_a, z_b = (tensor.requires_grad_() for tensor in vectors(6, 6))
    y_a, y_b = (tensor.detach().requires_grad_() for tensor in assignments(7))
    halves = instance_contrast(z_a, z_b, 0.5, "paper") + cluster_contrast(y_a, y_b, 1.0, "paper")
    loss = 0.5 * halves - assignment_entropy(y_a) - assignment_entropy(y_b)
    expected = torch.autograd.grad(loss, (z_a, z_b, y_a, y_b))
    with torch.no_grad():
        alpha_1, alpha_2 = 0.5 * gradient_of_anchors(z_a, z_b, 0.5), 0.5 * gradient_of_partners(z_a, z_b, 0.5)
        alpha_3 = 0.5 * gradient_of_anchors(y_a.T, y_b.T, 1.0).T
        alpha_4 = 0.5 * gradient_of_partners(y_a.T, y_b.T, 1.0).T
        found = (alpha_1, alpha_2, alpha_3 - gradient_of_entropy(y_a), alpha_4 - gradient_of_entropy(y_b))
    for closed, by_autograd in zip(found, expected, strict=True):
        torch.testing.assert_close(closed, by_autograd)


def test_the_printed_equations_are_wrong() -> None:
    """Each correction is needed: with the plus of Eq. 14, or without the 1 / xi_l of Eq. 15, the gradient is another."""
    u, v = (tensor.requires_grad_() for tensor in vectors(4))
    (by_autograd,) = torch.autograd.grad(cosine(u[0], v[0]), u)
    with torch.no_grad():
        printed = cosine(u[0], v[0]) / u[0].norm() ** 2 * u[0] + v[0] / (u[0].norm() * v[0].norm())
        assert not torch.allclose(printed, by_autograd[0])
    loss_gradient = torch.autograd.grad(one_sided_contrast(u, v, 0.5), u)[0]
    with torch.no_grad():
        xi = denominators(u, v, 0.5)
        missing = sum(
            ((1 - 1 / xi[0]) * exponential(u[0], v[i], 0.5) * similarity_gradient(u[0], v[i]) for i in range(1, len(u))),
            torch.zeros(4, dtype=torch.float64),
        )
        as_printed = gradient_of_anchors(u, v, 0.5)[0] + missing / (len(u) * 0.5)
        assert not torch.allclose(as_printed, loss_gradient[0])
