"""Runs of a federation: prepared, started, followed, stopped, fetched on the server's machine."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.errors import UserError
from unisono.deploy.condition import connect
from unisono.deploy.directories import PAUSED_FILE, WANTED_FILE, ServerDirectory, is_wanted
from unisono.deploy.server_audit import record
from unisono.deploy.supervisor import supervisor_pid
from unisono.deploy.wanted import unwant, want
from unisono.experiment import run_path
from unisono.recipes import build_tree
from unisono.runs.directory import RunDirectory

TOLERANT = {
    "federation": {"strict": False, "retries": 2},
    "engine": {"client_timeout": 600.0},
    "aggregation": {"screen": 10.0},
}
"""Defaults for a federation, which recipes override: clients may fail, have ten minutes, and send no overlong updates. A round
is asked for as often as clients answer it, ``bounds.max_attempts``."""
IN_SIGHT = {"aggregation": {"max_weight_share": 0.5}}
"""Another one, where the server sees the weight of each client: none has more than half of a mean, whatever it says."""


def prepare_run(runs: Path, num_clients: int, reference: str, settings: Sequence[str], name: str | None) -> Path:
    """Return a new run directory with its resolved config; raise a UserError if the recipe does not fit.

    Args:
        runs: where it goes.
        num_clients: size of the federation.
        reference: a recipe or a method.
        settings: ``section.key=value`` assignments.
        name: of the directory, unless the recipe says.
    """
    asked = build_tree(reference, {"name": name}, settings)
    is_masked = asked.get("privacy", {}).get("secure_aggregation", False)
    tree = merge(TOLERANT if is_masked else merge(TOLERANT, IN_SIGHT), asked)
    tree = merge(tree, {"partition": {"num_clients": num_clients}, "run": {"directory": str(runs.resolve())}})
    config = resolve(tree)
    config.cohort.expected_size(num_clients)
    path = run_path(config)
    RunDirectory.create(path, config.as_tree(), federation={"run": uuid.uuid4().hex})
    return path


def launch(server: ServerDirectory, path: Path) -> int:
    """Start or continue the run in a directory on the server, and return Flower's number for it."""
    directory = RunDirectory.open(path)
    if not (path / "federation.json").is_file():
        raise UserError(f"{path} is not a run of a federation: it has no federation.json.")
    with connect(server) as control:
        number = control.start(server.app, {"directory": str(path.resolve())})
    directory.write_json("flower.json", {"run_id": number})
    record(server.path, "run", path.name)
    want(path)
    directory.write_json("status.json", {"status": "starting", "round": 0, "run_id": number})
    return number


def follow(
    server: ServerDirectory, path: Path, run_id: int, on_round: Callable[[dict[str, Any]], None], poll: float = 0.5
) -> dict[str, Any]:
    """Report every round as it ends, and return the run's last status.

    Args:
        server: it runs on.
        path: the run directory.
        run_id: Flower's number of the run; how an earlier one in the directory ended is of no concern. A run that the server
            continues has a new number, which is followed too.
        on_round: told the metrics of a round.
        poll: seconds between two looks.
    """
    directory = RunDirectory.open(path)
    seen, looked = len(directory.logs["metrics"].read()), time.monotonic()
    while True:
        rounds = directory.logs["metrics"].read()
        for entry in rounds[seen:]:
            on_round(entry)
        seen = len(rounds)
        if (path / "flower.json").is_file():
            run_id = int(directory.read_json("flower.json")["run_id"])
        status = directory.read_json("status.json")
        if _ended(status, run_id) and (status["status"] == "finished" or not is_wanted(path)):
            return status
        if time.monotonic() - looked > 10:
            looked = time.monotonic()
            if is_wanted(path) and supervisor_pid(server.path) is not None:
                continue  # the server itself sees to it
            with connect(server) as control:
                word = control.status(run_id)
            if word.startswith(("finished", "unknown")) and not _ended(directory.read_json("status.json"), run_id):
                return {"status": "failed", "round": status.get("round", 0), "reason": f"Flower says {word}"}
        time.sleep(poll)


def _ended(status: dict[str, Any], run_id: int) -> bool:
    return status["status"] in ("finished", "failed") and status["run_id"] == run_id


def find_run(server: ServerDirectory, name: str) -> Path:
    """Return a run by its name, or by its path."""
    for path in (server.runs / name, Path(name)):
        if (path / "config.toml").is_file():
            return path
    known = ", ".join(sorted(path.name for path in server.runs.glob("*") if (path / "config.toml").is_file()))
    raise UserError(f"There is no run {name!r}. Known: {known or 'none'}.")


def stop_run(server: ServerDirectory, path: Path) -> None:
    """Stop a run; it can be continued from its last checkpoint."""
    unwant(path)
    record(server.path, "stop", path.name)
    _interrupt(server, path, "stopped")


def pause_runs(server: ServerDirectory) -> list[str]:
    """Stop all runs until the server's file ``paused`` is gone, and return their names."""
    (server.path / PAUSED_FILE).touch()
    record(server.path, "pause")
    paths = [path.parent for path in sorted(server.runs.glob(f"*/{WANTED_FILE}"))]
    paths = [path for path in paths if not RunDirectory.open(path).finished]
    for path in paths:
        _interrupt(server, path, "paused")
    return [path.name for path in paths]


def _interrupt(server: ServerDirectory, path: Path, reason: str) -> None:
    directory = RunDirectory.open(path)
    number = int(directory.read_json("flower.json")["run_id"])
    if reason == "stopped" or supervisor_pid(server.path) is not None:
        with connect(server) as control:
            control.stop(number)
    rounds = directory.checkpoints().rounds()
    status = {"status": "failed", "round": rounds[-1] if rounds else 0, "run_id": number, "reason": reason}
    directory.write_json("status.json", status)


def fetch_run(server: ServerDirectory, name: str, target: Path) -> Path:
    """Copy a run and its model, and return where it is."""
    source = find_run(server, name)
    if RunDirectory.open(source).checkpoints().rounds() == []:
        raise UserError(f"The run {name!r} has no checkpoint yet: wait for its first round.")
    if target.exists():
        raise UserError(f"{target} exists already: choose another --to.")
    record(server.path, "fetch", f"{source.name} to {target}")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock", "flower.json"))
    return target


def admit_members(server: ServerDirectory) -> bool:
    """Admit the clients whose keys are in force, and no others; return False if the server is down and does so at its start."""
    if supervisor_pid(server.path) is None:
        return False
    with connect(server) as control:
        control.admit_only(server.admitted_keys)
    return True
