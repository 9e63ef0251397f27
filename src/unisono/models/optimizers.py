"""Optimisers of clients: torch's fused kernels, called without ``torch.optim``.

The first optimiser of ``torch.optim`` imports a compiler: 70 MB and a second in every process tree. The arithmetic is the same,
kernel by kernel, so results are bit-identical. A large network steps inside its backward pass: every gradient is used and
dropped as soon as it is there, so that all of them never lie side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

LARGE = 4_000_000
"""Numbers in all parameters from which on gradients are used one by one; below, one call for all of them is faster."""
BETAS, EPSILON = (0.9, 0.999), 1e-8

watchers: list[Callable[[], None]] = []
"""Called after every step of an optimiser of this process."""


class Optimizer:
    """SGD with momentum, or Adam.

    Args:
        kind: ``sgd`` or ``adam``.
        parameters: what is trained.
        learning_rate: step size.
        weight_decay: L2 penalty.
        momentum: of SGD.
    """

    def __init__(
        self,
        kind: Literal["sgd", "adam"],
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        """Memory of each parameter, under the names of ``torch.optim``."""
        self.param_groups: list[dict[str, Any]] = [{"params": self.parameters}]
        """The parameters, where a ``GradScaler`` looks for them."""
        self.is_last = False
        """True if nothing will be remembered of the next step: momentum then takes no memory in the first one."""
        self._kind = kind
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._momentum = momentum
        self._inside = False

    @property
    def is_large(self) -> bool:
        """True if the gradients take much memory."""
        return sum(parameter.numel() for parameter in self.parameters) >= LARGE

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient; those that were updated inside the backward pass have none."""
        if not self._inside:
            self._update([parameter for parameter in self.parameters if parameter.grad is not None])
        for watcher in watchers:
            watcher()

    @contextmanager
    def inside_backward(self, prepare: Callable[[nn.Parameter], None] | None = None) -> Iterator[None]:
        """Update each parameter in the block's backward passes, as soon as its gradient is whole, and drop the gradient.

        Args:
            prepare: may change the gradient of a parameter before.
        """

        @torch.no_grad()
        def update(parameter: Tensor) -> None:
            if isinstance(parameter, nn.Parameter):
                if prepare is not None:
                    prepare(parameter)
                self._update([parameter])
            parameter.grad = None

        hooks = [parameter.register_post_accumulate_grad_hook(update) for parameter in self.parameters]
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            for hook in hooks:
                hook.remove()

    def _update(self, parameters: list[nn.Parameter]) -> None:
        # A bound method as an attribute would be a cycle, which keeps the moments until the next collection of garbage.
        if self._kind == "adam":
            self._adam(parameters)
        else:
            self._sgd(parameters)

    def _sgd(self, parameters: list[nn.Parameter]) -> None:
        if not self._momentum:
            self._fused_sgd(parameters, [], False)
            return
        new = [parameter for parameter in parameters if parameter not in self.state]
        known = [parameter for parameter in parameters if parameter in self.state] if new else parameters
        if self.is_last:  # the first momentum is the gradient itself
            self._fused_sgd(new, [], False)
            new = []
        for parameter in new:
            self.state[parameter]["momentum_buffer"] = torch.empty_like(parameter)
        for part, is_first in ((new, True), (known, False)):
            self._fused_sgd(part, [self.state[parameter]["momentum_buffer"] for parameter in part], is_first)

    def _fused_sgd(self, parameters: list[nn.Parameter], buffers: list[Tensor], is_first: bool) -> None:
        if parameters:
            torch._fused_sgd_(
                list[Tensor](parameters),
                _gradients(parameters),
                buffers,
                weight_decay=self._weight_decay,
                momentum=self._momentum if buffers else 0.0,
                lr=self._learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=is_first,
            )

    def _adam(self, parameters: list[nn.Parameter]) -> None:
        if not parameters:
            return
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            list[Tensor](parameters),
            _gradients(parameters),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=self._learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self._weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
