"""Worker process of a client: ``python -m unisono.deploy.client_worker DIRECTORY``; with ``check`` it only reads the data."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.negotiation import load_client_data
from unisono.deploy.processes import keep_files_private
from unisono.deploy.resources import limit_memory
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.executor import serve_tasks


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


if __name__ == "__main__":
    (check if sys.argv[2:] == ["check"] else main)(Path(sys.argv[1]))
