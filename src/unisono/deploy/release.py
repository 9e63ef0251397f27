"""The last changes of an update before it leaves a client: the owner's clipping and noise, and coarser numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from unisono.core.method import Method
from unisono.core.noise import SystemNoise
from unisono.core.payload import Payload, Reduce, Share, Update
from unisono.deploy.policy_tables import ALL, BudgetTable, Policy
from unisono.deploy.refusal import RefusedError
from unisono.federation.postprocess import Postprocessor, clip


def protect(
    update: Update,
    received: Payload,
    postprocessor: Postprocessor,
    shares: Mapping[str, Share],
    budget: BudgetTable,
    noisy_clients: int = 1,
) -> Update:
    """Return the update clipped and with this client's own noise.

    Args:
        update: as it would leave: absolute values, or differences where the recipe clips them.
        received: what the client's step read.
        postprocessor: of the recipe.
        shares: the method's.
        budget: the owner's.
        noisy_clients: honest clients of a masked sum whose noise adds up to the owner's; 1 adds all of it here.
    """
    norm = budget.clip_norm
    if norm is None:
        return update
    reference = {} if postprocessor.active else postprocessor.reference(received, update.client_id)
    reduced = {name: t for name, t in update.payload.tensors() if shares[name.split("/", 1)[0]].reduce is not Reduce.STACK}
    floats = {name: tensor for name, tensor in reduced.items() if tensor.is_floating_point()}
    deltas = {name: t - reference[name] if name in reference else t for name, t in floats.items()}
    source, scale = SystemNoise(), norm * budget.noise_multiplier / math.sqrt(noisy_clients)
    if scale and any(name.endswith("running_var") for name in floats):
        raise RefusedError(
            "this client adds noise, which would make the variances of BatchNorm negative: set model.norm = 'group' in the "
            "recipe.",
            "budget.noise_multiplier",
        )
    noisy = {}
    for name, delta in clip(deltas, norm).items():
        changed = delta + (scale * source.normal(*delta.shape)).to(delta.dtype) if scale else delta
        noisy[name] = reference[name] + changed if name in reference else changed
    # Whole numbers, such as counts of batches, take no noise: they leave as they came.
    counts = {name: reference.get(name, torch.zeros_like(t)) for name, t in reduced.items() if name not in floats}
    others = {name: t for name, t in update.payload.tensors() if name not in reduced}
    return replace(update, payload=Payload.unflatten({**others, **noisy, **counts}, group_names=update.payload.groups))


def told_numbers(update: Update, policy: Policy, method: Method) -> Update:
    """Return the update with the metrics that may leave, with three digits, and a weight no more exact than allowed."""
    names = () if policy.budget.max_epsilon is not None else policy.allow.metrics
    metrics = {name: value if ALL in names else rounded(value, 3) for name, value in update.metrics.items()}
    kept = {name: value for name, value in metrics.items() if name in names or ALL in names}
    statistics, weight = policy.require.statistics, update.weight
    if statistics != "exact":
        weight = rounded(weight, 2, down=True)
    if statistics == "none":
        weight = min(weight, method.max_weight(1))
    return replace(update, metrics=kept, weight=weight)


def rounded(value: float, digits: int, down: bool = False) -> float:
    """Return a number with so many digits.

    Args:
        value: finite.
        digits: that stay.
        down: towards zero, so that a count is never too large.
    """
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    steps = math.trunc(value / unit) if down else round(value / unit)
    return float(f"{steps * unit:.{digits}g}")
