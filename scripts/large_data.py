"""Measure time and peak memory of a run on 20 GB of images, with the probes that a run has by default.

``python scripts/large_data.py array`` reads them from an .npy file (sparse, so that it needs no disk); ``folder`` decodes
139,000 JPEG files into the cache first, which takes 21 GB of disk. All lies in a temporary folder that is removed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

EDGE, DIFFERENT = 224, 64
OPTIONS = (
    "run", "simclr", "--clients", "10", "--rounds", "1", "--workers", "2", "--name", "a",
    "--set", "training.local_steps=2", "--set", "training.batch_size=8", "--set", "cohort.size=4",
    "--set", "model.backbone=convnet", "--set", "partition.scheme=iid",
)  # fmt: skip


def write_array(folder: Path, number: int) -> list[str]:
    """Write an array of zeros with some images in it, and return the options that name it."""
    images = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (number, 3, EDGE, EDGE))
    images[:: number // DIFFERENT] = np.random.default_rng(0).integers(0, 256, 3 * EDGE * EDGE).reshape(3, EDGE, EDGE)
    return ["--dataset", "npz", "--set", "data.path=x.npy"]


def write_folder(folder: Path, number: int) -> list[str]:
    """Write files, most of them links to a few, and return the options that name them."""
    draw = np.random.default_rng(0)
    (folder / "images").mkdir()
    for row in range(number):
        path = folder / "images" / f"{row:06}.jpg"
        if row < DIFFERENT:
            small = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            small.resize((EDGE, EDGE), Image.Resampling.BICUBIC).save(path)
        else:
            path.hardlink_to(folder / "images" / f"{row % DIFFERENT:06}.jpg")
    return ["--dataset", "folder", "--set", "data.path=images", "--set", "data.layout=flat", "--set", "data.memory_share=0.01"]


def main() -> None:
    """Run it and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("array", "folder"))
    parser.add_argument("--number", type=int, default=139_000, help="of images")
    parser.add_argument("more", nargs="*", help="further arguments of 'unisono run', after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = (write_array if options.kind == "array" else write_folder)(folder, options.number)
        environment = {**os.environ, "UNISONO_CACHE": str(folder / "cache")}
        begun, peak = time.monotonic(), 0
        process = subprocess.Popen(
            [sys.executable, "-m", "unisono", *OPTIONS, *data, *options.more], cwd=folder, env=environment
        )
        while process.poll() is None:
            try:
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                peak = max(peak, sum(part.memory_full_info().pss for part in tree))
            except psutil.Error:
                pass  # one has ended
            time.sleep(0.2)
        print(f"{options.kind}: exit {process.returncode}, {time.monotonic() - begun:.0f} s, peak {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
