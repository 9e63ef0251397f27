"""The list of everything that left a client, and the commands with which its owner reads it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.cli.conftest import Command
from tests.deploy.test_client import SIMPLE, Clients, Run, question, request
from tests.deploy.test_policy import MASKED, SECURE, client_with, first_request
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.deploy.audit import Audit
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger
from unisono.deploy.policy_tables import Policy
from unisono.deploy.policy_text import sentences


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


@pytest.fixture
def own(clients: Clients, tmp_path: Path) -> Path:
    """A client that has described itself, answered, and given scores."""
    path = tmp_path / "own"
    path.mkdir()
    client = client_with(clients, path, {})
    client.describe(question(SIMPLE))
    asked = request(Run(clients, SIMPLE))
    client.answer(asked)
    client.evaluate(asked)
    return path


def test_every_answer_is_listed_with_the_hash_of_what_left(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"log": {"audit": "left.jsonl"}})
    client.describe(question(SIMPLE))
    answer = client.answer(request(Run(clients, SIMPLE)))
    secure = first_request(clients, {**SIMPLE, **SECURE}, {"extra": MASKED})
    client.answer(replace(secure, run_spec=secure.run_spec.replace("run-1", "run-2")))
    directory = ClientDirectory.open(tmp_path)
    described, trained, masked = Audit(directory).chain.lines
    assert (tmp_path / "left.jsonl").is_file()
    assert described["kind"] == "describe"
    assert described["values"]["samples"] == 40
    assert (trained["kind"], trained["round"], trained["masked"], trained["cohort"]) == ("train", 0, False, None)
    assert (masked["masked"], masked["cohort"], masked["groups"], masked["values"]) == (True, [0, 1, 2], {}, {}), "a card only"
    for name, (_, number, digest) in trained["groups"].items():
        group = answer.update.payload.groups[name]
        assert number == sum(tensor.numel() for tensor in group.values())
        assert digest == hashlib.sha256(to_bytes(Payload({name: group}))).hexdigest()
    assert trained["policy"] == directory.config.fingerprint
    assert trained["values"]["weight"] == answer.update.weight


def test_a_refusal_leaves_nothing_and_is_not_listed(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"methods": ["mcc"]}})
    with pytest.raises(ClientError):
        client.answer(request(Run(clients, SIMPLE)))
    assert Audit(ClientDirectory.open(tmp_path)).chain.lines == []


def test_lines_that_were_removed_are_noticed_also_at_the_end(own: Path, unisono: Command) -> None:
    assert "verified: 3 lines" in unisono("deploy", "audit", own).out
    file = own / "audit.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[2])
    assert "damaged at line 2" in unisono("deploy", "audit", own).sentence
    file.write_bytes(b"".join(lines[:2]))
    assert "lacks the answer of" in unisono("deploy", "audit", own).sentence
    file.unlink()
    assert "lacks the answer of" in unisono("deploy", "audit", own).sentence


def test_the_list_is_compared_with_what_the_server_knows(own: Path, tmp_path: Path, unisono: Command) -> None:
    head = Ledger(ClientDirectory.open(own)).chain.head
    report = tmp_path / "privacy.json"
    report.write_text(json.dumps({"owners": {"0": {"policy": "", "ledger": list(head)}}}))
    assert unisono("deploy", "audit", own, "--against", report).code == 0
    file = own / "ledger.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    assert "this ledger has fewer lines" in unisono("deploy", "audit", own, "--against", report).sentence
    report.write_text("{}")
    assert "--against must be the privacy.json" in unisono("deploy", "audit", own, "--against", report).sentence


def test_the_list_is_printed_as_lines_or_json(own: Path, unisono: Command) -> None:
    out = unisono("deploy", "audit", own).out
    assert "describe" in out
    assert "train run run-1 round 1 train: encoder" in out
    assert "align" in out
    whole = unisono("deploy", "audit", own, "--json", "--last", 0).out.splitlines()
    assert [json.loads(line)["kind"] for line in whole] == ["describe", "train", "evaluate"]
    assert len(unisono("deploy", "audit", own, "--json", "--run", "run-1").out.splitlines()) == 2
    assert "2 earlier ones not shown" in unisono("deploy", "audit", own, "--last", 1).out


def test_the_policy_is_told_in_sentences_with_its_hash(own: Path, unisono: Command) -> None:
    result = unisono("deploy", "policy", own)
    directory = ClientDirectory.open(own)
    assert result.out.splitlines()[-1] == f"policy {directory.config.fingerprint}"
    for words in ("What may leave: parameters, statistics.", "a crafted model can read samples", "\n[budget]\n", "client 2: "):
        assert words in result.out
    assert json.loads(unisono("deploy", "policy", own, "--json").out)["hash"] == directory.config.fingerprint


def test_a_changed_key_changes_a_sentence() -> None:
    """Every key but two, which say how another one is counted, is heard in the sentences."""
    plain = sentences(Policy())
    changes = {
        "allow": {"methods": ["mcc"], "code": ["a:b"], "reveals": ["statistics"], "approve": "each", "probes": [],
                  "metrics": []},
        "require": {
            "secure_aggregation": True, "min_cohort": 4,
            "max_weight_share": 0.2, "min_cluster_size": 11, "min_samples": 7, "statistics": "none",
            "cluster_statistics": "none", "own_randomness": False,
        },
        "bounds": {
            "min_batch_size": 3, "min_drawn": 9, "max_epochs": 2, "max_steps": 3, "learning_rate": [0.1, 0.2],
            "max_momentum": 0.1, "plain_views": True, "max_parameters": 7, "max_head_dim": 7, "image_size": [9, 10],
            "max_sizes": 9, "max_descriptions": 8,
            "max_weight_abs": 7.0, "compile": True, "precision": ["bf16"], "min_memory": 7, "max_release_epsilon": 7.0,
            "max_release_delta": 0.1, "max_attempts": 9,
        },
        "budget": {"max_epsilon": 3.0, "max_rounds": 7, "max_runs": 7, "max_failures": 9, "clip_norm": 2.0},
        "resources": {
            "hours": "19:00-06:00", "max_load": 0.5, "max_seconds_per_round": 7, "max_memory": "8GiB", "max_upload": "1MiB",
            "max_download": "1MiB", "max_state": "1MiB", "keep_runs": 9, "threads": 2,
        },
        "peers": {"trust": "listed"},
        "labels": {"use": True},
        "log": {"audit": "x.jsonl", "errors": "short"},
    }  # fmt: skip
    for table, values in changes.items():
        for key, value in values.items():
            changed = sentences(Policy.model_validate({table: {key: value}}, strict=False))
            assert changed[table] != plain[table], f"{table}.{key}"
    silent = {"budget.delta", "budget.noise_multiplier", "budget.distributed_noise",
              "peers.listed", "peers.exchange", "peers.max_points", "labels.classes",
              "labels.min_per_class"}  # fmt: skip
    known = {f"{table}.{key}" for table, section in Policy().tables.items() for key in type(section).model_fields}
    assert known - {f"{table}.{key}" for table, values in changes.items() for key in values} == silent, "they need another key"


def test_an_owner_decides_by_commands(clients: Clients, tmp_path: Path, unisono: Command) -> None:
    path = tmp_path / "own"
    path.mkdir()
    client = client_with(clients, path, {"allow": {"approve": "recipe-hash"}})
    asked = request(Run(clients, SIMPLE))
    assert "no recipe waits" in unisono("deploy", "pending", path).out
    with pytest.raises(ClientError):
        client.answer(asked)
    shown = unisono("deploy", "pending", path).out
    assert "simclr, 2 rounds, without masks" in shown
    assert "encoder: parameters, reduced by mean" in shown
    recipe = shown.split()[0]
    assert unisono("deploy", "approve", path, recipe, "--until", "2999-01-01").out == f"approved {recipe}\n"
    client.answer(asked)
    ledger = unisono("deploy", "ledger", path).out
    assert "answers: 1\n" in ledger
    assert "epsilon of updates: inf" in ledger
    assert unisono("deploy", "deny", path, recipe[:5]).out == f"denied {recipe}\n"
    with pytest.raises(ClientError, match="denied"):
        client.answer(asked)
    assert "go together" in unisono("deploy", "ledger", path, "--reset").sentence
    assert "begins no recipes" in unisono("deploy", "approve", path, "zzzz").sentence


def test_an_audit_that_cannot_be_trusted_stops_the_client(own: Path, clients: Clients) -> None:
    (own / "audit.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UserError, match=r"audit\.jsonl is damaged at line 1"):
        client_with(clients, own, {})
