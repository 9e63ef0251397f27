"""Points on their way between neighbours, and the ledger of what went over each link.

The server carries them: a tensor that device j addresses to device i stands under ``j>i.points`` until i has fetched it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from unisono.data.graph import DeviceGraph

PARTS = ("points", "rows")


def post(stack: Iterable[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """The mail of all senders in one box.

    Args:
        stack: by sender, ``i.points`` and ``i.rows`` for each receiver i.
    """
    return {f"{sender}>{address}": tensor for sender, tensors in stack for address, tensor in tensors.items()}


def fetch(mail: Mapping[str, Tensor], sender: int, receiver: int) -> dict[str, Tensor]:
    """``points`` and ``rows`` that one device sends to another, empty where it sends none."""
    names = {part: f"{sender}>{receiver}.{part}" for part in PARTS}
    return {part: mail[name] for part, name in names.items() if name in mail}


def make_ledger(
    graph: DeviceGraph, reserve: Mapping[str, Tensor], mail: Mapping[str, Tensor], point: Tensor
) -> dict[str, Tensor]:
    """What a round moves over each link in each direction: equally long rows, each of shape (2 * number of links,).

    Args:
        graph: the links.
        reserve: by device, the points it pushes to all its neighbours; empty after the first round.
        mail: what devices offer each other.
        point: any tensor of the type and shape of one point.
    """
    links = sorted([*graph.edges, *((b, a) for a, b in graph.edges)])
    pushed = torch.tensor([len(reserve.get(str(sender), ())) for sender, _ in links], dtype=torch.int64)
    pulled = torch.tensor([len(fetch(mail, *link).get("points", ())) for link in links], dtype=torch.int64)
    return {
        "senders": torch.tensor([sender for sender, _ in links], dtype=torch.int64),
        "receivers": torch.tensor([receiver for _, receiver in links], dtype=torch.int64),
        "pushed": pushed,
        "pulled": pulled,
        "bytes": (pushed + pulled) * point.numel() * point.element_size(),
    }
