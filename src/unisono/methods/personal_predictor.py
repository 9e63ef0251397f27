"""FedU's rule for clients that keep state: a client keeps its own predictor where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021): the
"divergence-aware predictor update". A client takes the global networks, but its own predictor when the global encoder is far
from the one it trained last. Orchestra's paper gives it to SimSiam and BYOL across silos.
"""

from __future__ import annotations

from unisono.core.payload import Payload
from unisono.methods.local_training import Start
from unisono.models.nets import weight_divergence


def start_with_own_predictor(received: Payload, local: Payload, threshold: float) -> Start:
    """Return the networks that a client starts from, with ``divergence`` and ``personal_predictor`` among the metrics.

    Args:
        received: the global networks, ``encoder`` and ``predictor`` among them.
        local: what the client kept last, the same two among it; empty at first, when it takes everything global.
        threshold: the divergence of encoders from which on it keeps its own predictor.
    """
    if not local.groups:
        return Start(received)
    divergence = weight_divergence(received.groups["encoder"], local.groups["encoder"])
    own = divergence >= threshold
    start = received.with_groups(predictor=local.groups["predictor"]) if own else received
    return Start(start, {"divergence": divergence, "personal_predictor": float(own)})
