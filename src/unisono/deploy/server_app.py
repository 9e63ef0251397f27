"""ServerApp of ``flwr run``: a run on all connected clients, with data of their own or simulated ones."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.backends import simulated
from unisono.config import resolve
from unisono.deploy.directories import DeployServerConfig, ServerDirectory
from unisono.deploy.processes import SERVER_VARIABLE
from unisono.deploy.runs import prepare_run
from unisono.deploy.server import ServerInfo, serve
from unisono.engines.flower.server_app import is_simulation, make_server_app, settled_nodes
from unisono.experiment import Experiment, run_path
from unisono.recipes import build_tree
from unisono.running import start


def main(grid: Any, run_config: Mapping[str, Any], run_id: int) -> None:
    """Run what the config names: ``directory``, a run directory that was prepared, or ``recipe`` with ``settings``."""
    directory = str(run_config.get("directory", ""))
    server = os.environ.get(SERVER_VARIABLE)
    if directory and server:
        serve(grid, Path(directory), ServerInfo.of(ServerDirectory.open(Path(server))), run_id)
        return
    recipe = str(run_config.get("recipe", "")) or "digits-smoke"
    settings = shlex.split(str(run_config.get("settings", "")))
    if is_simulation(grid):
        experiment = Experiment.prepare(resolve(build_tree(recipe, None, settings)))
        start(experiment, run_path(experiment.config), open_backend=simulated(experiment, grid, settled_nodes(grid)))
        return
    host = (
        ServerInfo.of(ServerDirectory.open(Path(server)))
        if server
        else ServerInfo(DeployServerConfig(num_clients=settled_nodes(grid)), None)
    )
    serve(grid, prepare_run(Path("runs"), host.config.num_clients, recipe, settings, None), host, run_id)


app = make_server_app(main)
