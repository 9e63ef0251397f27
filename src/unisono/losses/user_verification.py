"""User verification: a classifier of the client that a representation comes from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.losses.precision import in_full_precision


@in_full_precision
def client_log_likelihood(z: Tensor, vectors: Tensor, own: Tensor, client_id: int, scale: float) -> Tensor:
    """Return the log-likelihood log r(s | z) of a client s under a softmax over all clients, shape (batch,).

    Its mean plus H(s) bounds I(z; s) from below. A mutual information perspective on federated contrastive learning, Lemma 2.1
    and "Optimizing the user-verification loss": one linear layer without bias, "both the inputs to the linear layer as well as
    the linear layer weights are constrained to have unit norm", "each client locally optimizes only their associated vector".
    So no gradient reaches ``vectors``.

    Args:
        z: representations, shape (batch, dim); normalised here.
        vectors: unit vectors of all clients, shape (num_clients, dim); row ``client_id`` is not read.
        own: the vector of this client, shape (dim,); normalised here.
        client_id: s, the client whose samples these are.
        scale: factor of the cosines, > 0.
    """
    z = F.normalize(z, dim=1)
    others = z @ vectors.detach().T
    mine = z @ F.normalize(own, dim=0)
    cosines = others.index_copy(1, torch.tensor([client_id], device=z.device), mine[:, None])
    return F.log_softmax(scale * cosines, dim=1)[:, client_id]
