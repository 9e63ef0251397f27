"""Outputs of the received networks for a client's own samples, before the client trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.payload import Payload
from unisono.models.nets import load_state


@torch.no_grad()
def embed_before_training(
    nets: nn.ModuleDict,
    names: Iterable[str],
    received: Payload,
    data: ClientData,
    output: Callable[[Tensor], Tensor],
    batch_size: int = 512,
) -> Tensor:
    """Return outputs for every un-augmented sample of the client, in eval mode, shape (len(data), dim); (0,) without samples.

    Args:
        nets: left with the received weights.
        names: which of them to load.
        received: what the server sent.
        data: the client's samples.
        output: samples to outputs, by these networks.
        batch_size: samples per forward pass.
    """
    for name in names:
        load_state(nets[name], received.groups[name])
    nets.eval()
    parts = [output(data.batch(positions)).float() for positions in torch.arange(len(data)).split(batch_size)]
    return torch.cat(parts) if len(data) else torch.empty(0, device=data.device)
