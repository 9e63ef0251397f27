"""Every key of client.toml: a request that it refuses, by its name, and one that it lets pass."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attacks import attack
from tests.deploy.test_client import EXCHANGE, GROUP_NORM, SHARING, SIMPLE, Clients, Run, question, request
from unisono.core.config import merge, read_toml, write_toml
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Update
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import CLIENT_FILE, ClientDirectory
from unisono.deploy.ledger import Ledger
from unisono.deploy.policy import fingerprint
from unisono.deploy.policy_tables import Policy, num_bytes, with_new_keys
from unisono.deploy.refusal import RefusedError, retry_delay
from unisono.deploy.release import rounded
from unisono.deploy.resources import check_time, time_limit
from unisono.engines.flower.messages import Request

Tree = dict[str, Any]
SECURE: Tree = {"privacy": {"secure_aggregation": True}}
MASKED: Tree = {"cohort": [0, 1, 2], "threshold": 3, "nonce": "7" * 32, "max_weight": 64.0}
ORCHESTRA: Tree = {
    **SIMPLE,
    "method": {"name": "orchestra", "projection_dim": 8, "num_local_clusters": 2, "num_global_clusters": 2},
}
LOCAL_DP: Tree = merge(ORCHESTRA, {"method": {"privacy": "local-dp", "noise_source": "system"}, "model": {"norm": "group"}})

# key, the owner's value that refuses, the owner's value that lets the same recipe pass, the recipe, more of the request
TABLE: list[tuple[str, Any, Any, Tree, Tree]] = [
    ("allow.methods", ["mcc"], ["simclr"], SIMPLE, {}),
    ("allow.reveals", ["statistics"], ["parameters"], SIMPLE, {}),
    ("require.secure_aggregation", True, False, SIMPLE, {}),
    ("require.min_cohort", 4, 3, {**SIMPLE, **SECURE}, {"extra": MASKED}),
    ("require.max_weight_share", 0.3, 0.4, {**SIMPLE, **SECURE, "aggregation": {"weighting": "uniform"}}, {"extra": MASKED}),
    ("require.min_samples", 41, 40, SIMPLE, {}),
    ("require.cluster_statistics", "local-dp", "k-anonymous", ORCHESTRA, {}),
    ("require.cluster_statistics", "none", "local-dp", LOCAL_DP, {}),
    ("bounds.min_batch_size", 17, 16, SIMPLE, {}),
    ("bounds.min_drawn", 33, 32, merge(SIMPLE, {"training": {"local_steps": 2}}), {}),
    ("bounds.max_epochs", 1, 2, merge(SIMPLE, {"training": {"local_epochs": 2}}), {}),
    ("bounds.max_steps", 1, 2, merge(SIMPLE, {"training": {"local_steps": 2}}), {}),
    ("bounds.learning_rate", [0.01, 0.1], [0.001, 0.1], merge(SIMPLE, {"training": {"learning_rate": 0.005}}), {}),
    ("bounds.max_momentum", 0.5, 0.9, SIMPLE, {}),
    ("bounds.plain_views", False, True, merge(SIMPLE, {"views": {"preset": "none"}}), {}),
    ("bounds.max_parameters", 100, 10_000_000, SIMPLE, {}),
    ("bounds.max_head_dim", 2047, 2048, SIMPLE, {}),
    ("bounds.image_size", [17, 32], [8, 32], merge(SIMPLE, {"data": {"image_size": 16}}), {}),
    ("bounds.precision", ["fp32"], ["fp32", "bf16"], merge(SIMPLE, {"training": {"precision": "bf16"}}), {}),
    ("bounds.max_weight_abs", 1e-4, 1e4, SIMPLE, {}),
    ("bounds.max_release_epsilon", 0.5, 1.0, LOCAL_DP, {}),
    ("bounds.max_release_delta", 1e-4, 1e-3, LOCAL_DP, {}),
    ("resources.max_upload", "1KiB", "1MiB", SIMPLE, {}),
    ("resources.max_download", "1KiB", "1MiB", SIMPLE, {}),
    ("budget.max_epsilon", 0.1, 1e6, merge(SIMPLE, GROUP_NORM), {}),
]
OTHERS = {
    "allow.code": "test_client.py, views of a file",
    "allow.approve": "test_approvals.py",
    "allow.probes": "here",
    "allow.metrics": "here",
    "require.min_cluster_size": "test_hostile_server.py, statistics of one sample",
    "require.statistics": "here",
    "require.own_randomness": "test_hostile_server.py, a clients draws",
    "bounds.compile": "here",
    "bounds.max_sizes": "here",
    "bounds.max_descriptions": "test_hostile_requests.py",
    "bounds.min_memory": "test_hostile_server.py, orchestra",
    "bounds.max_attempts": "test_hostile_server.py, again and again",
    "budget.delta": "test_ledger.py",
    "budget.max_rounds": "here",
    "budget.max_runs": "here",
    "budget.max_failures": "test_hostile_server.py, failures",
    "budget.clip_norm": "test_client.py, clipped and noisy",
    "budget.noise_multiplier": "test_client.py, clipped and noisy",
    "budget.distributed_noise": "here",
    "resources.hours": "here",
    "resources.max_load": "here",
    "resources.max_seconds_per_round": "here",
    "resources.max_memory": "here",
    "resources.max_state": "here",
    "resources.keep_runs": "here",
    "resources.threads": "client_worker.py",
    "peers.trust": "here",
    "peers.listed": "here",
    "peers.exchange": "here",
    "peers.max_points": "here",
    "labels.use": "test_labels_at_clients.py",
    "labels.classes": "test_labels_at_clients.py",
    "labels.min_per_class": "test_labels_at_clients.py",
    "log.audit": "tests/cli/test_deploy_owner.py",
    "log.errors": "here",
}
"""Keys that have a test of their own, and where."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


def client_with(clients: Clients, tmp_path: Path, values: Mapping[str, Any]) -> DeployedClient:
    """Client 0 with other rules, and a ledger of its own."""
    directory = clients.directories[0]
    for name in ("node.pub", "node.key", "nodes.json"):
        (tmp_path / name).write_bytes((directory.path / name).read_bytes())
    whole = merge(directory.config.model_dump(mode="json"), values)
    (tmp_path / CLIENT_FILE).write_text(write_toml(whole))
    (tmp_path / CLIENT_FILE).chmod(0o600)
    return DeployedClient(ClientDirectory.open(tmp_path))


def nested(key: str, value: Any) -> Tree:
    table, name = key.split(".")
    return {table: {name: value}}


def first_request(clients: Clients, tree: Tree, more: Tree) -> Request:
    run = Run(clients, tree)
    server = run.federation.initial_state().server
    phase = run.method.phases(0, server)[0].name
    return Request(0, 0, phase, 0, run.run_spec, run.method.broadcast(server, Context(0, 0, phase)), **more)


@pytest.mark.parametrize(("key", "refused", "allowed", "tree", "more"), TABLE, ids=[f"{row[0]}-{row[1]}" for row in TABLE])
def test_every_key_refuses_by_its_name_and_lets_pass(
    clients: Clients, tmp_path: Path, key: str, refused: Any, allowed: Any, tree: Tree, more: Tree
) -> None:
    asked = first_request(clients, tree, more)
    own: Tree = {"budget": {"clip_norm": 1.0, "noise_multiplier": 2.0}} if key == "budget.max_epsilon" else {}
    (tmp_path / "a").mkdir()
    with pytest.raises(ClientError, match=f"policy:{key}"):
        client_with(clients, tmp_path / "a", merge(own, nested(key, refused))).answer(asked)
    (tmp_path / "b").mkdir()
    lenient = {"bounds": {"max_release_delta": 0.5}} if key != "bounds.max_release_delta" else {}
    assert client_with(clients, tmp_path / "b", merge(merge(own, lenient), nested(key, allowed))).answer(asked).update


def test_a_share_is_limited_only_where_all_weigh_the_same(clients: Clients, tmp_path: Path) -> None:
    """Where samples count, a mask hides how much the others weigh, so nobody could hold a limit."""
    asked = first_request(clients, {**SIMPLE, **SECURE}, {"extra": MASKED})
    with pytest.raises(ClientError, match=r"policy:require\.max_weight_share: .*aggregation.weighting = 'uniform'"):
        client_with(clients, tmp_path, {"require": {"max_weight_share": 0.9}}).answer(asked)


def test_every_key_has_a_test() -> None:
    keys = {f"{table}.{key}" for table, section in Policy().tables.items() for key in type(section).model_fields}
    tested = {row[0] for row in TABLE}
    assert tested | set(OTHERS) == keys
    assert not tested & set(OTHERS)


def test_a_refusal_is_a_code_unless_the_owner_likes_sentences(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"log": {"errors": "codes"}, "bounds": {"min_batch_size": 17}})
    with pytest.raises(ClientError) as caught:
        client.answer(request(Run(clients, SIMPLE)))
    assert caught.value.reason == "refused: policy:bounds.min_batch_size"


def test_compilers_start_only_if_the_owner_says_so(clients: Clients, tmp_path: Path) -> None:
    compiled = merge(SIMPLE, {"training": {"compile": True}})
    with pytest.raises(ClientError, match=r"policy:bounds\.compile"):
        client_with(clients, tmp_path, {}).answer(request(Run(clients, compiled)))


@attack("A12", "Reads a function of chosen samples off metrics and scores", "only listed ones leave, with three digits")
def test_scores_and_metrics_leave_as_listed(clients: Clients, tmp_path: Path) -> None:
    asked = request(Run(clients, SIMPLE))
    (tmp_path / "a").mkdir()
    client = client_with(clients, tmp_path / "a", {"allow": {"probes": ["align"], "metrics": ["loss"]}})
    scored = client.evaluate(asked)
    assert set(scored["scores"]) == {"align"}
    assert scored["owner"]["policy"] == client._config.fingerprint
    metrics = client.answer(asked).update.metrics
    assert set(metrics) == {"loss"}
    assert metrics["loss"] == rounded(metrics["loss"], 3)
    (tmp_path / "b").mkdir()
    silent = client_with(clients, tmp_path / "b", {"allow": {"probes": [], "metrics": []}})
    with pytest.raises(ClientError, match=r"policy:allow\.probes"):
        silent.evaluate(asked)
    assert silent.answer(asked).update.metrics == {}


def test_statistics_are_exact_rounded_or_none(clients: Clients, tmp_path: Path) -> None:
    told = {}
    for kind in ("exact", "rounded", "none"):
        (tmp_path / kind).mkdir()
        client = client_with(clients, tmp_path / kind, {"require": {"statistics": kind}})
        if kind == "none":
            with pytest.raises(UserError, match=r"policy:require\.statistics"):
                client.describe(question(SIMPLE))
        told[kind] = client.describe(question(merge(SIMPLE, {"model": {"normalize_input": "half"}})))
        answer = client.answer(request(Run(clients, merge(SIMPLE, {"model": {"normalize_input": "half"}}))))
        assert answer.update.weight == told[kind]["samples"] == answer.stats.num_samples
    assert told["exact"]["mean"] != told["rounded"]["mean"] == [round(told["exact"]["mean"][0], 2)]
    assert told["none"]["samples"] == 1
    assert told["none"]["mean"] == [0.5]


@pytest.mark.parametrize(("number", "down", "up"), [(1234, 1200, 1200), (1290, 1200, 1300), (99, 99, 99), (5, 5, 5), (0, 0, 0)])
def test_numbers_keep_two_digits(number: float, down: float, up: float) -> None:
    assert (rounded(number, 2, down=True), rounded(number, 2)) == (down, up)
    assert rounded(-number, 2) == -up


@attack("A17", "Asks for statistics of the data at any number of image sizes", "refused beyond bounds.max_sizes")
def test_statistics_are_told_for_few_sizes(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"bounds": {"max_sizes": 2}})
    for size in (8, 16, 8):
        client.describe(question(merge(SIMPLE, {"data": {"image_size": size}})))
    with pytest.raises(UserError, match=r"policy:bounds\.max_sizes"):
        client.describe(question(merge(SIMPLE, {"data": {"image_size": 24}})))


@attack("A16", "Starts run after run to have every count begin anew", "refused beyond budget.max_rounds, budget.max_runs")
def test_rounds_and_runs_are_counted_over_the_lifetime(clients: Clients, tmp_path: Path) -> None:
    run = Run(clients, SIMPLE)
    asked = request(run)
    (tmp_path / "a").mkdir()
    client_with(clients, tmp_path / "a", {}).answer(asked)
    with pytest.raises(ClientError, match=r"policy:budget\.max_rounds"):
        client_with(clients, tmp_path / "a", {"budget": {"max_rounds": 1}}).answer(replace(asked, round=1))
    client_with(clients, tmp_path / "a", {"budget": {"max_rounds": 2}}).answer(replace(asked, round=1))
    other = replace(asked, run_spec=run.run_spec.replace("run-1", "run-2"))
    with pytest.raises(ClientError, match=r"policy:budget\.max_runs"):
        client_with(clients, tmp_path / "a", {"budget": {"max_runs": 1}}).answer(other)
    client_with(clients, tmp_path / "a", {"budget": {"max_runs": 2}}).answer(other)


@attack("A24", "Names a client that it works with as neighbour of all others (CF-CL)", "refused unless the owner lists it")
def test_samples_go_to_listed_peers_and_only_so_many(tmp_path: Path) -> None:
    clients = Clients(tmp_path, **merge(SHARING, {"peers": {"exchange": [1]}}))
    run = Run(clients, EXCHANGE)
    with pytest.raises(UserError, match="below the quorum"):
        run.go(until=1)
    reasons = {failure.client_id: failure.reason for failure in run.failures}
    assert "policy:peers.exchange: peers.exchange does not list client 2" in reasons[0]
    for number in range(3):
        clients.restart(number, peers={"exchange": [0, 1, 2], "max_points": 2})
    few = Run(clients, EXCHANGE)
    with pytest.raises(UserError, match="below the quorum"):
        few.go(until=1)
    assert all("policy:peers.max_points" in failure.reason for failure in few.failures)


def test_a_sum_has_only_clients_whose_keys_are_listed(clients: Clients, tmp_path: Path) -> None:
    asked = first_request(clients, {**SIMPLE, **SECURE}, {"extra": MASKED})
    keys = clients.directories[0].keys
    (tmp_path / "a").mkdir()
    with pytest.raises(ClientError, match=r"policy:peers\.listed: peers.trust = 'listed', and client 2 is not"):
        client_with(clients, tmp_path / "a", {"peers": {"trust": "listed", "listed": [fingerprint(keys[1])]}}).answer(asked)
    (tmp_path / "b").mkdir()
    listed = {"peers": {"trust": "listed", "listed": [fingerprint(keys[1]), fingerprint(keys[2])]}}
    assert client_with(clients, tmp_path / "b", listed).answer(asked)


@pytest.mark.parametrize(
    ("hours", "time", "works"),
    [("19:00-06:00", "23:10", True), ("19:00-06:00", "05:59", True), ("19:00-06:00", "06:00", False),
     ("08:30-17:00", "08:29", False), ("08:30-17:00", "12:00", True), ("", "12:00", True)],
)  # fmt: skip
def test_a_client_works_in_its_hours(hours: str, time: str, works: bool) -> None:
    table = Policy.model_validate({"resources": {"hours": hours}}).resources
    now = datetime.fromisoformat(f"2026-11-18T{time}")
    if works:
        check_time(table, now)
        return
    with pytest.raises(RefusedError, match="minutes again") as caught:
        check_time(table, now)
    assert caught.value.code == "not-now"


def test_a_busy_machine_is_left_alone() -> None:
    table = Policy.model_validate({"resources": {"max_load": 0.5}}).resources
    check_time(table, load=0.4)
    with pytest.raises(RefusedError, match="idle"):
        check_time(table, load=0.6)


def test_an_answer_takes_no_longer_than_allowed(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"resources": {"max_seconds_per_round": 1}})
    endless = merge(SIMPLE, {"training": {"local_epochs": 50, "batch_size": 2}})
    with pytest.raises(ClientError, match=r"policy:resources\.max_seconds_per_round"):
        client.answer(request(Run(clients, endless)))
    with time_limit(60):
        pass


def test_memory_is_limited_in_the_process_of_a_client(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "from unisono.deploy.policy_tables import ResourcesTable\nfrom unisono.deploy.resources import limit_memory\n"
        "import torch\nlimit_memory(ResourcesTable(max_memory='4GiB'))\ntorch.zeros(2**20)\ntorch.zeros(2**31)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "allocate" in done.stderr


def test_states_of_old_runs_go(tmp_path: Path) -> None:
    clients = Clients(tmp_path, **merge(SHARING, {"resources": {"keep_runs": 2}}))
    run = Run(clients, SIMPLE)
    for number in range(3):
        spec = run.run_spec.replace("run-1", f"run-{number}")
        clients.handlers[0].answer(replace(request(run), run_spec=spec))
    assert len(list(clients.directories[0].states.iterdir())) == 2
    clients.restart(0, resources={"max_state": "0KiB"})
    (clients.directories[0].states / "large").write_bytes(b"1")
    with pytest.raises(ClientError, match=r"policy:resources\.max_state"):
        clients.handlers[0].answer(replace(request(run), run_spec=run.run_spec.replace("run-1", "run-9")))


# --- the file


def test_older_keys_are_read_with_a_warning_and_never_twice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tree = with_new_keys({"share_data": True, "allow_raw_representations": True, "max_epsilon": 2.0, "threads": 3})
    assert tree["allow"]["reveals"] == ["parameters", "statistics", "data", "representations"]
    assert (tree["budget"], tree["resources"]) == ({"max_epsilon": 2.0}, {"threads": 3})
    assert "max_epsilon is now budget.max_epsilon" in caplog.text
    with pytest.raises(UserError, match=r"both max_epsilon and budget\.max_epsilon"):
        with_new_keys({"max_epsilon": 2.0, "budget": {"max_epsilon": 3.0}})
    assert with_new_keys({"share_data": False}) == {"allow": {}}


def test_a_file_that_others_can_write_stops_the_client(clients: Clients, tmp_path: Path) -> None:
    client_with(clients, tmp_path, {})
    for mode in (0o620, 0o602):
        (tmp_path / CLIENT_FILE).chmod(mode)
        with pytest.raises(UserError, match="chmod 600"):
            ClientDirectory.open(tmp_path)


def test_the_hash_is_that_of_the_values_in_force() -> None:
    plain = Policy()
    assert plain.fingerprint == Policy.model_validate({"require": {"min_cohort": 3}}).fingerprint
    assert plain.fingerprint != Policy.model_validate({"require": {"min_cohort": 4}}).fingerprint
    assert num_bytes("1.5GiB") == 3 * 2**29


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), max_size=80), st.integers(0, 4000))
def test_a_damaged_file_is_a_sentence_and_no_traceback(clients: Clients, tmp_path: Path, text: str, place: int) -> None:
    original = (clients.directories[0].path / CLIENT_FILE).read_text()
    (tmp_path / CLIENT_FILE).write_text(original[:place] + text + original[place:])
    os.chmod(tmp_path / CLIENT_FILE, 0o600)
    with contextlib.suppress(UserError):
        ClientDirectory.open(tmp_path)


def test_the_file_that_init_writes_has_every_key(clients: Clients) -> None:
    text = (clients.directories[0].path / CLIENT_FILE).read_text()
    for table, section in Policy().tables.items():
        for key in type(section).model_fields:
            assert f"\n{key} =" in text or f"\n# {key} =" in text, (table, key)
    assert set(read_toml(clients.directories[0].path / CLIENT_FILE)) >= set(Policy().tables)


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        ("pending: waits for its owner: unisono deploy approve client-0 3f9a", 10.0),
        ("refused: not-now: this client works from 19:00-06:00, in 35 minutes again.", 35 * 60.0),
        ("not-now: in 0 minutes again", 60.0),
        ("not-now: in 9999 minutes again", 24 * 3600.0),
        ("not-now", 60.0),
        ("refused: policy:budget.max_rounds", None),
        ("the client failed; its own log says why", None),
    ],
)
def test_the_server_asks_again_when_a_client_says_so(reason: str, seconds: float | None) -> None:
    assert retry_delay(reason) == seconds


def test_the_page_for_owners_has_every_key_with_its_default_and_meaning() -> None:
    page = (Path(__file__).parents[2] / "docs" / "site-owners.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| `[a-z]+\.[a-z_]+` \|", line)]
    expected = []
    for table, section in Policy().tables.items():
        for key, field in type(section).model_fields.items():
            value = section.model_dump(mode="json")[key]
            default = "unset" if value is None else f"`{json.dumps(value)}`"
            expected.append(f"| `{table}.{key}` | {default} | {field.description} |")
    assert rows == expected


@pytest.mark.parametrize(("weighting", "parts"), [("uniform", 2), ("samples", 1)])
def test_noise_is_shared_only_where_all_weigh_the_same(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighting: str, parts: int
) -> None:
    """Of three clients all must stay, and one may be dishonest, so two add noise."""
    tree = merge({**SIMPLE, **SECURE}, {"aggregation": {"weighting": weighting}, "model": {"norm": "group", "width": 1.0}})
    asked = first_request(clients, tree, {"extra": MASKED})
    noise = {"clip_norm": 1e-6, "noise_multiplier": 1e5}
    start = asked.broadcast.flatten()
    for distributed in (False, True):
        path = tmp_path / str(distributed)
        path.mkdir()
        client = client_with(clients, path, {"budget": {**noise, "distributed_noise": distributed}})
        begin = Spy(client._sums.begin)
        monkeypatch.setattr(client._sums, "begin", begin)
        client.answer(asked)
        sent = begin.update.payload.flatten()
        moved = torch.cat([(sent[name] - start[name]).flatten() for name in sent if sent[name].is_floating_point()])
        expected = 0.1 / (parts if distributed else 1) ** 0.5
        assert float(moved.std()) == pytest.approx(expected, rel=6 / (2 * len(moved)) ** 0.5), "six standard errors"
        assert Ledger(ClientDirectory.open(path)).intents[0]["noise"] == 1e5, "the sum has all of it"


class Spy:
    """Keeps the update that is about to be masked."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin

    def __call__(self, run: str, request: Request, update: Update, *rest: Any) -> Any:
        self.update = update
        return self._begin(run, request, update, *rest)


def test_the_server_goes_on_without_a_client_that_does_not_work_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(tmp_path)
    clients.restart(1, resources={"max_load": 1e-9}, log={"errors": "codes"})
    monkeypatch.setattr("unisono.deploy.resources.os.getloadavg", lambda: (1.0, 1.0, 1.0))
    run = Run(clients, merge(SIMPLE, {"federation": {"quorum": 0.5, "rounds": 1}}))
    heard: list[tuple[int, float | None]] = []
    monkeypatch.setattr(
        run.engine._membership, "heard", lambda client, reason: heard.append((client, retry_delay(reason))), raising=False
    )
    assert run.go().round == 1
    assert sorted(heard) == [(0, None), (1, 300.0), (2, None)], "the client says five minutes"
    assert [failure.client_id for failure in run.failures] == [1]
