"""The run directory: its files, and its lock."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from unisono.core.config import Tree, parse_json, read_toml, write_toml
from unisono.core.errors import UserError
from unisono.core.method import RunInfo
from unisono.runs.checkpoint import Checkpoints
from unisono.runs.files import DamagedFileError, JsonLines, explained, remove_tree, write_atomically
from unisono.runs.locks import is_locked
from unisono.runs.manifest import FEDERATION_FILE, LASTING, MANIFEST_FILE, PAGES, Manifest
from unisono.runs.probe_layers import ProbeLayers

REPRODUCIBLE_LOGS = ("metrics", "clients", "exchange", "notes", "privacy", "failures", "timings")


FLOORS_FILE = "floors.json"
"""Scores of raw pixels, their PCA and untrained weights, by floor and probe."""
START_FILE = "start.json"
"""Scores of the run's weights before the first round, where ``evaluation.probe_start`` asks for them."""


class RunDirectory:
    """Files of one run.

    ``config.toml`` (resolved), ``run_info.json`` (what the data told the method), ``metrics.jsonl``, ``clients.jsonl``,
    ``exchange.jsonl`` (what clients sent each other), ``notes.jsonl`` (what the user should read), ``privacy.jsonl``,
    ``failures.jsonl``, ``timings.jsonl``, ``checkpoints/``, ``probes/`` (layers of a warm start), ``model/``, ``clusters/``
    (contact sheets), ``start.json`` (scores before the first round), ``status.json``, ``privacy.json`` (what left the clients,
    and what is promised about it).

    Args:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest(path)
        self.logs = {
            name: JsonLines(path / f"{name}.jsonl", partial(self.manifest.check, f"{name}.jsonl")) for name in REPRODUCIBLE_LOGS
        }
        self._lock: IO[bytes] | None = None

    @staticmethod
    def create(path: Path, config: Mapping[str, Any], federation: Mapping[str, Any] | None = None) -> RunDirectory:
        """Make the directory; refuse one that holds anything.

        Args:
            path: where.
            config: the resolved config. It is written last: from then on there is a run.
            federation: content of ``federation.json``, for a run on a real federation.
        """
        with explained(path):
            if path.exists() and not _is_unused(path):
                raise UserError(
                    f"The run directory {path} exists already: choose another run.name, remove it, "
                    f"or continue it with 'unisono resume {path}'."
                )
            path.mkdir(parents=True, exist_ok=True)
            for name in (FEDERATION_FILE, MANIFEST_FILE):
                (path / name).unlink(missing_ok=True)
        directory = RunDirectory(path)
        if federation is not None:
            directory.write_json(FEDERATION_FILE, federation)
        directory.save_config(config)
        return directory

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Return an existing run; raise a UserError if the directory is none."""
        if not path.is_dir():
            raise UserError(f"There is no run directory {path}.")
        if _is_unused(path):
            raise UserError(
                f"{path} is not a run directory: it has no config.toml. If a run was ended at its very start, start it again."
            )
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.toml.")
        return RunDirectory(path)

    def save_config(self, config: Mapping[str, Any]) -> None:
        """Write ``config.toml``."""
        content = (write_toml(config) + _unset(config)).encode()
        self.manifest.expect("config.toml", content)
        write_atomically(self.path / "config.toml", content)

    def check_config(self) -> None:
        """Raise a DamagedFileError if ``config.toml`` is not the one that the run was started with."""
        if self.manifest.problem("config.toml") is not None:
            raise DamagedFileError(
                f"{self.path / 'config.toml'} was changed after the run began, so it tells of another run: undo the "
                f"change, or start a new run with 'unisono run {self.path}/config.toml --name NEW'. Its other files are not "
                "affected."
            )

    def check_data(self, fingerprint: str) -> None:
        """Raise a UserError if the data set is not the one that the run was started with; keep its fingerprint at the start."""
        if self.manifest.data is None:
            self.manifest.save_data(fingerprint)
        elif (sentence := self.other_data(fingerprint)) is not None:
            raise UserError(
                f"{sentence}, so it would go on as another run: restore the "
                f"data, or start a new run with 'unisono run {self.path}/config.toml --name NEW'."
            )

    def other_data(self, fingerprint: str) -> str | None:
        """Return words about a data set that is not the run's, None for the run's own or where that is not known."""
        if self.manifest.data in (None, fingerprint):
            return None
        return f"The data set is not the one that {self.path} was started with"

    @property
    def config_tree(self) -> Tree:
        """The resolved config as it was saved; runs from before probes had caps look at all samples.

        Raise a DamagedFileError if the file has changed since. A manifest that is damaged itself says nothing about it.
        """
        if not self.manifest.is_damaged:
            self.check_config()
        tree = read_toml(self.path / "config.toml")
        if "evaluation" in tree and "max_test_samples" not in tree["evaluation"]:
            tree["evaluation"] = {"max_train_samples": 0, "max_test_samples": 0, **tree["evaluation"]}
        return tree

    @property
    def model(self) -> Path:
        """The finished encoder's directory."""
        return self.path / "model"

    @property
    def spilled(self) -> Path:
        """Directory of client states that do not fit into memory, while the run goes on."""
        return self.path / ".states.tmp"

    def remove_leftovers(self) -> None:
        """Remove temporary files that a kill left; only whoever holds the lock may do so."""
        for path in [*self.path.rglob(".*.tmp")]:
            with explained(path):
                remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @property
    def clusters(self) -> Path:
        """Directory of the contact sheets of clusters."""
        return self.path / "clusters"

    @property
    def probe_layers(self) -> ProbeLayers:
        """The linear layers that probes carry on from."""
        return ProbeLayers(self.path / "probes", self.checkpoints())

    def checkpoints(self, keep: int = 2) -> Checkpoints:
        """Return the run's checkpoints."""
        return Checkpoints(self.path / "checkpoints", keep)

    def lock(self, timeout: float = 0.0) -> None:
        """Keep a second process from writing into the same run; released when the process ends.

        Args:
            timeout: seconds to wait for another process to leave.
        """
        deadline = time.monotonic() + timeout
        while self.in_use and time.monotonic() < deadline:
            time.sleep(0.5)
        with explained(self.path):
            lock = (self.path / ".lock").open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.close()
                raise UserError(f"Another process is working in {self.path}: wait for it or stop it.") from error
        self._lock = lock

    @property
    def in_use(self) -> bool:
        """True while a process is working in this run."""
        return is_locked(self.path / ".lock")

    @property
    def finished(self) -> bool:
        """True if the run has come to its end; asking does not touch its lock, so it may be asked often."""
        return self._status().get("status") == "finished"

    @property
    def untrained(self) -> bool:
        """True if it holds the probes of an encoder before the first round, and is finished with that."""
        return self.finished and self._status().get("round") == 0

    @property
    def floors(self) -> dict[str, dict[str, float]]:
        """Scores that the encoder should beat, by floor and probe; none where they were not measured."""
        try:
            return self.read_json(FLOORS_FILE)
        except UserError:
            return {}

    @property
    def of_federation(self) -> bool:
        """True if the run was on a real federation, whose samples are with its clients."""
        return (self.path / FEDERATION_FILE).is_file()

    @property
    def command_to_continue(self) -> str:
        """Command that continues the run where it stopped; on a federation it runs on the server."""
        return f"unisono deploy run --resume {self.path.name}" if self.of_federation else f"unisono resume {self.path}"

    def unlock(self) -> None:
        """Release the lock, so that others may write."""
        if self._lock is not None:
            # Closing alone would leave the lock with processes that were forked meanwhile.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
            self._lock = None

    def save_run_info(self, info: RunInfo) -> None:
        """Save what the method needs to know of the data, so that the model can be used without the data."""
        fields = ("input_shape", "mean", "std", "num_classes", "num_clients", "num_rounds")
        self.write_json("run_info.json", {name: getattr(info, name) for name in fields})

    def load_run_info(self) -> dict[str, Any]:
        """The arguments of the run's RunInfo, without sections."""
        values = self.read_json("run_info.json")
        return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace a JSON file."""
        content = (json.dumps(values, indent=1) + "\n").encode()
        if name in LASTING or name in self.manifest.names():
            self.manifest.expect(name, content)
        write_atomically(self.path / name, content)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run; raise a UserError if it is missing or damaged."""
        try:
            content = (self.path / name).read_bytes()
            self.manifest.check(name, content)
            values = parse_json(content)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / name} is missing or damaged: {error}.") from error
        if not isinstance(values, dict):
            raise UserError(f"{self.path / name} is damaged: it holds no table.")
        return values

    def _status(self) -> dict[str, Any]:
        try:
            return self.read_json("status.json")
        except UserError:
            return {}

    def log_lengths(self) -> dict[str, int]:
        """Return the length of every log, after writing it through to the disk."""
        for log in self.logs.values():
            log.sync()
        return {name: log.length for name, log in self.logs.items()}

    def cut_logs(self, lengths: Mapping[str, int]) -> list[str]:
        """Drop what was logged after a checkpoint, and repair logs that are damaged; return a sentence about each of these."""
        notes = []
        damaged = [name for name in self.logs if self._log_problem(name)]
        self.manifest.record((), forget=self.log_files)
        for name, log in self.logs.items():
            if name in damaged:
                log.repair(lengths.get(name, 0))
                notes.append(
                    f"{log.path} is damaged: lines that cannot be read are dropped, and the file is kept as "
                    f"{log.path.name}.damaged. The model is not affected."
                )
            else:
                log.cut(lengths.get(name, 0))
        self.record_logs()
        return notes

    def damage(self) -> list[str]:
        """Return a sentence about each damaged file that tells of the run: its logs and tables."""
        logs = self.intact_logs()[1]
        if self.manifest.is_damaged:
            return logs
        others = {*self.log_files, *PAGES}
        names = [name for name in self.manifest.names() if "/" not in name and name not in others]
        problems = {name: self.manifest.problem(name) for name in names}
        return [*logs, *(f"{self.path / name} {problem}." for name, problem in problems.items() if problem)]

    @property
    def log_files(self) -> list[str]:
        """Names of the logs' files."""
        return [log.path.name for log in self.logs.values()]

    def record_logs(self) -> None:
        """List the logs, and what does not change any more, in the manifest as they are now."""
        self.manifest.record([*LASTING, *self.log_files])

    def intact_logs(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """Return all logs, empty where they are damaged, and a sentence about each that is."""
        problems = {name: problem for name in self.logs if (problem := self._log_problem(name))}
        return {name: [] if name in problems else log.read() for name, log in self.logs.items()}, list(problems.values())

    def _log_problem(self, name: str) -> str:
        try:
            self.logs[name].read()
        except DamagedFileError as error:
            return str(error)
        return ""


def _is_unused(path: Path) -> bool:
    """Return whether a directory holds nothing but what a run leaves that is killed before its config is written."""

    def is_left(name: str) -> bool:
        return name in (MANIFEST_FILE, FEDERATION_FILE) or (name.startswith(".") and name.endswith(".tmp"))

    return path.is_dir() and all(is_left(file.name) for file in path.iterdir())


def _unset(config: Mapping[str, Any]) -> str:
    """Return the names of options that are unset, for which TOML has no word, as comments."""
    tables = [(table, values) for table, values in config.items() if isinstance(values, Mapping)]
    names = [f"# {table}.{name}\n" for table, values in tables for name, value in values.items() if value is None]
    return "".join(["\n# Unset:\n", *names]) if names else ""
