"""Sites that join, change their key and leave; every command twice, and files that somebody has changed."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import SIMPLE, Clients, Run
from unisono.core.config import merge
from unisono.core.errors import UserError
from unisono.deploy import joining, members
from unisono.deploy.admitted_keys import AdmittedKeys
from unisono.deploy.authority_change import begin_change, finish_change
from unisono.deploy.certificates import Authority, expiry, make_node_key
from unisono.deploy.directories import ClientDirectory, ServerDirectory, write_keys
from unisono.deploy.init import create_federation
from unisono.deploy.joining import accept, add, authority_fingerprint, join, remove, rotate_certificate, rotate_key
from unisono.deploy.members import Members, stored_members, take_members, trusted_authorities
from unisono.deploy.policy import Books
from unisono.deploy.server_audit import sentence, server_chain
from unisono.engines.flower.nodes import key_bytes
from unisono.runs import files


class Operator:
    """A federation of two clients, its authority, and a site that wants to join."""

    def __init__(self, root: Path) -> None:
        create_federation(root / "f", 2, ["fed.example.org"])
        self.root, self.authority = root, Authority.open(root / "f" / "authority")
        self.told = authority_fingerprint(self.authority.certificate)
        self.site = root / "site"

    @property
    def server(self) -> ServerDirectory:
        return ServerDirectory.open(self.root / "f")

    def client(self, number: int) -> ClientDirectory:
        return ClientDirectory.open(self.root / "f" / f"client-{number}")

    @property
    def list(self) -> str:
        return (self.server.path / "members.json").read_text()

    def add_site(self) -> Path:
        """The welcome file of the new site."""
        mark = join(self.site, "a hospital")
        return add(self.server, self.authority, self.site / "request.json", mark, None)[1]


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_a_site_joins_with_a_key_of_its_own_and_the_others_hear_of_it(operator: Operator) -> None:
    mark = join(operator.site, "a hospital")
    assert join(operator.site, "a hospital") == mark
    request = operator.site / "request.json"
    for _ in range(2):
        number, welcome = add(operator.server, operator.authority, request, mark, None)
        assert number == 2
    assert "PRIVATE" not in request.read_text() + welcome.read_text()
    assert (operator.server.config.num_clients, stored_members(operator.server.path).version) == (3, 2)
    for _ in range(2):
        assert accept(operator.site, welcome, operator.told) == 2
    client = ClientDirectory.open(operator.site)
    assert (client.config.client_id, client.config.server) == (2, "fed.example.org:9092")
    assert client.keys == operator.server.keys
    assert stat.S_IMODE(client.key.stat().st_mode) == 0o600
    assert key_bytes((operator.site / "node.pub").read_text()) in AdmittedKeys(operator.server)
    other = operator.client(0)
    assert 2 not in other.keys
    assert take_members(other, operator.list)
    assert other.keys == operator.server.keys
    assert not take_members(other, operator.list)


def test_a_client_changes_its_key_and_keeps_its_number(operator: Operator) -> None:
    client, known = operator.client(1), AdmittedKeys(operator.server)
    before = client.keys[1]
    Books(client).ledger.begin({"kind": "train", "run": "a"})
    assert known[key_bytes(before)] == 1
    mark = rotate_key(client)
    assert rotate_key(client) == mark
    for _ in range(2):
        number, welcome = add(operator.server, operator.authority, client.path / "request.json", mark, None)
    after = operator.server.keys[1]
    assert (number, operator.server.config.num_clients) == (1, 2)
    assert after != before
    assert {known[key_bytes(line)] for line in (before, after)} == {1}
    assert accept(client.path, welcome, None) == 1
    assert (client.path / "node.pub").read_text().strip() == after == client.keys[1]
    Books(client).audit.verify(Books(client).ledger)
    assert Books(client).ledger.rounds == 1, "what was given counts under the new key too"
    earlier = welcome.read_text()
    operator.add_site()
    assert take_members(ClientDirectory.open(client.path), operator.list)
    welcome.write_text(earlier)
    with pytest.raises(UserError, match="is older than this client's list of members"):
        accept(client.path, welcome, None)
    values = json.loads(operator.server.former_file.read_text())
    values["1"]["until"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    operator.server.former_file.write_text(json.dumps(values))
    assert list(operator.server.admitted_keys.values()).count(1) == 1


def test_a_removed_number_is_never_used_again(operator: Operator) -> None:
    server, other = operator.server, operator.client(0)
    assert not remove(server, 1, None)
    assert sorted(server.keys) == [0]
    assert remove(server, 1, operator.authority)
    assert take_members(other, operator.list)
    assert sorted(other.keys) == [0]
    welcome = operator.add_site()
    assert accept(operator.site, welcome, operator.told) == 2
    back = Members(9, {0: other.keys[0], 1: "ecdsa"}, {}).signed(operator.authority)
    with pytest.raises(UserError, match="brings back client 1"):
        take_members(other, back)
    with pytest.raises(UserError, match="There is no key of client 7"):
        remove(server, 7, None)


@attack("B10", "Asks again with a key that was removed while the authority was locked away", "refused, whatever is signed next")
@pytest.mark.parametrize("signs", ["add", "remove", "authority"])
def test_a_client_that_was_removed_without_the_authority_does_not_come_back(operator: Operator, signs: str) -> None:
    server, other = operator.server, operator.client(0)
    operator.add_site()
    gone = key_bytes(server.keys[1])
    mark = rotate_key(operator.client(1))
    assert not remove(server, 1, None)
    with pytest.raises(UserError, match="of client 1, which is no member"):
        add(server, operator.authority, operator.client(1).path / "request.json", mark, None)
    if signs == "add":
        join(operator.root / "late", "late")
        mark = joining.fingerprint(joining.public_line((operator.root / "late" / "node.key.new").read_bytes()))
        number, _ = add(server, operator.authority, operator.root / "late" / "request.json", mark, None)
        assert number == 3, "its number is not used again"
    elif signs == "remove":
        assert remove(server, 2, operator.authority)
    else:
        begin_change(server, operator.authority, operator.root / "new")
    assert 1 not in server.keys
    assert gone not in AdmittedKeys(server)
    assert take_members(other, operator.list)
    assert 1 not in other.keys
    assert 1 in stored_members(other.path).removed


def test_a_stolen_key_is_refused_at_once(operator: Operator) -> None:
    client = operator.client(1)
    stolen = client.keys[1]
    mark = rotate_key(client)
    for at_once in (False, True):
        add(operator.server, operator.authority, client.path / "request.json", mark, None, at_once)
        assert (stolen in operator.server.admitted_keys) is not at_once
    assert operator.server.keys[1] in operator.server.admitted_keys


@attack(
    "B10", "Sends clients a list of members with a key of its own, or an old list", "refused: the authority has not signed it"
)
def test_a_list_of_another_authority_or_an_old_one_is_not_taken(operator: Operator) -> None:
    client, first = operator.client(0), operator.list
    with pytest.raises(UserError, match="not signed by this federation's authority"):
        take_members(client, Members(5, client.keys).signed(Authority.create("other")))
    changed = json.loads(first)
    changed["version"], changed["clients"]["1"] = 5, changed["clients"]["0"]
    with pytest.raises(UserError, match="not signed"):
        take_members(client, json.dumps(changed))
    with pytest.raises(UserError, match="cannot be read"):
        take_members(client, "[]")
    operator.add_site()
    assert take_members(client, operator.list)
    assert not take_members(client, first)
    assert sorted(client.keys) == [0, 1, 2]


@attack(
    "B10", "Joins with a request or a welcome file that was exchanged on its way", "refused: fingerprints and signatures differ"
)
def test_an_exchanged_request_or_welcome_is_refused(operator: Operator) -> None:
    mark = join(operator.site, "a hospital")
    join(operator.root / "thief", "a hospital")
    request = operator.site / "request.json"
    with pytest.raises(UserError, match="has another: ask the owner again"):
        add(operator.server, operator.authority, operator.root / "thief" / "request.json", mark, None)
    values = json.loads(request.read_text())
    request.write_text(json.dumps({**values, "client": 0}))
    with pytest.raises(UserError, match="not signed by the key"):
        add(operator.server, operator.authority, request, mark, None)
    request.write_text(json.dumps({**values, "name": "another"}))
    with pytest.raises(UserError, match="not signed by the key"):
        add(operator.server, operator.authority, request, mark, None)
    welcome = operator.add_site()
    with pytest.raises(UserError, match="--fingerprint must be the authority's"):
        accept(operator.site, welcome, "SHA256:other")
    with pytest.raises(UserError, match="not for this client"):
        accept(operator.root / "thief", welcome, operator.told)
    with pytest.raises(UserError, match="no welcome file"):
        accept(operator.site, request, operator.told)
    assert not (operator.site / "client.toml").exists()


def killed_after(last: int) -> Callable[[Path, bytes], None]:
    """Return a ``write_atomically`` that is interrupted after so many files."""
    real, written = files.write_atomically, 0

    def write(path: Path, content: bytes) -> None:
        nonlocal written
        written += 1
        if written > last:
            raise KeyboardInterrupt
        real(path, content)

    return write


@pytest.mark.parametrize("last", range(6))
def test_a_command_that_is_interrupted_at_any_file_is_repeated(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    mark = join(operator.site, "a hospital")

    def both() -> None:
        _, welcome = add(operator.server, operator.authority, operator.site / "request.json", mark, None)
        accept(operator.site, welcome, operator.told)

    with monkeypatch.context() as patch:
        patch.setattr(joining, "write_atomically", killed_after(last))
        with pytest.raises(KeyboardInterrupt):
            both()
    number, welcome = add(operator.server, operator.authority, operator.site / "request.json", mark, None)
    assert accept(operator.site, welcome, operator.told) == number == 2
    assert stored_members(operator.server.path).version == 2
    assert ClientDirectory.open(operator.site).keys == operator.server.keys


@pytest.mark.parametrize("last", range(3))
def test_a_client_that_is_killed_while_it_takes_the_last_authority_takes_it_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Between two files the client must still believe its own list, or it would never take another."""
    client, path = operator.client(0), operator.root / "new"
    new = begin_change(operator.server, operator.authority, path)
    assert take_members(client, operator.list)
    finish_change(operator.server, new)
    write = killed_after(last)
    with monkeypatch.context() as patch:
        for module in (members, files):
            patch.setattr(module, "write_atomically", write)
        with contextlib.suppress(KeyboardInterrupt):
            take_members(client, operator.list)
    take_members(client, operator.list)
    assert trusted_authorities(client.path) == [new.certificate]
    assert stored_members(client.path).version == stored_members(operator.server.path).version
    assert take_members(client, operator.list) is None


def test_a_certificate_holds_for_a_year_and_its_end_is_announced(operator: Operator) -> None:
    path = operator.server.path / "server.crt"
    end, warning = expiry(path)
    assert warning == ""
    assert 363 < (end - datetime.now(UTC)).days < 366
    assert "ends in 29 days" in expiry(path, end - timedelta(days=29.5))[1]
    assert "has ended" in expiry(path, end + timedelta(days=1))[1]
    before = path.read_bytes()
    rotate_certificate(operator.server, operator.authority, 10)
    assert "ends in 9 days" in expiry(path)[1]
    old, new = x509.load_pem_x509_certificate(before), x509.load_pem_x509_certificate(path.read_bytes())
    assert new.public_key() != old.public_key()
    names = [one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (old, new)]
    assert names[0] == names[1]
    new.verify_directly_issued_by(operator.authority.certificate)


def test_an_authority_follows_another_and_clients_trust_both_in_between(operator: Operator) -> None:
    client, late = operator.client(0), operator.client(1)
    path = operator.root / "new"
    new = begin_change(operator.server, operator.authority, path)
    assert begin_change(operator.server, operator.authority, path).pem == new.pem
    assert stat.S_IMODE((path / "ca.key").stat().st_mode) == 0o600
    with pytest.raises(UserError, match="does not trust this authority yet"):
        finish_change(operator.server, Authority.create("other"))
    with pytest.raises(UserError, match="it is another"):
        begin_change(operator.server, Authority.create("other"), path)
    assert take_members(client, operator.list)
    assert trusted_authorities(client.path) == [operator.authority.certificate, new.certificate]
    welcome = operator.add_site()
    assert accept(operator.site, welcome, operator.told) == 2
    assert trusted_authorities(operator.site) == trusted_authorities(client.path)
    finish_change(operator.server, new)
    served = x509.load_pem_x509_certificate((operator.server.path / "server.crt").read_bytes())
    served.verify_directly_issued_by(new.certificate)
    for _ in range(2):
        take_members(client, operator.list)
        assert trusted_authorities(client.path) == [new.certificate]
    assert client.keys == operator.server.keys
    with pytest.raises(UserError, match="not signed by this federation's authority"):
        take_members(late, operator.list)
    mark = rotate_key(late)
    _, welcome = add(operator.server, new, late.path / "request.json", mark, None)
    with pytest.raises(UserError, match="another authority than this client's"):
        accept(late.path, welcome, None)
    assert accept(late.path, welcome, authority_fingerprint(new.certificate)) == 1
    assert trusted_authorities(late.path) == [new.certificate]


def test_what_is_done_to_a_server_is_written_down(operator: Operator) -> None:
    operator.add_site()
    remove(operator.server, 1, operator.authority)
    rotate_certificate(operator.server, operator.authority, 10)
    chain = server_chain(operator.server.path)
    assert [(line["action"], line["object"].split(",")[0]) for line in chain.lines] == [
        ("init", "2 clients"), ("add", "client 2"), ("remove", "client 1"), ("rotate", "server.crt")
    ]  # fmt: skip
    assert all(line["actor"][0] == os.getuid() for line in chain.lines)
    assert sentence(chain.lines[1]).endswith(f"add {chain.lines[1]['object']}")
    file = operator.server.path / "audit.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=r"audit\.jsonl is damaged at line 1\. Keep it as evidence"):
        server_chain(operator.server.path)


def test_a_sum_knows_the_keys_that_are_in_force_now(tmp_path: Path) -> None:
    """A site joins, or changes its key, while the others run."""
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, {"privacy": {"secure_aggregation": True}}), secure=True)
    state = run.go(until=1)
    private, line = make_node_key()
    clients.directories[2].key.write_bytes(private)
    for directory in clients.directories:
        write_keys(directory.path / "nodes.json", {**directory.keys, 2: line})
    clients.restart(2)
    again = Run(clients, merge(SIMPLE, {"privacy": {"secure_aggregation": True}}), secure=True)
    again.go(state)
    assert run.failures == again.failures == []
