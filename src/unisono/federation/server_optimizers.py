"""Server optimisers: the mean client delta as a pseudo-gradient (Reddi et al., "Adaptive Federated Optimization", ICLR 2021).

``torch.optim`` does the arithmetic where it has the optimiser, with its bias correction, which the paper leaves out.
Running statistics of normalisation layers are no parameters: they take the plain mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unisono.core.config import Section
from unisono.core.payload import Payload, Tensors

STATISTICS = ("running_mean", "running_var")
_STEP_SIZES = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.001, "fedyogi": 0.01, "fedadagrad": 0.01}


class ServerOptimizerConfig(Section):
    """Step of the server towards the clients' mean: the table ``[server]``."""

    optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"] = Field(
        "fedavg", description="server optimiser"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="default 1 for fedavg and fedavgm, 0.001 for fedadam, 0.01 for fedyogi and fedadagrad"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of fedavgm")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment (fedadam, fedyogi)")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the second moment (fedadam, fedyogi)")
    epsilon: float = Field(1e-8, gt=0, description="added to the root of the second moment")

    @property
    def step_size(self) -> float:
        """The learning rate, or the optimiser's own default."""
        return _STEP_SIZES[self.optimizer] if self.learning_rate is None else self.learning_rate


def optimize(
    config: ServerOptimizerConfig, server: Mapping[str, Tensors], means: Mapping[str, Tensors], state: Payload
) -> tuple[dict[str, Tensors], Payload]:
    """Return the server's next tensors for every mean group, and the optimiser's next state.

    Groups that the server does not hold, tensor by tensor and shape by shape, are statistics of the round and pass through.

    Args:
        config: which optimiser.
        server: the server's groups before the round.
        means: the clients' means.
        state: what the last call returned, empty at first.
    """
    if config.optimizer == "fedavg" and config.step_size == 1.0:
        return dict(means), state
    updated: dict[str, Tensors] = {}
    new_state = dict(state.groups)
    for group, mean in means.items():
        if _shapes(server.get(group, {})) != _shapes(mean):
            updated[group] = mean
            continue
        updated[group], new_state[group] = _optimize_group(config, server[group], mean, state.groups.get(group, {}))
    return updated, Payload(new_state)


def _optimize_group(config: ServerOptimizerConfig, server: Tensors, mean: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
    names = [name for name in mean if mean[name].is_floating_point() and not name.endswith(STATISTICS)]
    if not names:
        return mean, state
    parameters = [nn.Parameter(server[name].clone()) for name in names]
    optimizer = _OPTIMIZERS[config.optimizer](config, parameters)
    by_name = dict(zip(names, parameters, strict=True))
    for name, parameter in by_name.items():
        parameter.grad = server[name] - mean[name]
    for full_name, value in state.items():
        name, _, key = full_name.rpartition("#")
        if name in by_name:
            optimizer.state[by_name[name]][key] = value.clone()
    optimizer.step()
    result = dict(mean)
    result.update({name: parameter.detach() for name, parameter in by_name.items()})
    new_state = {
        f"{name}#{key}": value.detach()
        for name, parameter in by_name.items()
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }
    return result, new_state


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


class Yogi(torch.optim.Optimizer):
    """Zaheer et al., "Adaptive Methods for Nonconvex Optimization" (NeurIPS 2018); no bias correction, as in Reddi et al."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one step: v <- v - (1 - beta2) g^2 sign(v - g^2); w <- w - lr m / (sqrt(v) + eps)."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state, grad = self.state[parameter], parameter.grad
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.full_like(parameter, group["eps"] ** 2)
                state["exp_avg"].lerp_(grad, 1 - beta1)
                square = grad.square()
                state["exp_avg_sq"].sub_((1 - beta2) * square * torch.sign(state["exp_avg_sq"] - square))
                parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"])


_OPTIMIZERS: dict[str, Callable[[ServerOptimizerConfig, list[nn.Parameter]], torch.optim.Optimizer]] = {
    "fedavg": lambda c, p: torch.optim.SGD(p, lr=c.step_size),
    "fedavgm": lambda c, p: torch.optim.SGD(p, lr=c.step_size, momentum=c.momentum),
    "fedadam": lambda c, p: torch.optim.Adam(p, lr=c.step_size, betas=(c.beta1, c.beta2), eps=c.epsilon),
    "fedyogi": lambda c, p: Yogi(p, lr=c.step_size, betas=(c.beta1, c.beta2), eps=c.epsilon),
    "fedadagrad": lambda c, p: torch.optim.Adagrad(p, lr=c.step_size, eps=c.epsilon),
}
