"""FedU's rule for clients that keep state: a client keeps its own predictor where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021): the
"divergence-aware predictor update". Orchestra's paper gives it to SimSiam and BYOL across silos; there the divergence is that
of the global encoder from the one that the client trained last.
"""

from __future__ import annotations

from unisono.core.payload import Payload
from unisono.methods.local_training import Start
from unisono.models.nets import weight_divergence


def start_across_silos(received: Payload, local: Payload, threshold: float) -> Start:
    """Return the networks that a client of SimSiam or BYOL starts from, by the distance of its last encoder to the global one.

    Args:
        received: the global networks, ``encoder`` and ``predictor`` among them.
        local: what the client kept last, the same two among it; empty at first, when it takes everything global.
        threshold: the divergence from which on it keeps its own predictor.
    """
    known = bool(local.groups)
    divergence = weight_divergence(received.groups["encoder"], local.groups["encoder"]) if known else None
    return start_with_own_predictor(received, local, divergence, threshold)


def start_with_own_predictor(received: Payload, local: Payload, divergence: float | None, threshold: float) -> Start:
    """Return the networks that a client starts from, with ``divergence`` and ``personal_predictor`` among the metrics.

    Args:
        received: the global networks, ``predictor`` among them.
        local: what the client kept last, its predictor among it.
        divergence: of the client; None takes everything global, as a client that has not trained before does.
        threshold: the divergence from which on it keeps its own predictor.
    """
    if divergence is None:
        return Start(received)
    own = divergence >= threshold
    start = received.with_groups(predictor=local.groups["predictor"]) if own else received
    return Start(start, {"divergence": divergence, "personal_predictor": float(own)})
