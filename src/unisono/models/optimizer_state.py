"""State of an optimiser by the names of its parameters, so that training can continue where it stopped."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from unisono.models.optimizers import Optimizer

MARK = "#"
"""Separator between a parameter's name and the name of an optimiser value."""


def get_optimizer_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return a copy of what the optimiser remembers of each parameter, such as moments and number of steps, on the CPU.

    Args:
        optimizer: of a client.
        parameters: those it works on, by name.
    """
    return {
        f"{name}{MARK}{key}": value.detach().to("cpu", copy=True)
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]) -> None:
    """Load into a new optimiser what ``get_optimizer_state`` copied.

    Raises:
        ValueError: the state names a parameter that is not among ``parameters``.
    """
    for full_name, value in state.items():
        name, _, key = full_name.rpartition(MARK)
        if name not in parameters:
            raise ValueError(f"the optimiser's state names the parameter {name!r}, which there is none of")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device, copy=True)
