"""Status, checks, pauses and backups of a federation, without its processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from tests.deploy.test_client import SIMPLE, Clients, Run, request
from unisono import __version__
from unisono.core.errors import ClientError, UserError
from unisono.data.datasets import DataConfig
from unisono.deploy.backup import back_up, restore
from unisono.deploy.certificates import Authority
from unisono.deploy.checks import Finding, check_client, check_server
from unisono.deploy.condition import condition
from unisono.deploy.directories import ClientDirectory, ServerDirectory
from unisono.deploy.init import create_federation
from unisono.deploy.joining import rotate_certificate
from unisono.deploy.metrics import client_metrics, serve_metrics, server_metrics
from unisono.deploy.negotiation import load_client_data, note_server_version
from unisono.deploy.refusal import retry_delay
from unisono.deploy.wanted import want
from unisono.engines.flower.nodes import nodes_in
from unisono.runs.directory import RunDirectory


@pytest.fixture
def made(tmp_path: Path) -> Path:
    create_federation(tmp_path / "f", 2, port=1)
    np.savez(tmp_path / "x.npz", x=np.zeros((120, 8, 8), np.uint8))
    file = tmp_path / "f" / "client-0" / "client.toml"
    file.write_text(file.read_text().replace("# data =", f'data = "{tmp_path / "x.npz"}"'))
    return tmp_path / "f"


def found(findings: list[Finding], subject: str) -> list[tuple[str, str]]:
    return [(one.level, one.sentence) for one in findings if one.subject == subject]


def test_status_is_true_after_a_kill_and_announces_the_end_of_certificates(made: Path) -> None:
    server = ServerDirectory.open(made)
    directory = RunDirectory.create(server.runs / "a", {"format": 1})
    directory.write_json("status.json", {"status": "running", "round": 2, "run_id": 1})
    (server.path / "supervisor.pid").write_text("1\n12.5\n")  # of a process that is gone
    lines = list(condition(server))
    assert "server: not running" in lines
    assert "run a: interrupted, 2 rounds done" in lines
    want(directory.path)
    directory.lock()
    assert "run a: running, 2 rounds done" in condition(server)
    directory.unlock()
    assert "run a: interrupted, to be continued, 2 rounds done" in condition(server)
    rotate_certificate(server, Authority.open(made / "authority"), 20)
    (server.path / "paused").touch()
    lines = list(condition(server))
    assert any("warning: server.crt ends in 19 days" in line for line in lines)
    assert any(line.startswith("paused") for line in lines)


def test_status_needs_neither_torch_nor_flower() -> None:
    """Both take longer to import than the rest takes."""
    code = "import sys, unisono.deploy.condition; sys.exit(bool({'torch', 'flwr', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nodes_are_read_from_flowers_database(tmp_path: Path) -> None:
    from flwr.supercore.state.schema.linkstate_models import LinkStateBase, Node
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(f"sqlite:///{tmp_path / 'state.db'}")
    LinkStateBase.metadata.create_all(engine)
    with Session(engine) as session:
        for number, (status, until) in enumerate([("online", 2e10), ("online", 1.0), ("registered", None)]):
            session.add(Node(node_id=number, public_key=b"%d" % number, status=status, online_until=until))
        session.commit()
    assert nodes_in(tmp_path / "state.db") == {b"0": "online", b"1": "offline", b"2": "registered"}
    with pytest.raises(UserError, match="cannot be read"):
        nodes_in(tmp_path / "none.db")


def test_a_check_finds_what_is_wrong_with_a_server(made: Path) -> None:
    server = ServerDirectory.open(made)
    assert {one.level for one in check_server(server) if one.subject not in ("authority", "disk", "port")} == {"ok"}
    assert found(list(check_server(server)), "authority")[0][0] == "warning"
    (server.path / "control.token").write_text("x")
    (server.path / "control.token").chmod(0o644)
    (server.path / "server.key").write_bytes(Authority.create("other").certify(["a"])[0])
    nodes = json.loads((server.path / "nodes.json").read_text())
    (server.path / "nodes.json").write_text(json.dumps({**nodes, "5": nodes["0"]}))
    findings = list(check_server(server))
    assert "control.token" in found(findings, "files")[0][1]
    assert ("error", "server.key and server.crt do not belong together: run 'unisono deploy rotate'") in found(
        findings, "certificates"
    )
    assert found(findings, "members")[0][0] == "error"


def test_a_check_finds_what_is_wrong_with_a_client(made: Path) -> None:
    client = ClientDirectory.open(made / "client-0")
    findings = list(check_client(client))
    assert found(findings, "data") == [("ok", "120 samples of shape (1, 8, 8)")]
    assert "does not answer" in found(findings, "server")[0][1]
    assert [one.subject for one in findings if one.level == "error"] == ["server"]
    for version, level in ((__version__, "ok"), ("0.0.1", "error"), ("../x", "error")):
        note_server_version(client, version)  # the last is no version, and is not kept
        assert found(list(check_client(client)), "version")[1][0] == level
    client.key.write_bytes((made / "client-1" / "node.key").read_bytes())
    assert found(list(check_client(client)), "key")[0][0] == "error"
    empty = list(check_client(ClientDirectory.open(made / "client-1")))
    assert found(empty, "data")[0][0] == "error"


def test_a_client_takes_the_threads_that_its_owner_grants(made: Path) -> None:
    script = (
        "import sys, torch; from pathlib import Path; from unisono.deploy import client_worker as worker\n"
        "worker.serve_tasks = lambda *arguments, **options: print(torch.get_num_threads()); worker.main(Path(sys.argv[1]))"
    )
    file = made / "client-0" / "client.toml"
    for number in (1, 3):
        file.write_text(re.sub(r"(?m)^(# )?threads = .*$", f"threads = {number}", file.read_text()))
        command = [sys.executable, "-c", script, str(file.parent)]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{number}\n"


def test_a_check_notices_images_that_use_few_of_their_bits(made: Path) -> None:
    """The owner knows the camera, so the number stands in client.toml."""
    np.savez(made.parent / "x.npz", x=np.full((120, 8, 8), 2048, np.uint16))
    client = ClientDirectory.open(made / "client-0")
    assert [level for level, _ in found(list(check_client(client)), "data")] == ["ok", "warning"]
    assert "set bits = 12 in client.toml" in found(list(check_client(client)), "data")[1][1]
    file = client.path / "client.toml"
    file.write_text(file.read_text().replace("# bits =", "bits = 12"))
    client = ClientDirectory.open(client.path)
    assert [level for level, _ in found(list(check_client(client)), "data")] == ["ok"]
    assert load_client_data(client, DataConfig()).mean[0] == pytest.approx(2048 / 4095, abs=1e-4)


def test_a_backup_brings_everything_back_but_what_can_be_made_again(made: Path, tmp_path: Path) -> None:
    client = made / "client-0"
    for name in ("logs/worker.log", "states/a/0.payload", "state.db", "flower/config.toml"):
        (client / name).parent.mkdir(parents=True, exist_ok=True)
        (client / name).write_text("x")
    secret = ClientDirectory.open(client).own_secret
    target = tmp_path / "client.tar.gz"
    number = back_up(client, target)
    assert target.stat().st_mode & 0o077 == 0
    assert restore(target, tmp_path / "again") == number
    again = ClientDirectory.open(tmp_path / "again")
    assert (again.own_secret, again.keys, again.key.read_bytes()) == (
        secret, ClientDirectory.open(client).keys, (client / "node.key").read_bytes(),
    )  # fmt: skip
    assert again.key.stat().st_mode & 0o077 == 0
    assert not {"logs", "states", "state.db", "flower"} & {path.name for path in (tmp_path / "again").iterdir()}
    assert back_up(client, tmp_path / "whole.tar.gz", with_states=True) == number + 1
    with pytest.raises(UserError, match="exists already"):
        back_up(client, target)
    with pytest.raises(UserError, match="not empty"):
        restore(target, client)
    with pytest.raises(UserError, match="neither a server's nor a client's"):
        back_up(tmp_path, tmp_path / "b")
    target.write_bytes(target.read_bytes()[:200])
    with pytest.raises(UserError, match="cannot be read"):
        restore(target, tmp_path / "third")
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as other:
        other.add(tmp_path / "x.npz", "x.npz")
    with pytest.raises(UserError, match="no backup"):
        restore(tmp_path / "other.tar.gz", tmp_path / "third")


def test_a_paused_client_answers_not_now(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, SIMPLE)
    paused = clients.directories[0].path / "paused"
    paused.touch()
    with pytest.raises(ClientError, match="not-now: the owner has paused this client") as caught:
        clients.handlers[0].answer(request(run, 0))
    assert retry_delay(caught.value.reason) == 300
    paused.unlink()
    assert clients.handlers[0].answer(request(run, 0)).update.weight > 0


def test_metrics_are_what_prometheus_reads_and_health_is_that_of_the_processes(made: Path) -> None:
    server, client = ServerDirectory.open(made), ClientDirectory.open(made / "client-0")
    directory = RunDirectory.create(server.runs / "a", {"format": 1})
    directory.write_json("status.json", {"status": "finished", "round": 2, "run_id": 1})
    up = [1.0]
    served = serve_metrics("127.0.0.1:0", lambda: iter([("unisono_up", {}, up[0]), *list(server_metrics(server))[1:]]))
    address = f"http://127.0.0.1:{served.server_address[1]}"
    try:
        text = httpx.get(f"{address}/metrics", trust_env=False).text
        assert 'unisono_run_rounds{run="a",status="finished"} 2' in text
        assert 'unisono_clients{status="online"} 0' in text
        assert all(re.fullmatch(r'# TYPE \w+ gauge|\w+(\{(\w+="[^"]*",?)+\})? [0-9.e+-]+', line) for line in text.splitlines())
        assert httpx.get(f"{address}/healthz", trust_env=False).status_code == 200
        up[0] = 0.0
        assert httpx.get(f"{address}/healthz", trust_env=False).status_code == 503
        assert httpx.get(f"{address}/x", trust_env=False).status_code == 404
    finally:
        served.shutdown()
        served.server_close()
    assert next(server_metrics(server)) == next(client_metrics(client.path, 2)) == ("unisono_up", {}, 0.0)
    with pytest.raises(UserError, match="give host:port"):
        serve_metrics("here", lambda: iter(()))


@pytest.mark.parametrize("what", ["server", "client-0"])
def test_the_files_for_systemd_and_docker_are_in_order(made: Path, what: str) -> None:
    name = what.split("-", maxsplit=1)[0]
    unit = made / what / f"unisono-{name}.service"
    assert f"ExecStart=/usr/bin/env unisono deploy {name} ." in unit.read_text()
    compose = yaml.safe_load((made / what / "compose.yaml").read_text())
    assert list(compose["services"]) == [name]
    assert compose["services"][name].get("ports") == (["1:1"] if name == "server" else None)
    assert f'CMD ["{name}", "."]' in (made / what / "Dockerfile").read_text()


LINTERS: dict[str, tuple[list[list[str]], str]] = {
    "systemd-analyze": ([["systemd-analyze", "verify"]], "unisono-{}.service"),
    "hadolint": ([["hadolint"]], "Dockerfile"),
    "compose": ([["docker", "compose", "-f"], ["docker-compose", "-f"]], "compose.yaml"),
}


@pytest.mark.parametrize("what", ["server", "client-0"])
@pytest.mark.parametrize("linter", LINTERS)
def test_start_files_pass_their_linters(made: Path, what: str, linter: str) -> None:
    commands, name = LINTERS[linter]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for command in commands:
        program = shutil.which(command[0], path=path)
        asked = [program, *command[1:-1], "version" if linter == "compose" else "--version"] if program else ["false"]
        if program and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip(f"{linter} is not installed: {name} was read, not linted")
    file = made / what / name.format(what.partition("-")[0])
    rest = ["config", "-q"] if linter == "compose" else []
    done = subprocess.run([program, *command[1:], file, *rest], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.name not in done.stderr, done.stderr
