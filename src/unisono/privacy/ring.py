"""Numbers as words of 16, 32 or 64 bits, which add up modulo 2^bits, and the streams that mask them.

A word is a level between ``-top`` and ``top``, with ``num_clients * top < 2^(bits - 1)``, so the sum over all clients never
overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = (16, 32, 64)
FEWEST_LEVELS = 127
"""Levels on each side of zero below which a mean would be too coarse."""
EXACT = 2**24
"""Levels from which rounding to the nearest is as fine as float32; with fewer, rounding is stochastic."""
CHUNK = 2**16
"""Words handled at a time, so that they stay in the processor's cache."""
Words = NDArray[Any]


class Ring:
    """Words of one size, for sums over so many clients; raises a ValueError if they are too short for them.

    Args:
        bits: of a word.
        num_clients: how many are summed.
    """

    def __init__(self, bits: int, num_clients: int) -> None:
        if bits not in BITS:
            raise ValueError(f"words of a masked sum have {BITS} bits, got {bits}")
        top = (2 ** (bits - 1) - 1) // num_clients
        self.top = top & ~0x7FF if bits == 64 else top  # a float64 holds 53 bits
        if self.top < FEWEST_LEVELS:
            raise ValueError(f"words of {bits} bits are too short for a sum over {num_clients} clients: take {2 * bits}")
        self.dtype = np.dtype(f"<u{bits // 8}")
        self._signed = np.dtype(f"<i{bits // 8}")

    def encode(self, values: NDArray[Any], weight: float, limit: float, rng: np.random.Generator, words: Words) -> int:
        """Write ``weight * values`` as words, and return how many values were beyond the limit and were cut to it.

        Args:
            values: floats, one-dimensional.
            weight: between 0 and 1.
            limit: the largest magnitude.
            rng: draws the rounding where levels are few.
            words: where they go, as long as ``values``.
        """
        cut = 0
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK].astype(np.float64)
            cut += int(np.count_nonzero(np.abs(part) > limit))
            np.clip(part, -limit, limit, out=part)
            part *= weight * self.top / limit
            if self.top < EXACT:
                part += rng.random(len(part))
                np.floor(part, out=part)
            else:
                np.rint(part, out=part)
            np.clip(part, -self.top, self.top, out=part)
            words[start : start + CHUNK] = part.astype(self._signed).view(self.dtype)
        return cut

    def decode(self, words: Words, limit: float) -> NDArray[np.float64]:
        """Return the sum of weighted values that a sum of words stands for."""
        values: NDArray[np.float64] = words.view(self._signed).astype(np.float64)
        values *= limit / self.top
        return values


def add_streams(parts: Sequence[Words], streams: Sequence[tuple[bytes, int]]) -> None:
    """Add key streams to words, in place: AES-256 in counter mode, whose keys are used once.

    Args:
        parts: arrays of words; a stream goes on from one to the next.
        streams: key of 32 bytes, and 1 to add it or -1 to subtract it.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    encryptors = [(Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), sign) for key, sign in streams]
    zeros, buffer = bytes(8 * CHUNK), bytearray(8 * CHUNK + 16)
    for part in parts:
        for start in range(0, len(part), CHUNK):
            piece = part[start : start + CHUNK]
            for encryptor, sign in encryptors:
                encryptor.update_into(memoryview(zeros)[: piece.nbytes], buffer)
                stream = np.frombuffer(buffer, part.dtype, len(piece))
                (np.add if sign > 0 else np.subtract)(piece, stream, out=piece)
