"""Real processes: SuperLink with TLS, four SuperNodes with samples of their own, killed and attacked. One start serves all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

import unisono
from tests.deploy.hostile import ATTACKS, KILL
from tests.deploy.running import SMALL, RunningFederation, read_lines, sets, write_labelled
from tests.report.test_run_report import page_of
from unisono.config import resolve
from unisono.core.method import RunInfo
from unisono.data.datasets import DataConfig
from unisono.deploy.certificates import make_node_key
from unisono.deploy.condition import connect, node_table
from unisono.deploy.directories import CLIENT_FILE, ClientDirectory
from unisono.deploy.negotiation import load_client_data
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.engines.flower.nodes import key_bytes
from unisono.engines.shards import WorkerSetup
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import FederatedDataset
from unisono.federation.loop import RoundLoop
from unisono.federation.postprocess import Postprocessor
from unisono.runs.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower"), pytest.mark.timeout(600)]
NUM_CLIENTS = 4
FEDEMA = ("method.hidden_dim=32", "method.projection_dim=16", "data.channels=1", *SMALL)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    running = RunningFederation(
        tmp_path_factory.mktemp("deploy"), Path(__file__).with_name("hostile.py"), num_clients=NUM_CLIENTS
    )
    try:
        running.start()
        yield running
    finally:
        running.close()


def embedded_result(federation: RunningFederation, run: Path, num_clients: int = NUM_CLIENTS) -> dict[str, torch.Tensor]:
    """The server's networks after the same run of the first clients on the embedded engine, their samples in one place."""
    directory = RunDirectory.open(run)
    config = resolve(directory.config_tree)
    parts = [
        load_client_data(ClientDirectory.open(path), DataConfig(channels=1)).samples
        for path in federation.clients[:num_clients]
    ]
    indices = torch.arange(sum(map(len, parts))).split([len(part) for part in parts])
    info = RunInfo(**directory.load_run_info(), sections=config.method_sections)
    method = config.method_class(config.method, info)
    postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
    setup = WorkerSetup(method, FederatedDataset(torch.cat(parts), indices, None), postprocessor, config.aggregation)
    with EmbeddedEngine(setup, EngineConfig(workers=0, device="cpu")) as engine:
        whole = RoundLoop(method, engine, ClientStateStore(), config.loop, config.run.seed)
        return whole.run(whole.initial_state()).server.flatten()


def test_fedema_survives_a_server_that_is_killed_and_has_the_bits_of_the_embedded_engine(
    federation: RunningFederation,
) -> None:
    run = federation.server.runs / "fedema"
    command = ["deploy", "run", "fedema", "--server", str(federation.server.path), "--name", "fedema", "--detach"]
    started = federation.unisono(*command, *sets((*FEDEMA, "federation.rounds=4")))
    assert started.returncode == 0, started.stderr
    federation.wait_for(lambda: len(RunDirectory(run).checkpoints().rounds()) >= 2)
    superlink = federation.process(federation.server.path, "superlink")
    superlink.send_signal(signal.SIGKILL)
    superlink.wait(20)
    federation.wait_for(lambda: json.loads((run / "status.json").read_text())["status"] == "finished")
    assert "run fedema goes on" in (federation.server.path / "logs" / "runs.log").read_text()
    entries = list(read_lines(run / "metrics.jsonl"))
    assert [entry["round"] for entry in entries] == [0, 1, 2, 3]
    assert all(entry["answered"] == NUM_CLIENTS for entry in entries)
    assert {"probe.align", "probe.uniformity"} <= entries[-1].keys()
    expected = embedded_result(federation, run)
    found = unisono.load(run).server.flatten()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    for client in federation.clients:
        assert len(list(client.glob("states/*/*.payload"))) > 1


def test_orchestra_is_fetched_and_clusters(federation: RunningFederation) -> None:
    settings = (
        "federation.rounds=2", "method.projection_dim=16", "method.num_local_clusters=4", "method.num_global_clusters=3",
        "data.channels=1", *SMALL,
    )  # fmt: skip
    federation.configure_server(labelled_data=str(write_labelled(federation.root / "labelled.npz")))
    try:
        run = federation.run("orchestra", "orchestra", *settings)
    finally:
        federation.configure_server(labelled_data=None)
    found = list(read_lines(run / "metrics.jsonl"))[-1]
    assert {
        "probe.align",
        "probe.uniformity",
        "probe.cluster-balance",
        "probe.linear",
        "probe.knn",
        "probe.nmi",
    } <= found.keys()
    fetched = federation.unisono("deploy", "fetch", "orchestra", "--server", str(federation.server.path))
    assert fetched.stdout.strip() == "runs/orchestra"
    page = page_of(federation.root / "runs" / "orchestra")
    assert page["status"] == "finished"
    assert {"curves", "clients", "privacy", "timings"} <= {part["id"] for part in page["sections"]}
    assert not {"data", "map"} & {part["id"] for part in page["sections"]}
    samples = np.load(federation.root / "data-1" / "samples.npz")["x"][:, None]
    model = unisono.load(federation.root / "runs" / "orchestra")
    assert model.embed(samples).shape == (len(samples), model.encoder.feature_dim)
    index, _ = model.cluster(samples)
    assert index.shape == (len(samples),)


def test_cfcl_moves_points_between_neighbours(federation: RunningFederation) -> None:
    settings = (
        "federation.rounds=2", "consent.share_data=true", "graph.topology=complete", "method.points_per_pull=5",
        "method.num_reserve=4", "method.num_candidates=10", "method.num_clusters=2", "method.aggregation_steps=4",
        "training.local_steps=2", "training.batch_size=8", "evaluation.probe_every=0", "data.channels=1", "data.image_size=16",
        "engine.client_timeout=60", "report.enabled=false",
    )  # fmt: skip
    run = federation.run("cfcl", "cfcl", *settings)
    assert not (run / "report.html").exists()
    entries = list(read_lines(run / "metrics.jsonl"))
    assert entries[-1]["answered"] == entries[-1]["asked"]
    links = next(read_lines(run / "exchange.jsonl"))["links"]
    assert len(links) == NUM_CLIENTS * (NUM_CLIENTS - 1)
    assert all(link["pulled"] == 5 for link in links)
    assert all(link["pushed"] == 4 for link in links)
    assert not (run / "failures.jsonl").exists()


def test_a_client_that_is_killed_after_sharing_leaves_the_right_secure_sum_behind(federation: RunningFederation) -> None:
    (federation.root / "attack").write_text(KILL)
    settings = ("federation.rounds=1", "privacy.secure_aggregation=true", "engine.client_timeout=60")
    run = federation.run("fedema", "secure", *FEDEMA, *settings)
    assert not (federation.root / "attack").exists(), "the client was killed"
    assert [entry["client"] for entry in read_lines(run / "failures.jsonl")] == [NUM_CLIENTS - 1]
    assert [entry["answered"] for entry in read_lines(run / "metrics.jsonl")] == [NUM_CLIENTS - 1]
    expected = embedded_result(federation, run, NUM_CLIENTS - 1)
    for name, tensor in unisono.load(run).server.flatten().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4)


def test_a_supervised_run_waits_for_an_owner_and_learns_from_labels_that_stay(federation: RunningFederation) -> None:
    client = federation.clients[1]
    before = (client / CLIENT_FILE).read_text()
    change_policy(federation, client, before.replace('approve = "always"', 'approve = "recipe-hash"'))
    try:
        run = approved_run(federation, client)
        owners = json.loads((run / "privacy.json").read_text())["owners"]
        for number, path in enumerate(federation.clients):
            assert owners[str(number)]["policy"] == ClientDirectory.open(path).config.fingerprint
            checked = federation.unisono("deploy", "audit", str(path), "--against", str(run / "privacy.json"))
            assert checked.returncode == 0, checked.stderr
            assert f"masked among {NUM_CLIENTS}" in checked.stdout
    finally:
        change_policy(federation, client, before)
    assert [entry["answered"] for entry in read_lines(run / "metrics.jsonl")] == [NUM_CLIENTS] * 2
    assert unisono.load(run).server.groups["classifier"]["weight"].shape[0] == 2


def change_policy(federation: RunningFederation, client: Path, text: str) -> None:
    """Gives a client another ``client.toml``, which its worker reads when it starts."""
    (client / CLIENT_FILE).write_text(text)
    federation.process(client, "client_worker").kill()


def approved_run(federation: RunningFederation, client: Path) -> Path:
    """A supervised run that this client's owner approves while it waits."""
    settings = (
        "federation.rounds=2", "data.channels=1", "privacy.secure_aggregation=true", 'labels.classes=["b", "a"]', *SMALL,
    )  # fmt: skip
    command = ["deploy", "run", "supervised", "--server", str(federation.server.path), "--name", "labels", "--detach"]
    started = federation.unisono(*command, *sets(settings))
    assert started.returncode == 0, started.stderr
    federation.wait_for(lambda: list((client / "pending").glob("*.json")) != [])
    recipe = federation.unisono("deploy", "pending", str(client)).stdout.split()[0]
    approved = federation.unisono("deploy", "approve", str(client), recipe)
    assert approved.stdout == f"approved {recipe}\n", approved.stderr
    run = federation.server.runs / "labels"
    federation.wait_for(lambda: (run / "status.json").exists() and "finished" in (run / "status.json").read_text())
    return run


def test_poisoned_updates_are_left_out_and_recorded(federation: RunningFederation) -> None:
    attack = federation.root / "attack"
    attack.write_text("")
    try:
        settings = (*FEDEMA, f"federation.rounds={len(ATTACKS)}", "engine.max_message_mib=8.0")
        run = federation.run("fedema", "attacked", *settings)
    finally:
        attack.unlink()
    failures = {entry["round"]: entry for entry in read_lines(run / "failures.jsonl")}
    assert sorted(failures) == list(range(len(ATTACKS)))
    assert all(entry["client"] == NUM_CLIENTS - 1 for entry in failures.values())
    words = ("not finite", "bytes are more than", "its own log says why")
    for number, word in enumerate(words):
        assert word in failures[number]["reason"]
    entries = list(read_lines(run / "metrics.jsonl"))
    assert [entry["answered"] for entry in entries] == [NUM_CLIENTS - 1] * len(ATTACKS)
    assert all(tensor.isfinite().all() for tensor in unisono.load(run).server.flatten().values())


def test_an_unknown_node_is_refused(federation: RunningFederation) -> None:
    key = federation.root / "stranger.key"
    private, public = make_node_key()
    key.write_bytes(private)
    command = [
        sys.executable, "-m", "unisono.engines.flower.supernode", "0.1", "--superlink", federation.server.address,
        "--root-certificates", str(federation.server.certificate), "--auth-supernode-private-key", str(key),
        "--isolation", "process", "--host", "127.0.0.1", "--port", "0", "--max-retries", "1",
    ]  # fmt: skip
    command[command.index("0")] = str(federation.server.config.port + 1000)
    process = federation.spawn(command, "stranger")
    process.wait(60)
    assert [word for _, word in node_table(federation.server)].count("online") == NUM_CLIENTS
    with connect(federation.server) as control:
        assert key_bytes(public) not in control.nodes()


def test_a_client_that_is_killed_in_a_round_is_left_out_and_comes_back(federation: RunningFederation) -> None:
    run = federation.server.runs / "killed"
    command = ["deploy", "run", "fedema", "--server", str(federation.server.path), "--name", "killed", "--detach"]
    settings = (*FEDEMA, "federation.rounds=4", "engine.client_timeout=600", "training.local_epochs=3")
    assert federation.unisono(*command, *sets(settings)).returncode == 0
    federation.wait_for(lambda: len(list(read_lines(run / "metrics.jsonl"))) >= 1)
    node = federation.process(federation.clients[1], "supernode")
    node.send_signal(signal.SIGKILL)
    federation.wait_for(lambda: json.loads((run / "status.json").read_text())["status"] == "finished")
    failures = list(read_lines(run / "failures.jsonl"))
    assert {entry["client"] for entry in failures} == {1}
    assert [entry["answered"] for entry in read_lines(run / "metrics.jsonl")].count(NUM_CLIENTS - 1) >= 1
    federation.wait_for(lambda: federation.process(federation.clients[1], "supernode").pid != node.pid)


def test_a_removed_client_is_turned_away_and_the_others_go_on(federation: RunningFederation) -> None:
    done = federation.unisono("deploy", "remove", "2", "--server", str(federation.server.path))
    assert done.returncode == 0, done.stderr
    assert "client 2 is turned away from now on" in done.stdout
    assert [client for client, _ in node_table(federation.server)] == [0, 1, 3]
    federation.wait_for(lambda: [word for _, word in node_table(federation.server)] == ["online"] * 3)
    with connect(federation.server) as control:
        nodes = control.nodes()
    assert nodes.get(key_bytes(ClientDirectory.open(federation.clients[2]).keys[2])) != "online"
    command = ["deploy", "run", "fedema", "--server", str(federation.server.path), "--name", "others"]
    done = federation.unisono(*command, *sets((*FEDEMA, "federation.rounds=1")))
    assert done.returncode == 0, (done.stderr, federation.logs())
    assert [entry["answered"] for entry in read_lines(federation.server.runs / "others" / "metrics.jsonl")] == [3]


def test_everything_ends_when_it_is_told_to(federation: RunningFederation) -> None:
    for path in (*federation.clients, federation.server.path):
        done = federation.unisono("deploy", "stop", str(path))
        assert done.returncode == 0, done.stderr
        assert not (path / "supervisor.pid").exists()
    deadline = time.monotonic() + 300
    listing = ["ps", "-eo", "args"]
    while str(federation.path) in subprocess.run(listing, capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.5)
