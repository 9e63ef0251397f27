"""Environment of a run: program, packages, machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import time
from functools import cache
from pathlib import Path

import torch

PACKAGES = ("unisono", "torch", "numpy", "scipy", "scikit-learn", "flwr", "dp-accounting")


def environment(device: str) -> dict[str, str]:
    """Return names and values of the environment, in the order in which they are read.

    Args:
        device: what the config says of it.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores" if hasattr(os, "sched_getaffinity") else "",
        "memory": f"{memory:.1f} GiB",
        "device": f"{device}; CUDA {torch.version.cuda}" if torch.cuda.is_available() else device,
        "python": platform.python_version(),
    }
    return found | {name: version for name in PACKAGES if (version := _version(name))} | {"code": _digest_of_code()}


@cache
def _digest_of_code() -> str:
    """Return the same for the same program, whatever its version is called."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
