"""Processing of an update between client and server: clipping, compression, and noise for user-level privacy.

All of it acts on the difference between what a client shares and what it received. The client half (``encode``) clips and
compresses, and remembers what compression lost (error feedback); the server half (``decode``) rebuilds the update, clips again
because a client's word is no proof, and ``add_noise`` perturbs the mean.

McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR 2018);
Karimireddy et al., "Error Feedback Fixes SignSGD" (ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field, model_validator
from torch import Tensor

from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.noise import NoiseSource
from unisono.core.payload import Payload, Reduce, Share, Tensors, Update
from unisono.federation.compress import compress, decompress
from unisono.federation.declared import own_rows

RESIDUAL = "postprocess.residual"
"""The group of a client's local state that holds what compression lost so far."""


class PrivacyConfig(Section):
    """User-level differential privacy of model updates: the table ``[privacy]``."""

    clip_norm: float | None = Field(None, gt=0, description="largest norm of a client's update")
    noise_multiplier: float = Field(0.0, ge=0, description="standard deviation of the noise on the sum, in units of clip_norm")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta at which epsilon is accounted")
    secure_aggregation: bool = Field(False, description="a real federation's server sees the sum of updates, no single one")
    secure_threshold: float = Field(
        0.0, ge=0, le=1, description="share of the clients that must stay until a secure sum is done; never below two thirds"
    )

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> PrivacyConfig:
        if self.noise_multiplier > 0 and self.clip_norm is None:
            raise ValueError("noise_multiplier needs clip_norm, the norm that the noise hides: set privacy.clip_norm")
        return self


class CompressionConfig(Section):
    """Compression of updates: the table ``[compression]``."""

    bits: int | None = Field(None, ge=8, le=8, description="8: quantise the update to 8 bits with stochastic rounding")
    top_k: float | None = Field(None, gt=0, le=1, description="share of each tensor's entries that is sent")
    error_feedback: bool = Field(True, description="add what was lost to the client's next update")

    @property
    def active(self) -> bool:
        """True if anything is compressed."""
        return self.bits is not None or self.top_k is not None


class Postprocessor:
    """Client half and server half of one mechanism; without clipping or compression an update passes unchanged.

    Args:
        privacy: clipping and noise.
        compression: quantisation and sparsification.
        shares: the method's declared shares; MEAN and ROWS groups are touched, STACK groups pass.
    """

    def __init__(self, privacy: PrivacyConfig, compression: CompressionConfig, shares: Mapping[str, Share]) -> None:
        self.privacy = privacy
        self.compression = compression
        self._shares = shares
        self.active = privacy.clip_norm is not None or compression.active

    def encode(self, update: Update, received: Payload, local: Payload, ctx: Context) -> tuple[Update, Payload]:
        """Return the update as it leaves the client, and the client's new local state."""
        if not self.active:
            return update, local
        reference = self.reference(received, update.client_id)
        deltas = {
            name: tensor - reference[name] if name in reference else tensor
            for name, tensor in update.payload.tensors()
            if self._is_reduced(name)
        }
        residual = local.groups.get(RESIDUAL, {})
        deltas = {name: delta + residual[name] if name in residual else delta for name, delta in deltas.items()}
        deltas = clip(deltas, self.privacy.clip_norm)
        wire = (
            compress(deltas, self.compression.top_k, self.compression.bits, ctx.rng("rounding"))
            if self.compression.active
            else deltas
        )
        if self.compression.active and self.compression.error_feedback:
            arrived = decompress(wire)
            lost = {name: delta - arrived[name] for name, delta in deltas.items()}
            # What other phases send keeps its own residual.
            local = local.with_groups(**{RESIDUAL: {**residual, **lost}})
        return replace(update, payload=self._join(update.payload, wire)), local

    def decode(self, update: Update, received: Payload) -> Update:
        """Return the update as the server uses it: absolute values again."""
        if not self.active:
            return update
        wire = {name: tensor for name, tensor in update.payload.tensors() if self._is_reduced(name)}
        reference = self.reference(received, update.client_id)
        if self.compression.active:
            wire = decompress(wire, self.compression.top_k or 1.0, reference)
        deltas = clip(wire, self.privacy.clip_norm)
        values = {name: reference[name] + delta if name in reference else delta for name, delta in deltas.items()}
        return replace(update, payload=self._join(update.payload, values))

    def add_noise(
        self,
        means: Mapping[str, Tensors],
        broadcast: Payload,
        num_clients: Mapping[str, int],
        expected: int,
        source: NoiseSource,
    ) -> dict[str, Tensors]:
        """Return the means with Gaussian noise: the clipped sum plus noise over the *expected* number of clients.

        Args:
            means: uniform means over the clients that sent the group.
            broadcast: what the clients received.
            num_clients: by group, how many sent it.
            expected: the cohort size that the accountant counts with.
            source: draws the noise.
        """
        if self.privacy.noise_multiplier == 0 or self.privacy.clip_norm is None:
            return dict(means)
        scale = self.privacy.noise_multiplier * self.privacy.clip_norm
        reference = broadcast.flatten()
        noisy: dict[str, Tensor] = {}
        for name, mean in Payload(means).tensors():
            start = reference.get(name, torch.zeros_like(mean))
            noise = (source.normal(*mean.shape) * scale).to(mean.dtype)
            noisy[name] = start + ((mean - start) * num_clients[name.split("/", 1)[0]] + noise) / expected
        return dict(Payload.unflatten(noisy).groups)

    def reference(self, received: Payload, client_id: int) -> dict[str, Tensor]:
        """Return the tensors that a client's own are compared with: those that it received, its own row of ROWS groups."""
        rows = {
            group: own_rows(group, received, client_id)
            for group, share in self._shares.items()
            if share.reduce is Reduce.ROWS and group in received.groups
        }
        return received.with_groups(**rows).flatten()

    def _is_reduced(self, full_name: str) -> bool:
        return self._shares[full_name.split("/", 1)[0]].reduce is not Reduce.STACK

    def _join(self, payload: Payload, tensors: Tensors) -> Payload:
        untouched = {name: tensor for name, tensor in payload.tensors() if not self._is_reduced(name)}
        return Payload.unflatten({**untouched, **tensors})


def clip(tensors: Mapping[str, Tensor], norm: float | None) -> dict[str, Tensor]:
    """Return the tensors scaled down so that their joint L2 norm is at most ``norm``."""
    if norm is None or not tensors:
        return dict(tensors)
    length = math.hypot(*(float(part) for part in torch._foreach_norm(list(tensors.values()))))
    if length <= norm:
        return dict(tensors)
    return {name: tensor * (norm / length) for name, tensor in tensors.items()}
