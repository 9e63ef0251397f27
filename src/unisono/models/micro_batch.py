"""Networks that take a batch in parts: the same gradient as of the whole batch, with the memory of one part.

Miao & Koyuncu, "Federated Momentum Contrastive Clustering", section VI, after Gao et al., "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup" (2021). A contrastive loss couples all samples of a batch, so its gradient cannot be
summed over parts; but it reaches a network through the outputs alone, and each output row depends on its own input row. So the
batch is embedded in parts without a graph, the loss gives the gradient of the outputs, and every part is passed again with a
graph that the gradient of its rows is fed into. Any loss will do, because the line is drawn at the networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class InParts(nn.Module):
    """The same network, a few rows at a time; it keeps the outputs and no activations. For ``backward()`` only.

    Args:
        net: gives each output row from the same row of its input and from nothing else, neither other rows nor chance.
        num_rows: rows that pass at a time.
    """

    def __init__(self, net: nn.Module, num_rows: int) -> None:
        super().__init__()
        self.net = net
        self.num_rows = num_rows

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.net, name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of ``net`` for the whole of x."""
        parts = x.split(self.num_rows)
        if not torch.is_grad_enabled():
            return torch.cat([self.net(part) for part in parts])
        # Samples need no gradient, and without one among its inputs a function has no backward pass.
        tie = torch.ones((), device=x.device, requires_grad=True)
        return torch.cat([_TwoPasses.apply(self.net, part, tie) for part in parts])  # type: ignore[no-untyped-call]


class _TwoPasses(torch.autograd.Function):
    """A pass without a graph; in the backward pass another one with a graph, which adds to the parameters' gradients.

    ``torch.utils.checkpoint`` does the same, but imports a compiler for it: 40 MB and a second in every worker.
    """

    @staticmethod
    def forward(ctx: Any, net: nn.Module, x: Tensor, tie: Tensor) -> Tensor:
        ctx.net = net
        ctx.save_for_backward(x)
        device = x.device.type
        ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        return net(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (saved,) = ctx.saved_tensors
        x = saved.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad(), torch.autocast(*ctx.autocast):
            output = ctx.net(x)
        torch.autograd.backward(output, gradients)
        return None, x.grad, None


@contextmanager
def in_parts(nets: nn.ModuleDict, num_rows: int | None) -> Iterator[None]:
    """Let every network take at most ``num_rows`` rows at a time inside the block; None changes nothing."""
    if num_rows is None:
        yield
        return
    whole = dict(nets.items())
    # A module without a forward pass, which only holds tensors, stays what it is.
    nets.update({name: InParts(net, num_rows) for name, net in whole.items() if type(net).forward is not nn.Module.forward})
    try:
        yield
    finally:
        nets.update(whole)


def can_take_parts(net: nn.Module) -> bool:
    """Return whether every output row depends on its input row alone: no BatchNorm, which mixes rows, and no Dropout."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return not any(isinstance(part, kinds) for part in net.modules())
