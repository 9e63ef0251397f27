"""Networks that take a batch in parts: the same gradient as of the whole batch, with the memory of one part.

Miao & Koyuncu, "Federated Momentum Contrastive Clustering", section VI, after Gao et al., "Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup" (2021). A contrastive loss couples all samples of a batch, so its gradient cannot be
summed over parts; but it reaches a network through the outputs alone, and each output row depends on its own input row. So the
batch is embedded in parts without a graph, the loss gives the gradient of the outputs, and every part is passed again with a
graph that the gradient of its rows is fed into.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class InParts(nn.Module):
    """The same network, a few rows at a time; it keeps the outputs and no activations.

    Args:
        net: gives each output row from the same row of its input, and from nothing else.
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
        """What ``net`` gives for the whole of x."""
        parts = x.split(self.num_rows)
        if not torch.is_grad_enabled():
            return torch.cat([self.net(part) for part in parts])
        # The reentrant kind passes a part without a graph at first; the other kind keeps one, empty but for its nodes, and these
        # between large tensors tear holes into the memory of a CPU. It needs an input with a gradient, and samples have none.
        tie = torch.ones((), device=x.device, requires_grad=True)
        return torch.cat([checkpoint(self._pass, part, tie, use_reentrant=True) for part in parts])

    def _pass(self, part: Tensor, tie: Tensor) -> Tensor:
        return self.net(part)  # type: ignore[no-any-return]


@contextmanager
def in_parts(nets: nn.ModuleDict, num_rows: int | None) -> Iterator[None]:
    """Inside, every network takes at most ``num_rows`` rows at a time; nothing changes where that is None."""
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


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a network has BatchNorm, whose output rows depend on the other rows of their part."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.modules())
