"""Secure aggregation by pairwise masks: the server learns the sum of all updates, and nothing about a single one.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), Section 4.0.1: every pair of
clients shares a secret, stretched to a mask that one of them adds and the other subtracts, so that masks cancel in the sum over
all of them. Numbers are whole, modulo 2^64, so a masked one is uniformly distributed. Without the paper's recovery from
dropouts: if anyone is missing, the sum is noise, and the round is retried with new masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from unisono.core.payload import Tensors

FRACTION_BITS = 24
"""Values are rounded to multiples of 2^-24, about the precision of float32 near 1."""
HEADROOM = 2.0**62


def to_fixed_point(tensors: Tensors, weight: float, num_clients: int) -> dict[str, Tensor]:
    """Return ``weight`` times the tensors, as whole multiples of 2^-24 in int64; raise a ValueError if the sum could overflow.

    Args:
        tensors: floats.
        weight: of this client in the mean.
        num_clients: how many are summed.
    """
    fixed = {}
    for name, tensor in tensors.items():
        scaled = tensor.double() * (weight * 2**FRACTION_BITS)
        if scaled.numel() and float(scaled.abs().max()) * num_clients >= HEADROOM:
            raise ValueError(f"{name} times the weight {weight:g} is too large for secure aggregation")
        fixed[name] = scaled.round().to(torch.int64)
    return fixed


def from_fixed_point(tensors: Tensors) -> dict[str, Tensor]:
    """Return the float32 values that whole multiples of 2^-24 stand for."""
    return {name: (tensor.double() / 2**FRACTION_BITS).float() for name, tensor in tensors.items()}


def mask(tensors: Tensors, client_id: int, secrets: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Return the tensors plus this client's masks, modulo 2^64.

    Args:
        tensors: int64.
        client_id: whose.
        secrets: 32 bytes by other client, for this sum only: used twice, they would give away a difference.
    """
    masked = {name: tensor.clone() for name, tensor in tensors.items()}
    for other in sorted(secrets):
        stream = _Stream(secrets[other])
        sign = 1 if client_id < other else -1
        for name in sorted(masked):
            masked[name] += sign * stream.draw(masked[name])
    return masked


def sum_masked(parts: Mapping[int, Tensors]) -> dict[str, Tensor]:
    """Return the sum over all clients, modulo 2^64, in which masks cancel; raise a ValueError if names, types or shapes differ.

    Args:
        parts: by client, what ``mask`` returned.
    """
    total: dict[str, Tensor] = {}
    for client_id in sorted(parts):
        tensors = parts[client_id]
        if any(tensor.dtype != torch.int64 for tensor in tensors.values()):
            raise ValueError(f"client {client_id} sent numbers that are not masked")
        if not total:
            total = {name: tensor.clone() for name, tensor in tensors.items()}
            continue
        if {name: t.shape for name, t in tensors.items()} != {name: t.shape for name, t in total.items()}:
            raise ValueError(f"client {client_id} sent other names or shapes than the clients before")
        for name, tensor in tensors.items():
            total[name] += tensor
    return total


class _Stream:
    """Uniform int64 numbers from a secret: the key stream of AES-256 in counter mode."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # The secret is used once, so the counter may begin at 0.
        self._encryptor = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()

    def draw(self, like: Tensor) -> Tensor:
        data = bytearray(self._encryptor.update(bytes(8 * math.prod(like.shape))))
        return torch.frombuffer(data, dtype=torch.int64).reshape(like.shape) if data else torch.zeros_like(like)
