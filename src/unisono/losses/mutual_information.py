"""Lower bounds on mutual information, in nats.

Louizos et al., "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024). The information between two
views over the whole federation is bounded by what every client can measure on its own samples (Eq. 6):

    I(z_1; z_2) >= InfoNCE within clients + E log r(s | z_1) + E log r(s | z_2) + H(s).

The first term bounds I(z_1; z_2 | s), the second with H(s) bounds I(z_1; s) (Lemma 2.1), and minus the third bounds
I(z_1; s | z_2) from above (Lemma 2.2).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.precision import in_full_precision


@in_full_precision
def info_nce_bound(scores: Tensor) -> Tensor:
    """Return the InfoNCE bound of a batch: mean over k of "log exp f(z_1k, z_2k) / (1/K sum_j exp f(z_1j, z_2k))"; a scalar.

    Eq. 3, for any critic f. Its expectation stays below I(z_1; z_2), and it never exceeds log K.

    Args:
        scores: f(z_1j, z_2k) in row j and column k, shape (K, K).
    """
    size = len(scores)
    return math.log(size) - F.cross_entropy(scores.T, torch.arange(size, device=scores.device))


def global_bound(local: Tensor, log_client_1: Tensor, log_client_2: Tensor, num_clients: int) -> Tensor:
    """Return the bound of Eq. 6 on I(z_1; z_2), the sum of its terms; a scalar.

    Clients count alike, p(s) = 1 / num_clients, as in the paper's Algorithm 1, so H(s) = log num_clients.

    Args:
        local: the InfoNCE bound within clients.
        log_client_1: the mean of log r(s | z_1).
        log_client_2: the mean of log r(s | z_2).
        num_clients: how many clients there are.
    """
    return local + log_client_1 + log_client_2 + math.log(num_clients)
