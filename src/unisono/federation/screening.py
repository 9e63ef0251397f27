"""Screening of updates: one that is far longer than the others of its round, or has another form, is left out, and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

import torch

from unisono.core.payload import Payload, Reduce, Reveals, Share

FEWEST = 4
"""Answers below which a median says little."""
SPREAD = 0.25
"""The deviation counts as at least this share of the median, so that a small difference between alike clients is none."""
MOST_ROWS, FEW_ROWS = 10, 25
"""Rows of statistics that a client may send, in multiples of the median; a smaller median counts as the second number."""
ALIKE = (Reveals.STATISTICS, Reveals.REPRESENTATIONS)
"""Contents of groups that all clients send in one form, where they are not averaged."""
Form = tuple[tuple[str, str, tuple[int, ...]], ...]
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
    deviation = max(TO_SIGMA * median(abs(norm - middle) for norm in norms.values()), SPREAD * middle)
    return {
        client: f"its update has length {norm:.3g}, and the median of this round is {middle:.3g}: beyond aggregation.screen"
        for client, norm in norms.items()
        if not norm - middle <= limit * deviation
    }


def is_compared(share: Share) -> bool:
    """Return whether all clients send a group in one form, that the server does not know before."""
    return share.reduce is Reduce.STACK and share.reveals in ALIKE


def forms(update: Payload, shares: Mapping[str, Share]) -> dict[str, tuple[Form, int]]:
    """Return the form of each group that is not averaged and that all clients send alike, and its number of rows.

    Args:
        update: a client's.
        shares: the method's.
    """
    found = {}
    for group, tensors in update.groups.items():
        share = shares.get(group)
        if share is None or not is_compared(share):
            continue
        form = tuple((name, f"{t.dtype} {t.dim()}", tuple(t.shape[1:])) for name, t in sorted(tensors.items()))
        rows = max((len(tensor) for tensor in tensors.values() if tensor.dim()), default=0)
        found[group] = (form, rows if share.reveals is Reveals.STATISTICS else 0)
    return found


def misfits(told: Mapping[int, Mapping[str, tuple[Form, int]]]) -> dict[int, str]:
    """Return the clients whose groups have another form than most others', or very many rows, with the reason.

    Args:
        told: by client, what ``forms`` returned.
    """
    reasons: dict[int, str] = {}
    for group in sorted({group for groups in told.values() for group in groups}):
        senders = {client: told[client][group] for client in sorted(told) if group in told[client]}
        common = Counter(form for form, _ in senders.values()).most_common(1)[0][0]
        most = MOST_ROWS * max(FEW_ROWS, median(rows for form, rows in senders.values() if form == common))
        for client, (form, rows) in senders.items():
            if form != common:
                reasons.setdefault(client, f"its group {group!r} has another form than that of most others")
            elif rows > most:
                reasons.setdefault(client, f"its group {group!r} has {rows} rows, and {most:g} are the most in this round")
    return reasons
