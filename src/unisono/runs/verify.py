"""Check of every file of a run against what was recorded when it was written."""

from __future__ import annotations

from unisono.core.errors import UserError
from unisono.federation.client_store import ClientStateStore
from unisono.runs.checkpoint import DamagedError
from unisono.runs.directory import RunDirectory
from unisono.runs.files import DamagedFileError
from unisono.runs.manifest import MANIFEST_FILE

STATUSES = ("finished", "failed", "running", "waiting for clients", "starting")
DAMAGED = "is damaged, so other files cannot be checked; remove it to go on without its checks"


def verify(directory: RunDirectory) -> dict[str, str | None]:
    """Return what is wrong with each file and each checkpoint of a run, None where nothing is."""
    found: dict[str, str | None] = {}
    try:
        names = directory.manifest.names()
        found[MANIFEST_FILE] = None if directory.manifest.exists else "is missing, so other files cannot be checked"
        found |= {name: directory.manifest.problem(name) for name in names}
    except DamagedFileError:
        found[MANIFEST_FILE] = DAMAGED
    for log in directory.logs.values():
        if found[MANIFEST_FILE] != DAMAGED and log.path.exists() and not found.get(log.path.name):
            try:
                log.read()
                found[log.path.name] = None
            except DamagedFileError as error:
                found[log.path.name] = str(error).removeprefix(f"{log.path} ").rstrip(".")
    if "config.toml" not in found:
        try:
            found["config.toml"] = None if directory.config_tree else "is empty"
        except UserError as error:
            found["config.toml"] = str(error)
    if (directory.path / "status.json").exists() and found[MANIFEST_FILE] != DAMAGED:
        try:
            known = directory.read_json("status.json").get("status") in STATUSES
            found["status.json"] = None if known else "names no state that a run can be in"
        except UserError:
            found["status.json"] = "is damaged; 'unisono resume' writes it anew"
    checkpoints = directory.checkpoints()
    for round in checkpoints.rounds():
        try:
            checkpoints.load(round, ClientStateStore())
            found[f"checkpoints/round-{round:06d}"] = None
        except DamagedError as error:
            found[f"checkpoints/round-{round:06d}"] = str(error)
    for round in directory.probe_layers.rounds():
        try:
            directory.probe_layers.load(round)
            found[f"probes/round-{round:06d}"] = None
        except UserError:
            found[f"probes/round-{round:06d}"] = "is damaged; remove it, and linear probes start anew"
    return found
