"""Worker process of a client: ``python -m unisono.deploy.client_worker DIRECTORY``; with ``check`` it only reads the data."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import unisono
from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.negotiation import load_client_data
from unisono.deploy.processes import keep_files_private
from unisono.deploy.resources import limit_memory
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.executor import serve_tasks

DRY_SAMPLES = 64


def main(path: Path) -> None:
    """Serve a SuperNode's tasks until the process is ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    keep_files_private()
    directory = ClientDirectory.open(path)
    limit_memory(directory.config.resources)
    torch.set_num_threads(directory.config.resources.threads)
    handler = DeployedClient(directory)
    dataset = load_client_data(directory, DataConfig())
    logging.info("client %d: %d samples of shape %s", directory.config.client_id, len(dataset.samples), dataset.input_shape)
    for remark in dataset.remarks:
        logging.warning("%s in client.toml", remark.replace("data.bits", "bits"))
    app = make_client_app(lambda node_config: handler)
    serve_tasks(
        app,
        f"127.0.0.1:{directory.config.port}",
        directory.secret,
        on_error=lambda error: logging.error("a task failed: %s: %s", type(error).__name__, error),
    )


def check(path: Path) -> None:
    """Read the client's samples, and end the process with a sentence if they cannot be read."""
    try:
        load_client_data(ClientDirectory.open(path), DataConfig())
    except UserError as error:
        sys.exit(str(error))


def dry_round(path: Path) -> None:
    """Train a small network on a few of the client's samples, and print what it took; nothing is kept, nothing leaves."""
    started = time.perf_counter()
    torch.manual_seed(0)
    try:
        samples = load_client_data(ClientDirectory.open(path), DataConfig()).samples[:DRY_SAMPLES]
    except UserError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "samples.npz", x=samples.numpy())
        settings = (
            "data.dataset=npz", f"data.path={folder}/samples.npz", "partition.num_clients=1", "partition.scheme=iid",
            "federation.rounds=1",
            "model.width=0.125", "training.local_epochs=1", f"training.batch_size={min(16, len(samples))}",
            "evaluation.probe_every=0", "report.enabled=false", "engine.workers=0", f"run.directory={folder}",
        )  # fmt: skip
        unisono.run("simclr", set=settings)
    print(f"one round of simclr on {len(samples)} samples took {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    {"check": check, "dry-round": dry_round}.get("".join(sys.argv[2:]), main)(Path(sys.argv[1]))
