"""A federation in operation, in real processes with TLS: labels at the sites, new sites, new keys and a new authority.

It takes some minutes, so it is no part of the suite: ``make live``.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.deploy.running import NUM_CLIENTS, SMALL, UNISONO, RunningFederation, configured, free_ports, read_lines, sets
from tests.deploy.running import write_samples as write
from unisono.deploy.condition import node_table
from unisono.deploy.directories import CLIENT_FILE, ClientDirectory, ServerDirectory, write_config
from unisono.deploy.members import stored_members, trusted_authorities

pytestmark = pytest.mark.timeout(1200)
FEDEMA = ("method.hidden_dim=32", "method.projection_dim=16", "data.channels=1", "federation.quorum=1.0", *SMALL)
SECURE = "privacy.secure_aggregation=true"
CLASSES = 'labels.classes=["b", "a"]'


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    running = RunningFederation(tmp_path_factory.mktemp("live"))
    try:
        running.start()
        yield running
    finally:
        running.close()


def answered(run: Path) -> list[int]:
    return [entry["answered"] for entry in read_lines(run / "metrics.jsonl")]


def told(federation: RunningFederation, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    done = federation.unisono(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr, federation.logs())
    return done.stdout


def begin(federation: RunningFederation, name: str, *settings: str) -> Path:
    """A run that goes on by itself, after its first round."""
    command = ["deploy", "run", "fedema", "--server", str(federation.server.path), "--name", name, "--detach"]
    told(federation, *command, *sets((*FEDEMA, *settings)))
    run = federation.server.runs / name
    federation.wait_for(lambda: len(answered(run)) >= 1)
    return run


def finished(federation: RunningFederation, run: Path) -> None:
    federation.wait_for(lambda: json.loads((run / "status.json").read_text())["status"] == "finished", 300)


def all_online(federation: RunningFederation, number: int) -> None:
    federation.wait_for(lambda: [word for _, word in node_table(federation.server)] == ["online"] * number)


def fingerprint(text: str) -> str:
    found = re.search(r"fingerprint[^:]*: (SHA256:\S+)", text)
    assert found, text
    return found[1]


def served_certificate(federation: RunningFederation) -> x509.Certificate:
    address = ("127.0.0.1", federation.server.config.port)
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(address).encode())


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    certificate.verify_directly_issued_by(authority)  # raises an error if not
    return True


@pytest.mark.parametrize(
    ("method", "settings"),
    [("supervised", ()), ("semifed", ()), ("cbafed", ()), ("simclr", ("method.projection_dim=8", "method.label_weight=1.0"))],
)
def test_methods_learn_from_labels_that_stay_at_the_sites(
    federation: RunningFederation, method: str, settings: tuple[str, ...]
) -> None:
    rounds = ("federation.rounds=2", "federation.quorum=1.0", "data.channels=1")
    run = federation.run(method, f"labels-{method}", *rounds, SECURE, CLASSES, *SMALL, *settings)
    first = 2 * NUM_CLIENTS if method == "cbafed" else NUM_CLIENTS  # its first round has a phase that counts the classes
    assert answered(run) == [first, NUM_CLIENTS]
    for path in federation.clients:
        left = (path / "audit.jsonl").read_text()
        assert "class_counts" not in left, "counts of classes leave in a masked sum only"


def test_status_answers_while_everything_runs(federation: RunningFederation) -> None:
    began = time.perf_counter()
    lines = told(federation, "deploy", "status", str(federation.server.path)).splitlines()
    print(f"\nstatus took {time.perf_counter() - began:.2f} s")
    assert [line.split() for line in lines if line.startswith("client")] == [
        ["client", str(number), "online"] for number in range(NUM_CLIENTS)
    ]


def test_a_client_that_hangs_before_its_first_answer_costs_one_short_deadline(federation: RunningFederation) -> None:
    """It says that it lives, and works on nothing: its worker is suspended as soon as it has described its data."""
    command = ["deploy", "run", "fedema", "--server", str(federation.server.path), "--name", "hangs", "--detach"]
    slow = ("federation.quorum=0.5", "federation.rounds=2", "training.local_epochs=20", "engine.client_timeout=600")
    told(federation, *command, *sets((*FEDEMA, *slow)))
    run, worker = federation.server.runs / "hangs", federation.process(federation.clients[0], "client_worker")
    federation.wait_for((run / "run_info.json").is_file)
    worker.suspend()
    try:
        federation.wait_for(lambda: len(answered(run)) >= 1, 300)
    finally:
        worker.resume()
    finished(federation, run)
    assert answered(run)[0] == NUM_CLIENTS - 1
    first = next(iter(read_lines(run / "failures.jsonl")))
    assert (first["client"], first["round"]) == (0, 0)
    assert re.fullmatch(r"no answer within (6\d|[7-9]\d|1\d\d) s", first["reason"]), "the others took a few seconds"


def test_a_site_joins_while_a_run_goes_on(federation: RunningFederation) -> None:
    run = begin(federation, "before", "federation.rounds=6")
    site = federation.root / "site"
    mark = fingerprint(told(federation, "deploy", "join", str(site), "--name", "a hospital"))
    added = told(
        federation, "deploy", "add", str(site / "request.json"), "--server", str(federation.server.path), "--fingerprint", mark
    )
    assert f"client {NUM_CLIENTS} is a member from now on" in added
    welcome = site / f"welcome-{NUM_CLIENTS}.json"
    told(federation, "deploy", "accept", str(site), str(welcome), "--fingerprint", fingerprint(added))
    own = ClientDirectory.open(site).config
    assert own.allow.approve == "recipe-hash"
    data = write(federation.root / "data-new", NUM_CLIENTS)
    values = {"port": free_ports(1)[0], "data": str(data), "poll_interval": 0.5, "allow": {"approve": "always"}}
    write_config(site / CLIENT_FILE, configured(own, {**values, "require": {"secure_aggregation": False, "min_cohort": 3}}))
    federation.clients.append(site)
    federation.spawn([*UNISONO, "deploy", "client", str(site)], "site")
    federation.server = ServerDirectory.open(federation.path)
    all_online(federation, NUM_CLIENTS + 1)
    finished(federation, run)
    assert set(answered(run)) == {NUM_CLIENTS}, "a run that has begun goes on as it was"
    after = federation.run("fedema", "after", *FEDEMA, SECURE, "federation.rounds=2")
    assert answered(after) == [NUM_CLIENTS + 1] * 2, "the others have heard of the new site, or they would not mask with it"


def test_a_key_changes_while_a_run_goes_on(federation: RunningFederation) -> None:
    client = federation.clients[0]
    before = ClientDirectory.open(client).keys[0]
    run = begin(federation, "rotated", "federation.rounds=6", "federation.quorum=0.5")
    mark = fingerprint(told(federation, "deploy", "rotate", str(client)))
    server = ("--server", str(federation.server.path))
    told(federation, "deploy", "add", str(client / "request.json"), *server, "--fingerprint", mark)
    told(federation, "deploy", "accept", str(client), str(client / "welcome-0.json"))
    finished(federation, run)
    assert stored_members(client).clients[0] != before
    all_online(federation, NUM_CLIENTS + 1)
    after = federation.run("fedema", "new-key", *FEDEMA, SECURE, "federation.rounds=1")
    assert answered(after) == [NUM_CLIENTS + 1]


def test_a_certificate_changes_while_a_run_goes_on(federation: RunningFederation) -> None:
    before = served_certificate(federation)
    run = begin(federation, "certificate", "federation.rounds=6", "federation.quorum=0.5")
    told(federation, "deploy", "rotate", str(federation.server.path))
    finished(federation, run)
    assert [entry["round"] for entry in read_lines(run / "metrics.jsonl")] == list(range(6))
    federation.wait_for(lambda: served_certificate(federation).serial_number != before.serial_number)


def test_an_authority_changes_and_no_site_does_anything(federation: RunningFederation) -> None:
    server, new = str(federation.server.path), str(federation.root / "new-authority")
    told(federation, "deploy", "authority", new, "--server", server)
    time.sleep(5)
    all_online(federation, NUM_CLIENTS + 1)
    federation.run("fedema", "both", *FEDEMA, "federation.rounds=1", "federation.quorum=0.25")
    federation.wait_for(lambda: all(len(trusted_authorities(path)) == 2 for path in federation.clients))
    time.sleep(10)  # clients restart, and read the new certificate
    all_online(federation, NUM_CLIENTS + 1)
    told(federation, "deploy", "authority", new, "--server", server, "--finish")
    (authority,) = trusted_authorities(federation.server.path)
    federation.wait_for(lambda: is_signed_by(served_certificate(federation), authority))
    time.sleep(5)
    all_online(federation, NUM_CLIENTS + 1)
    run = federation.run("fedema", "alone", *FEDEMA, "federation.rounds=1", "federation.quorum=0.25")
    assert answered(run)
    federation.wait_for(lambda: all(trusted_authorities(path) == [authority] for path in federation.clients))
    time.sleep(10)
    all_online(federation, NUM_CLIENTS + 1)
    last = federation.run("fedema", "last", *FEDEMA, SECURE, "federation.rounds=1")
    assert answered(last) == [NUM_CLIENTS + 1]
    listed = told(federation, "deploy", "audit", server, "--last", "0")
    assert [word for word in ("init", "start", "run", "add", "rotate", "authority") if word not in listed.split()] == []
    checked = subprocess.run(
        [sys.executable, "-m", "unisono", "deploy", "check", server, "--json"], capture_output=True, text=True, check=False
    )
    assert all(json.loads(line)["level"] != "error" for line in checked.stdout.splitlines()), checked.stdout


def test_a_site_is_removed_while_a_run_goes_on(federation: RunningFederation) -> None:
    """The last one: a removed site does not come back."""
    gone, others, server = NUM_CLIENTS, federation.clients[:NUM_CLIENTS], str(federation.server.path)
    run = begin(federation, "left", "federation.rounds=8")
    log = federation.clients[gone] / "logs" / "supernode.log"
    before = log.stat().st_size
    authority = str(federation.root / "new-authority")
    said = told(federation, "deploy", "remove", str(gone), "--server", server, "--authority", authority)
    assert said == f"client {gone} is turned away from now on\n"
    finished(federation, run)
    counts = answered(run)
    assert counts[0] == NUM_CLIENTS + 1
    assert counts[-1] == NUM_CLIENTS, "every client has to answer, and nobody waits for one that was removed"
    status = told(federation, "deploy", "status", server).splitlines()
    assert [line.split()[1:] for line in status if line.startswith("client")] == [[str(n), "online"] for n in range(gone)]
    after = federation.run("fedema", "without", *FEDEMA, SECURE, "federation.rounds=2")
    assert answered(after) == [NUM_CLIENTS] * 2
    federation.wait_for(lambda: all(gone not in stored_members(path).clients for path in others))
    assert all(gone in stored_members(path).removed for path in others)
    # It has its key and its directory still, has been refused, and starts again and again.
    federation.wait_for(lambda: b"401 Unauthorized" in log.read_bytes()[before:])
    federation.wait_for(lambda: log.read_bytes()[before:].count(b"Starting Flower SuperNode") >= 2)
    assert [word for _, word in node_table(federation.server)] == ["online"] * NUM_CLIENTS
    again = federation.unisono("deploy", "remove", str(gone), "--server", server)
    assert again.returncode == 2
    assert f"There is no key of client {gone}" in again.stderr
    site = federation.root / "another-site"
    mark = fingerprint(told(federation, "deploy", "join", str(site)))
    added = told(
        federation, "deploy", "add", str(site / "request.json"), "--server", server, "--authority", authority,
        "--fingerprint", mark,
    )  # fmt: skip
    assert f"client {gone + 1} is a member from now on" in added, "its number is not used again"
