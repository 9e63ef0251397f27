"""log r(s | z): a naive reference, closed forms, and who gets a gradient."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.user_verification import client_log_likelihood


def unit_vectors(num: int, dim: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


def naive(z: Tensor, vectors: Tensor, own: Tensor, client_id: int, scale: float) -> list[float]:
    found = []
    for row in z:
        cosines = []
        for client, vector in enumerate(vectors):
            weight = own / own.norm() if client == client_id else vector
            cosines.append(float(row @ weight / row.norm()))
        total = sum(math.exp(scale * cosine) for cosine in cosines)
        found.append(math.log(math.exp(scale * cosines[client_id]) / total))
    return found


@pytest.mark.parametrize("client_id", [0, 3, 6])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_equals_the_definition(client_id: int, scale: float) -> None:
    z, own = 3 * unit_vectors(5, 4, 1), 2 * unit_vectors(1, 4, 2)[0]
    vectors = unit_vectors(7, 4)
    expected = torch.tensor(naive(z, vectors, own, client_id, scale), dtype=torch.float64)
    torch.testing.assert_close(client_log_likelihood(z, vectors, own, client_id, scale), expected)


def test_clients_that_look_alike_are_guessed() -> None:
    vector = unit_vectors(1, 4)
    log_r = client_log_likelihood(unit_vectors(5, 4, 1), vector.expand(9, 4), vector[0], 2, 10.0)
    torch.testing.assert_close(log_r, torch.full((5,), -math.log(9), dtype=torch.float64))


def test_orthogonal_clients_by_hand() -> None:
    """z is the own vector and the n - 1 others are orthogonal: r = e^scale / (e^scale + n - 1)."""
    eye = torch.eye(6, dtype=torch.float64)
    for scale in (1.0, 5.0, 50.0):
        expected = scale - math.log(math.exp(scale) + 5)
        assert float(client_log_likelihood(eye[3:4], eye, eye[3], 3, scale)) == pytest.approx(expected)


def test_only_the_own_vector_and_the_representation_learn() -> None:
    z = unit_vectors(5, 4, 1).requires_grad_()
    vectors, own = unit_vectors(7, 4).requires_grad_(), unit_vectors(1, 4, 2)[0].requires_grad_()
    client_log_likelihood(z, vectors, own, 2, 10.0).sum().backward()
    assert vectors.grad is None
    assert z.grad is not None
    assert own.grad is not None
    assert float(own.grad.norm()) > 0.1
    # The constraint |own| = 1: a step along the gradient turns the vector and does not stretch it.
    assert abs(float(own.grad @ own.detach())) < 1e-12
    assert torch.autograd.gradcheck(
        lambda z, own: client_log_likelihood(z, vectors.detach(), own, 2, 3.0), (z.detach().requires_grad_(), own)
    )


def test_the_servers_copy_of_the_own_vector_is_not_read() -> None:
    z, vectors, own = unit_vectors(5, 4, 1), unit_vectors(7, 4), unit_vectors(1, 4, 2)[0]
    changed = vectors.clone()
    changed[2] = unit_vectors(1, 4, 9)[0]
    assert torch.equal(client_log_likelihood(z, vectors, own, 2, 5.0), client_log_likelihood(z, changed, own, 2, 5.0))


def test_lengths_do_not_matter() -> None:
    z, vectors, own = unit_vectors(5, 4, 1), unit_vectors(7, 4), unit_vectors(1, 4, 2)[0]
    torch.testing.assert_close(
        client_log_likelihood(7 * z, vectors, own / 3, 2, 5.0), client_log_likelihood(z, vectors, own, 2, 5.0)
    )


def test_half_precision_is_raised() -> None:
    z = unit_vectors(5, 4, 1).bfloat16()
    assert client_log_likelihood(z, unit_vectors(7, 4).float(), unit_vectors(1, 4)[0].float(), 1, 10.0).dtype is torch.float32
