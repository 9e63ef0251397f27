"""Metrics in Prometheus' text format, and ``/healthz``; off by default, and without anything that came from samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from unisono.core.errors import UserError
from unisono.deploy.certificates import expiry
from unisono.deploy.condition import node_table, run_table
from unisono.deploy.directories import ServerDirectory
from unisono.deploy.supervisor import supervisor_pid

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value of a metric."""


def server_metrics(server: ServerDirectory) -> Iterator[Sample]:
    """Yield the metrics of a server; ``unisono_up`` is 1 if it answers."""
    words: list[str] = []
    is_up = True
    try:
        words = [word for _, word in node_table(server)]
    except UserError:
        is_up = False
    yield "unisono_up", {}, float(is_up)
    for word in sorted({"online", *words}):
        yield "unisono_clients", {"status": word}, float(words.count(word))
    for name, word, rounds, _ in run_table(server):
        yield "unisono_run_rounds", {"run": name, "status": word}, float(rounds)
    if not server.config.insecure:
        for file in ("server.crt", "ca.crt"):
            yield "unisono_certificate_end_seconds", {"file": file}, expiry(server.path / file)[0].timestamp()


def client_metrics(path: Path, num_tasks: int) -> Iterator[Sample]:
    """Yield the metrics of a client; ``unisono_up`` is 1 if all of its processes run."""
    pid = supervisor_pid(path)
    children = [] if pid is None else psutil.Process(pid).children()
    running = [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    yield "unisono_up", {}, float(len(running) >= num_tasks)
    yield "unisono_processes", {}, float(len(running))
    yield "unisono_paused", {}, float((path / "paused").exists())


def as_text(samples: list[Sample]) -> str:
    """Return metrics as Prometheus reads them."""
    lines, named = [], set()
    for name, labels, value in samples:
        if name not in named:
            named.add(name)
            lines.append(f"# TYPE {name} gauge")
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value:.10g}" if inner else f"{name} {value:.10g}")
    return "\n".join(lines) + "\n"


def serve_metrics(address: str, collect: Callable[[], Iterator[Sample]]) -> ThreadingHTTPServer:
    """Answer ``/metrics`` and ``/healthz`` in a thread.

    Args:
        address: ``host:port``.
        collect: called for each request.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path not in ("/metrics", "/healthz"):
                self._answer(404, "no such page\n")
                return
            samples = list(collect())
            if self.path == "/metrics":
                self._answer(200, as_text(samples))
                return
            is_up = any(name == "unisono_up" and value == 1 for name, _, value in samples)
            self._answer(200 if is_up else 503, "ok\n" if is_up else "not running\n")

        def _answer(self, status: int, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing: a request comes every few seconds."""

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"metrics = {address!r} cannot be used ({error}): give host:port, such as '127.0.0.1:9100'.") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
