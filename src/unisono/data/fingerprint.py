"""Fingerprint of a data set: the same for the same samples and labels in the same order."""

from __future__ import annotations

import zlib

import torch

from unisono.core.mapped import some_chunks
from unisono.data.datasets import Dataset

CHUNK = 4096
"""Samples that are read at a time."""


def fingerprint(dataset: Dataset) -> str:
    """Return a checksum of samples, labels and owners; it finds changes, not forgery, and of more than 2 GB it reads a part."""
    total = 0
    for tensor in (dataset.samples, dataset.labels, dataset.test_samples, dataset.test_labels, dataset.owners):
        if tensor is None:
            total = zlib.crc32(b"none", total)
            continue
        total = zlib.crc32(f"{tuple(tensor.shape)} {tensor.dtype}".encode(), total)
        for part in some_chunks(tensor, CHUNK):
            total = zlib.crc32(part.contiguous().view(torch.uint8).numpy().data, total) if part.numel() else total
    return f"{total:08x}"
