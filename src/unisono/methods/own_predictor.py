"""FedU's rule for clients that keep state: a client keeps its own predictor where the models have drifted apart.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data" (ICCV 2021): the
"divergence-aware predictor update". A client takes the global networks, but its own predictor when the global encoder is far
from the one it trained last. Orchestra's paper gives it to SimSiam and BYOL across silos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import nn

from unisono.core.payload import Payload, Update
from unisono.models.nets import get_state, load_state, weight_divergence


def train_with_own_predictor(
    train: Callable[[Payload], Update],
    nets: nn.ModuleDict,
    received: Payload,
    local: Payload,
    threshold: float,
    kept: Sequence[str],
) -> tuple[Update, Payload]:
    """The client's update, with ``divergence`` and ``own_predictor`` among its metrics, and its new local state.

    Args:
        train: trains ``nets`` from the networks it is given.
        nets: the client's networks.
        received: the global ones, ``encoder`` and ``predictor`` among them.
        local: what the client kept last; empty at first, when it takes everything global.
        threshold: the divergence of encoders from which on it keeps its own predictor.
        kept: the networks that it keeps, ``encoder`` and ``predictor`` among them.
    """
    start, metrics = received, {}
    if local.groups:
        divergence = weight_divergence(received.groups["encoder"], local.groups["encoder"])
        own = divergence >= threshold
        metrics = {"divergence": divergence, "own_predictor": float(own)}
        start = received.with_groups(predictor=local.groups["predictor"]) if own else received
    update = train(start)
    return replace(update, metrics={**update.metrics, **metrics}), Payload({name: get_state(nets[name]) for name in kept})


def load_own_targets(nets: nn.ModuleDict, followed: Iterable[str], received: Payload, local: Payload) -> None:
    """Loads the targets that the client kept, or at first the global online networks in their place.

    Args:
        nets: holds ``target_`` networks.
        followed: the online networks that have a target.
        received: the global networks.
        local: what the client kept last.
    """
    for name in followed:
        target = f"target_{name}"
        load_state(nets[target], local.groups[target] if local.groups else received.groups[name])
