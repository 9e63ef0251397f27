"""Named networks: read, load and average their states.

A state is every parameter and every persistent float buffer, by name. Integer buffers (BatchNorm's ``num_batches_tracked``)
are no part of it, because no mean of them makes sense, nor are non-persistent buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
_lending = ContextVar("lending", default=False)


def build_seeded(build: Callable[[], M], generator_seed: int) -> M:
    """Return the networks that ``build`` makes with torch's global generator at this seed; the generator is left as it was.

    Args:
        build: makes networks on the CPU.
        generator_seed: below 2^63.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(generator_seed)
        return build()


def get_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state, on the CPU."""
    return {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format) for name, tensor in state_view(module).items()
    }


@contextmanager
def lending(allowed: bool) -> Iterator[None]:
    """Let ``lent_state`` return the networks' own tensors inside the block, as who reads them does so at once."""
    token = _lending.set(allowed)
    try:
        yield
    finally:
        _lending.reset(token)


def lent_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state as ``get_state`` does, but without a copy inside ``lending`` where none is needed."""
    if not _lending.get():
        return get_state(module)
    return {name: tensor.cpu().contiguous() for name, tensor in state_view(module).items()}


def state_view(module: nn.Module) -> dict[str, Tensor]:
    """Return the state itself, without gradients: it changes as the module trains, so read it at once."""
    # named_parameters() walks through all parts once more, which a small network feels.
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters[prefix + name] = parameter.detach()
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in part._non_persistent_buffers_set:
                buffers[prefix + name] = buffer.detach()
    return parameters | buffers


def set_mode(module: nn.Module, training: bool) -> None:
    """Set train or eval mode where a part has the other one: ``train`` writes to every part, even to change nothing."""
    if any(part.training != training for part in module.modules()):
        module.train(training)


def load_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy a state into the module, in place; a variance that was rounded below 0 on its way, as compression may do, becomes 0.

    Raises:
        ValueError: a tensor is missing, has another shape, or is unknown; names the first one.
    """
    own = state_view(module)
    for name, tensor in own.items():
        if name not in tensors:
            raise ValueError(f"the state lacks the tensor {name!r} of shape {tuple(tensor.shape)}")
        if tensors[name].shape != tensor.shape:
            raise ValueError(f"tensor {name!r} must have shape {tuple(tensor.shape)}, got {tuple(tensors[name].shape)}")
    if len(tensors) > len(own):
        unknown = next(name for name in tensors if name not in own)
        raise ValueError(f"the state has a tensor {unknown!r} that the module does not know")
    if own:
        torch._foreach_copy_(list(own.values()), [tensors[name] for name in own])
        for name, tensor in own.items():
            if name.endswith("running_var"):
                tensor.clamp_(min=0)


def add_targets(nets: nn.ModuleDict, names: Sequence[str]) -> nn.ModuleDict:
    """Return the same networks, and frozen copies of the named ones whose names begin with ``target_``."""
    nets.update({f"target_{name}": freeze(deepcopy(nets[name])) for name in names})
    return nets


def update_ema(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """Move the target's parameters towards the online ones, in place: target = momentum * target + (1 - momentum) * online.

    Buffers stay: the BatchNorm statistics of a target, which is in train mode, follow the batches that pass through it.

    Args:
        target: the slow copy.
        online: a module of the same shape.
        momentum: 1 leaves the target as it is, 0 makes it a copy.
    """
    averages, values = (
        {name: parameter.detach() for name, parameter in module.named_parameters()} for module in (target, online)
    )
    if averages.keys() != values.keys():
        odd = min(averages.keys() ^ values.keys())
        raise ValueError(f"only one of target and online has the parameter {odd!r}")
    if averages:
        torch._foreach_lerp_(list(averages.values()), [values[name] for name in averages], 1 - momentum)


def weight_divergence(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return the mean over convolution kernels of the L2 distance between two states of one network.

    As in the code of FedU (EasyFL), which takes the weights that are called ``conv``, the kernels of shortcuts do not count. A
    network without convolutions is measured by its weight matrices.

    Args:
        first: a state.
        second: another, with the same names and shapes.
    """
    kernels = [name for name, tensor in first.items() if tensor.dim() > 2 and "shortcut" not in name]
    names = kernels or [name for name, tensor in first.items() if tensor.dim() > 1]
    if not names:
        return 0.0
    differences = torch._foreach_sub([first[name] for name in names], [second[name] for name in names])
    return float(torch.stack(torch._foreach_norm(differences)).mean())


def mix_states(first: Mapping[str, Tensor], second: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Return the state weight * first + (1 - weight) * second, with the batch statistics of ``second`` as they are."""
    names = [name for name in first if not name.endswith(("running_mean", "running_var"))]
    mixed = torch._foreach_lerp([second[name] for name in names], [first[name] for name in names], weight) if names else []
    return {**second, **dict(zip(names, mixed, strict=True))}


def freeze(module: M) -> M:
    """Return the same module, whose parameters take no gradients any more; its train or eval mode stays."""
    return module.requires_grad_(False)
