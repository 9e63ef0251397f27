from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.conftest import Browser
from tests.report.test_html import outline
from unisono.report.live import LiveReport, LiveServer
from unisono.runs.directory import RunDirectory


@pytest.fixture
def going_on(clustered: Path, tmp_path: Path) -> Iterator[RunDirectory]:
    """A copy of a run that another process seems to work on."""
    shutil.copytree(clustered, tmp_path / "x")
    shutil.rmtree(tmp_path / "x" / "checkpoints" / "round-000003")
    directory = RunDirectory(tmp_path / "x")
    directory.lock()
    yield directory
    directory.unlock()


@pytest.fixture
def server(going_on: RunDirectory) -> Iterator[LiveServer]:
    with LiveServer(going_on) as found:
        thread = Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def get(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_page_and_its_news(server: LiveServer, going_on: RunDirectory) -> None:
    status, html = get(server.address)
    assert status == 200
    first = json.loads(outline(html.decode()).scripts["document"])
    assert first["status"] == "running"
    news = f"{server.address}data.json?version={first['version']}"
    assert get(news) == (204, b"")
    last = going_on.logs["metrics"].read()[-1]
    going_on.logs["metrics"].append({**last, "round": 3})
    status, content = get(news)
    assert status == 200
    second = json.loads(content)
    assert second["version"] != first["version"]
    assert second["tiles"][0]["value"] == "4 / 3"


def test_only_this_machine_is_served(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server.address, Host="evil.example")[0] == 403
    assert get(f"{server.address}config.toml")[0] == 404
    assert get(f"{server.address}../config.toml")[0] == 404


def test_a_document_is_made_again_only_when_there_is_news(going_on: RunDirectory) -> None:
    page = LiveReport(going_on)
    first = page.document()
    assert page.document() is first
    going_on.unlock()
    assert page.document()["status"] == "interrupted"


def test_a_browser_follows_a_run_that_is_stopped_and_resumed(
    browser: Browser, server: LiveServer, going_on: RunDirectory
) -> None:
    original, steps = server.page.document, iter(["page", "stopped", "nothing", "resumed"])
    last = going_on.logs["metrics"].read()[-1]

    def document() -> dict[str, object]:
        step = next(steps, "nothing")
        if step == "stopped":
            going_on.unlock()
        if step == "resumed":
            going_on.lock()
            going_on.logs["metrics"].append({**last, "round": 3})
        return original()

    server.page.document = document  # type: ignore[method-assign]
    shown = browser(server.address, seconds=40)
    assert shown.console == []
    assert 'class="status running"' in shown.dom
    assert "4 / 3" in shown.dom


def test_a_browser_follows_without_reloading(browser: Browser, server: LiveServer, going_on: RunDirectory) -> None:
    # The first look makes the document, so what is logged now can only arrive as news.
    get(server.address)
    last = going_on.logs["metrics"].read()[-1]

    def more() -> None:
        going_on.logs["metrics"].append({**last, "round": 3})
        going_on.unlock()

    original, seen = server.page.document, []

    def document() -> dict[str, object]:
        seen.append(1)
        if len(seen) == 2:
            more()
        return original()

    server.page.document = document  # type: ignore[method-assign]
    shown = browser(server.address)
    assert shown.console == []
    assert "4 / 3" in shown.dom
    assert 'class="status interrupted"' in shown.dom
