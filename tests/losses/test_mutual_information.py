"""The bounds on a problem whose mutual information is known: below it, and close to it where they should be tight.

Client s, one of n, gives z_i = (c_s, g_i): its own unit vector c_s and one of two Gaussian vectors of correlation rho. Then
I(z_1; z_2 | s) = I(g_1; g_2) = -d/2 log(1 - rho^2), s is a function of either z_i, and
I(z_1; z_2) = log n - d/2 log(1 - rho^2).
"""

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from unisono.losses.contrastive import info_nce
from unisono.losses.mutual_information import global_bound, info_nce_bound
from unisono.losses.user_verification import client_log_likelihood

DIM, RHO, NUM_CLIENTS = 2, 0.8, 8
LOCAL_TRUTH = -DIM / 2 * math.log(1 - RHO**2)
TRUTH = LOCAL_TRUTH + math.log(NUM_CLIENTS)
NOISE = 0.03
"""Several standard errors of the Monte Carlo means below."""


def gaussian_pair(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    g_1, noise = (torch.randn(size, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    return g_1, RHO * g_1 + math.sqrt(1 - RHO**2) * noise


def best_critic(g_1: Tensor, g_2: Tensor) -> Tensor:
    """Log p(g_2 | g_1) / p(g_2), rows g_1 and columns g_2."""
    residual = (g_2[None] - RHO * g_1[:, None]).square().sum(dim=2) / (1 - RHO**2)
    return -DIM / 2 * math.log(1 - RHO**2) - residual / 2 + g_2.square().sum(dim=1) / 2


@cache
def mean_local_bound(size: int, critic_scale: float = 1.0) -> float:
    generator = torch.Generator().manual_seed(size)
    num_batches = min(1000, 20_000 // size)
    draws = (gaussian_pair(size, generator) for _ in range(num_batches))
    return sum(float(info_nce_bound(critic_scale * best_critic(*pair))) for pair in draws) / num_batches


def client_term(scale: float, blur: float) -> Tensor:
    """The mean of log r(s | z) over clients, for representations of a client's vector plus some noise."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.eye(NUM_CLIENTS, dtype=torch.float64)
    found = []
    for client in range(NUM_CLIENTS):
        noise = torch.randn(500, NUM_CLIENTS, generator=generator, dtype=torch.float64)
        z = vectors[client] + blur * noise
        found.append(client_log_likelihood(z, vectors, vectors[client], client, scale).mean())
    return torch.stack(found).mean()


def test_naive_reference_and_ceiling() -> None:
    scores = torch.randn(5, 5, dtype=torch.float64)
    naive = sum(float(scores[k, k]) - math.log(sum(math.exp(float(scores[j, k])) for j in range(5)) / 5) for k in range(5)) / 5
    assert float(info_nce_bound(scores)) == pytest.approx(naive)
    assert float(info_nce_bound(100 * torch.eye(5))) == pytest.approx(math.log(5))
    assert float(info_nce_bound(torch.zeros(5, 5))) == pytest.approx(0)


def test_the_loss_of_simclr_is_minus_the_bound_of_its_critic() -> None:
    z_1, z_2 = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(z_1[:, None], z_2[None], dim=2)
    assert float(info_nce_bound(cosines / 0.2)) == pytest.approx(-float(info_nce(z_1, z_2, 0.2)))


def test_local_bound_stays_below_the_truth_and_approaches_it() -> None:
    bounds = [mean_local_bound(size) for size in (2, 8, 64, 512)]
    assert bounds == sorted(bounds)
    assert all(bound < LOCAL_TRUTH + NOISE for bound in bounds)
    assert bounds[0] < LOCAL_TRUTH - 0.3
    assert bounds[-1] > LOCAL_TRUTH - NOISE


def test_a_worse_critic_gives_a_lower_bound() -> None:
    assert mean_local_bound(64, critic_scale=0.3) < mean_local_bound(64) - 0.05
    assert mean_local_bound(64, critic_scale=3.0) < mean_local_bound(64) - 0.05


def test_global_bound_stays_below_the_truth_and_approaches_it() -> None:
    """As the softmax over clients gets sharper and batches larger, every inequality of Eq. 6 becomes tight."""
    bounds = []
    for size, scale in ((8, 2.0), (64, 5.0), (512, 20.0)):
        log_r = client_term(scale, blur=0.0)
        bounds.append(float(global_bound(torch.tensor(mean_local_bound(size)), log_r, log_r, NUM_CLIENTS)))
    assert bounds == sorted(bounds)
    assert all(bound < TRUTH + NOISE for bound in bounds)
    assert bounds[-1] > TRUTH - NOISE


@pytest.mark.parametrize("blur", [0.1, 0.5, 3.0])
def test_clients_that_are_hard_to_tell_keep_it_below(blur: float) -> None:
    """A classifier that sees less of z than there is leaves the truth as it is, and the bound below it."""
    log_r = client_term(10.0, blur)
    assert float(global_bound(torch.tensor(LOCAL_TRUTH), log_r, log_r, NUM_CLIENTS)) < TRUTH


def test_clients_that_cannot_be_told_apart_cost_the_entropy() -> None:
    """If r is uniform, Eq. 6 is the local bound minus H(s)."""
    guess = torch.tensor(-math.log(NUM_CLIENTS))
    assert float(global_bound(torch.tensor(1.5), guess, guess, NUM_CLIENTS)) == pytest.approx(1.5 - math.log(NUM_CLIENTS))


def test_one_client_has_nothing_to_verify() -> None:
    assert float(global_bound(torch.tensor(1.5), torch.tensor(0.0), torch.tensor(0.0), 1)) == 1.5
