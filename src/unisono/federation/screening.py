"""Screening of updates: one that is far longer than the others of its round, or unlike them, is left out and named."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from statistics import median

import torch

from unisono.core.payload import Payload, Reduce, Share
from unisono.federation.aggregate import Shapes

FEWEST = 4
"""Answers below which a median says little."""
SPREAD = 0.25
"""The deviation counts as at least this share of the median, so that a small difference between alike clients is none."""
TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""


def update_norm(update: Payload, received: Payload, shares: Mapping[str, Share]) -> float:
    """Return the Euclidean length of what an update changes, over all averaged groups.

    Args:
        update: as it is averaged.
        received: what the client began with; zeros where it has no such group.
        shares: the method's.
    """
    total = 0.0
    for group, tensors in update.groups.items():
        if group not in shares or shares[group].reduce is not Reduce.MEAN:
            continue
        begun = received.groups.get(group, {})
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                change = tensor.double() - begun[name].double() if name in begun else tensor.double()
                total += float(torch.sum(change.square()))
    return float(total**0.5)


def too_long(norms: Mapping[int, float], limit: float) -> dict[int, str]:
    """Return the clients whose updates are far longer than the median, with the reason.

    The score is the distance to the median in robust standard deviations: 1.4826 times the median absolute deviation, and at
    least a quarter of the median.

    Args:
        norms: lengths by client.
        limit: of the score; 0 leaves nobody out.
    """
    if limit == 0 or len(norms) < FEWEST:
        return {}
    middle = median(norms.values())
    deviation = max(TO_SIGMA * median(abs(norm - middle) for norm in norms.values()), SPREAD * middle, sys.float_info.min)
    return {
        client: f"its update has length {norm:.3g}, {(norm - middle) / deviation:.3g} robust standard deviations beyond the "
        f"median of its round ({middle:.3g}), and aggregation.screen = {limit:g} is the most"
        for client, norm in norms.items()
        if not norm - middle <= limit * deviation
    }


def unlike(shapes: Mapping[int, Mapping[str, Shapes]]) -> dict[int, str]:
    """Return the clients that sent tensors of other shapes than most, with the reason.

    Args:
        shapes: of what is averaged, by client and group.
    """
    found: dict[int, str] = {}
    for group in dict.fromkeys(group for sent in shapes.values() for group in sent):
        counts = Counter(tuple(sorted(sent[group].items())) for sent in shapes.values() if group in sent)
        usual = dict(counts.most_common(1)[0][0])
        for client, sent in shapes.items():
            if group in sent and sent[group] != usual:
                found[client] = f"group {group!r} has tensors of other names or shapes than most clients sent"
    return found
