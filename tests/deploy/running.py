"""A federation of real processes on the loopback interface: a server with TLS, clients with samples of their own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from unisono.core.config import make_section, merge
from unisono.deploy.condition import node_table
from unisono.deploy.directories import CLIENT_FILE, SERVER_FILE, ClientConfig, ClientDirectory, ServerDirectory, write_config
from unisono.deploy.init import create_federation

UNISONO = (sys.executable, "-m", "unisono")
NUM_CLIENTS = 3
SMALL = (
    "model.width=0.125", "training.batch_size=16", "training.local_epochs=1", "evaluation.probe_every=0",
    "engine.client_timeout=60",
)  # fmt: skip

TOLERANT: dict[str, Any] = {
    "allow": {"metrics": ["all"]},
    "require": {"min_samples": 1, "statistics": "exact", "own_randomness": False},
    "bounds": {"min_batch_size": 2, "min_drawn": 2},
    "peers": {"max_points": 10_000},
    "log": {"errors": "short"},
}
"""A policy for small samples. With the run's seed as the source of randomness, results can be compared with other engines'."""


def configured(config: ClientConfig, values: Mapping[str, Any]) -> ClientConfig:
    """The config with these values, and tolerant where they are silent."""
    whole = merge(merge(config.model_dump(mode="json"), TOLERANT), values)
    return make_section(ClientConfig, whole, "client")


class RunningFederation:
    """Processes of a federation; every one of them is ended by ``close``.

    Args:
        root: an empty directory.
        hostile: the script that answers for the last client, None for an honest one.
        hosts: where clients find the server.
        num_clients: how many.
    """

    def __init__(
        self,
        root: Path,
        hostile: Path | None = None,
        hosts: Sequence[str] = ("127.0.0.1",),
        num_clients: int = NUM_CLIENTS,
    ) -> None:
        self.root = root
        self.path = root / "federation"
        ports = free_ports(num_clients + 1)
        create_federation(self.path, num_clients, hosts, ports[0], policy={})
        self.server = ServerDirectory.open(self.path)
        self.configure_server(host="127.0.0.1", start_timeout=600.0)
        self.clients = [self.path / f"client-{number}" for number in range(num_clients)]
        for number, path in enumerate(self.clients):
            own = ClientDirectory.open(path).config
            data = write_samples(root / f"data-{number}", number)
            tables = {
                "allow": {"reveals": ["parameters", "statistics", "data"]},
                "peers": {"exchange": list(range(num_clients))},
                "labels": {"use": True, "classes": ["a", "b"]},
            }
            values = {"port": ports[number + 1], "data": str(data), "poll_interval": 0.5, **tables}
            write_config(path / CLIENT_FILE, configured(own, values))
        self.hostile = hostile
        self._processes: list[subprocess.Popen[bytes]] = []

    def configure_server(self, **options: Any) -> None:
        config = self.server.config.model_copy(update=options)
        write_config(self.server.path / SERVER_FILE, config)
        self.server = ServerDirectory.open(self.path)

    def start(self) -> None:
        """Starts the server and all clients, and waits until they are connected."""
        self.spawn([*UNISONO, "deploy", "server", str(self.server.path)], "server")
        for number, path in enumerate(self.clients):
            self.start_client(number, path)
        self.wait_for(lambda: [word for _, word in node_table(self.server)] == ["online"] * len(self.clients))

    def start_client(self, number: int, path: Path) -> None:
        if number == len(self.clients) - 1 and self.hostile is not None:
            self.spawn([sys.executable, str(self.hostile), str(path), str(self.root / "attack")], f"client-{number}")
        else:
            self.spawn([*UNISONO, "deploy", "client", str(path)], f"client-{number}")

    def spawn(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """A process in a group of its own, its output in a file."""
        with (self.root / f"{name}.out").open("ab") as output:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                list(command),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.root,
                env=environment,
                preexec_fn=end_with_parent,  # noqa: PLW1509  (these tests start no threads)
            )
        self._processes.append(process)
        return process

    def unisono(self, *arguments: str, timeout: float = 800) -> subprocess.CompletedProcess[str]:
        """A finished command."""
        return subprocess.run(
            [*UNISONO, *arguments], cwd=self.root, capture_output=True, text=True, timeout=timeout, check=False
        )

    def run(self, recipe: str, name: str, *settings: str) -> Path:
        """A finished run."""
        done = self.unisono("deploy", "run", recipe, "--server", str(self.server.path), "--name", name, *sets(settings))
        assert done.returncode == 0, (done.stdout, done.stderr, self.logs())
        return self.server.runs / name

    def wait_for(self, condition: Callable[[], bool], seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Exception):
                if condition():
                    return
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.3)

    def process(self, directory: Path, word: str) -> psutil.Process:
        """The process of a directory whose command line holds a word."""
        root = psutil.Process(int((directory / "supervisor.pid").read_text().split()[0]))
        return next(child for child in root.children() if word in " ".join(child.cmdline()))

    def logs(self) -> str:
        """The ends of all logs."""
        files = [*self.root.glob("*.out"), *self.path.glob("*/logs/*.log")]
        return "\n".join(f"== {file}\n{file.read_text(errors='replace')[-1500:]}" for file in files)

    def close(self) -> None:
        """Ends everything, clients first."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def end_with_parent() -> None:
    """Asks the kernel to end this process when the tests are killed and cannot."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def sets(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def write_samples(path: Path, number: int) -> Path:
    """Grey images of stripes, 8x8: client 0 has a folder of PNG files, the others an .npz with labels."""
    generator = np.random.default_rng(number)
    samples = np.stack([_stripes(generator) for _ in range(40 + 12 * number)])
    path.mkdir()
    if number:
        np.savez(path / "samples.npz", x=samples, y=np.array(["a", "b"])[np.arange(len(samples)) % 2])
        return path / "samples.npz"
    from PIL import Image

    for index, sample in enumerate(samples):
        Image.fromarray(sample).save(path / f"{index:03d}.png")
    return path


def write_labelled(path: Path) -> Path:
    """Stripes of two widths, with labels."""
    generator = np.random.default_rng(9)
    labels = np.arange(60) % 2
    np.savez(path, x=np.stack([_stripes(generator, 0.6 + 2.0 * label) for label in labels]), y=labels)
    return path


def _stripes(generator: np.random.Generator, frequency: float | None = None) -> np.ndarray[Any, Any]:
    frequency = generator.uniform(0.5, 3.0) if frequency is None else frequency
    wave = np.sin(np.arange(8) * frequency + generator.uniform(0, 6))
    return np.clip(128 + 90 * np.add.outer(0 * wave, wave) + generator.normal(0, 10, (8, 8)), 0, 255).astype(np.uint8)


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses now, all different."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)
