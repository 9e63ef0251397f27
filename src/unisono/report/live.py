"""Live report of a run: a small server on this machine alone."""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

from unisono.report.blocks import Document
from unisono.report.html import render
from unisono.report.run_report import run_document
from unisono.runs.directory import RunDirectory

HOST = "127.0.0.1"


class LiveReport:
    """The newest document of a run; it is made again only when a file of the run has changed.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._lock = Lock()
        self._seen: tuple[object, ...] = ()
        self._document: Document = {}

    def document(self) -> Document:
        """Return the report as data, with its ``version``."""
        with self._lock:
            seen = self._state()
            if seen != self._seen:
                # PCA takes no time from the run, which needs the processor more than the page does.
                document = run_document(self._directory, "pca" if self._directory.in_use else "auto")
                content = json.dumps(document, sort_keys=True).encode()
                self._document = {**document, "version": blake2b(content, digest_size=8).hexdigest()}
                self._seen = seen
            return self._document

    def _state(self) -> tuple[object, ...]:
        """Return a key that changes with the run: whether it goes on, and names and times of its files."""
        path = self._directory.path
        files = [*path.glob("*.json*"), *(path / "report").glob("*"), *(path / "checkpoints").glob("*")]
        # The map is written by the page itself.
        found = [(file.name, file.stat().st_mtime_ns) for file in sorted(files) if file.name != "map.json" and file.exists()]
        return (self._directory.in_use, *found)


class LiveServer(ThreadingHTTPServer):
    """Server of the report at ``/`` and its data at ``/data.json``, to programs on this machine only.

    Args:
        directory: of the run.
        port: 0 takes any that is free.
    """

    daemon_threads = True

    def __init__(self, directory: RunDirectory, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.page = LiveReport(directory)

    @property
    def address(self) -> str:
        """URL of the report."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"

    @cached_property
    def _hosts(self) -> set[str]:
        port = self.server.server_address[1]
        return {f"{name}:{port}" for name in (HOST, "localhost")}

    def do_GET(self) -> None:
        """Answer a browser."""
        if self.headers.get("Host") not in self._hosts:
            # A page from elsewhere whose name was made to point at this machine may not read the run.
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"ask for 127.0.0.1\n")
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", render(self.server.page.document(), live=True).encode())
        elif address.path == "/data.json":
            document = self.server.page.document()
            known = parse_qs(address.query).get("version", [""])[0]
            if known == document["version"]:
                self._answer(HTTPStatus.NO_CONTENT, "application/json", b"")
            else:
                self._answer(HTTPStatus.OK, "application/json", json.dumps(document).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is / and /data.json\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to the user."""

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
