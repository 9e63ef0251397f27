"""Peak memory of this process."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch

SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "MemoryError", "Cannot allocate memory")
"""Parts of the messages of allocators that have failed."""


def available_memory() -> int:
    """Return the bytes that programs can take without swapping."""
    return int(psutil.virtual_memory().available)


def limit_memory(num_bytes: int) -> None:
    """Let allocations of this process fail beyond a number of bytes, where the system can: better than to be killed."""
    with suppress(ValueError, OSError, AttributeError):
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def is_out_of_memory(reason: str) -> bool:
    """Return whether the message of an error says that memory was lacking."""
    return any(sign in reason for sign in SIGNS)


def give_back_memory() -> None:
    """Collect garbage and give the system what the heap does not use, where it can."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(device: torch.device) -> None:
    """Forget the peak so far; on systems other than Linux the peak is that of the process since its start."""
    give_back_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that were held at a time since the last reset: of the GPU if the device is one."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
