"""A server that attacks a client: each attack that was carried out once is refused, or learns nothing but noise."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.core.test_registry import install
from tests.deploy.test_client import (
    EXCHANGE,
    GROUP_NORM,
    NUM_CLIENTS,
    RUN_INFO,
    SHARING,
    SIMPLE,
    Clients,
    Run,
    question,
    request,
)
from unisono.core.config import merge
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.deploy.client import DeployedClient
from unisono.engines.flower.messages import Request, payload_of
from unisono.federation.loop import RoundLoop, ServerState

KMEANS = {**SIMPLE, "method": {"name": "federated-kmeans", "num_clusters": 4, "min_cluster_size": 1}}
SECURE = {"privacy": {"secure_aggregation": True}}
FEDMCC = {
    **SIMPLE,
    "method": {"name": "fedmcc", "num_clusters": 3, "represent_rounds": 1},
    "training": {"batch_size": 16, "local_epochs": 1},
}


def kmeans_request(run: Run, centroids: torch.Tensor, phase: str = "assign", round: int = 0) -> Request:
    server = run.federation.initial_state().server.with_groups(centroids={"centroids": centroids})
    return Request(0, round, phase, 0, run.run_spec, run.method.broadcast(server, Context(0, round, phase)))


@attack("A1", "Asks k-means for as many clusters as there are samples", "no mean of fewer than 10 samples leaves")
def test_statistics_of_one_sample_do_not_leave(tmp_path: Path) -> None:
    """As many clusters as samples, none too small: every centroid would be a sample."""
    clients = Clients(tmp_path)
    run = Run(clients, merge(KMEANS, {"method": {"num_clusters": 40}, **SECURE}))
    sent = clients.handlers[0].answer(kmeans_request(run, torch.zeros(1, 64), phase="seed"))
    seeds = sent.update.payload.groups.get("seeds", {"counts": torch.empty(0)})
    assert bool((seeds["counts"] >= 10).all())
    assert len(seeds["counts"]) <= 4


@attack("A2", "Asks twice for sums over clusters that differ by one sample", "refused unless the sums are masked")
def test_sums_of_clusters_leave_masked_or_not_at_all(tmp_path: Path) -> None:
    """A floor alone does not help: two sums whose clusters differ by one sample give that sample."""
    clients = Clients(tmp_path)
    with pytest.raises(ClientError, match="group 'totals' holds sums over samples"):
        clients.handlers[0].answer(kmeans_request(Run(clients, KMEANS), torch.zeros(2, 64)))
    clients = Clients(tmp_path / "masked")
    run = Run(clients, merge(KMEANS, SECURE), secure=True)
    run.go(until=1)
    assert run.failures == []
    assert not any("totals" in payload_of(content, "update").groups for content in clients.seen if "update" in content)
    assert sum("masked" in content for content in clients.seen) == NUM_CLIENTS


def test_kmeans_runs_where_owners_tell_no_loss(tmp_path: Path) -> None:
    clients = Clients(tmp_path, allow={"metrics": []})
    state = Run(clients, merge(KMEANS, SECURE), secure=True).go()
    assert "variance" not in state.server.scalars
    assert float(state.server.scalars["moved"]) >= 0


@attack("A3", "Reads the totals of k-means in a secure sum", "they are masked")
def test_masked_kmeans_has_the_centroids_of_plain_kmeans(tmp_path: Path) -> None:
    from tests.deploy.test_client import as_run_info
    from unisono.deploy.negotiation import load_client_data
    from unisono.engines.embedded import EmbeddedEngine, EngineConfig
    from unisono.engines.shards import WorkerSetup
    from unisono.federation import client_turn
    from unisono.federation.client_store import ClientStateStore
    from unisono.federation.postprocess import Postprocessor

    clients = Clients(tmp_path)
    tree = merge(KMEANS, {"method": {"min_cluster_size": 10}})
    run = Run(clients, merge(tree, SECURE), secure=True)
    found = run.go()
    parts = [load_client_data(directory, run.config.data).samples for directory in clients.directories]
    indices = torch.arange(sum(map(len, parts))).split([len(part) for part in parts])
    method = run.config.method_class(run.config.method, as_run_info(RUN_INFO, run.config))
    setup = WorkerSetup(
        method,
        client_turn.FederatedDataset(torch.cat(parts), indices, None),
        Postprocessor(run.config.privacy, run.config.compression, method.shares),
        run.config.aggregation,
    )
    with EmbeddedEngine(setup, EngineConfig(workers=0)) as engine:
        federation = RoundLoop(method, engine, ClientStateStore(), run.config.loop, 0)
        expected = federation.run(federation.initial_state())
    torch.testing.assert_close(
        found.server.groups["centroids"]["centroids"],
        expected.server.groups["centroids"]["centroids"],
        atol=1e-4,
        rtol=1e-4,
    )


@attack(
    "A4",
    "Runs a phase whose broadcast has groups that no update carries, under masks",
    "what leaves is masked, and the head learns",
)
def test_the_second_stage_of_fedmcc_learns_under_masks(tmp_path: Path) -> None:
    """The broadcast has the encoder, which no update carries: all clients once sent zeros."""
    clients = Clients(tmp_path)
    run = Run(clients, merge(FEDMCC, {**SECURE, "federation": {"rounds": 2}}), secure=True)
    half = run.go(until=1)
    whole = run.go(ServerState(half.round, half.server))
    assert run.failures == []
    before, after = (state.server.groups["cluster_head"] for state in (half, whole))
    assert any(not torch.equal(before[name], after[name]) for name in before)


@attack("A16", "Changes recipe or seed from request to request within a run", "refused")
def test_one_run_has_one_recipe_and_one_seed(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    asked = request(Run(clients, SIMPLE))
    clients.handlers[0].answer(asked)
    with pytest.raises(ClientError, match="another recipe or seed"):
        clients.handlers[0].answer(replace(asked, seed=1, round=1))
    with pytest.raises(ClientError, match="another recipe or seed"):
        clients.handlers[0].answer(replace(request(Run(clients, merge(SIMPLE, {"training": {"batch_size": 8}}))), round=1))
    clients.restart(0)
    with pytest.raises(ClientError, match="another recipe or seed"):
        clients.handlers[0].answer(replace(asked, seed=1, round=1))


@attack("A10", "Asks for the same round again and again", "refused")
def test_the_same_round_is_not_answered_again_and_again(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    asked = request(Run(clients, SIMPLE))
    for _ in range(3):
        clients.handlers[0].answer(asked)
    with pytest.raises(ClientError, match="asked for 3 times already"):
        clients.handlers[0].answer(asked)


@attack("A14", "Asks for scores in the name of another client, again and again, or to 16 digits", "refused, or rounded")
def test_scores_pass_the_same_gate_and_are_rounded(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    asked = request(Run(clients, merge(SIMPLE, {"evaluation": {"max_client_samples": 1}})))
    with pytest.raises(ClientError, match="this is client 0, and the request is for client 1"):
        clients.handlers[0].evaluate(replace(asked, client_id=1))
    scores = clients.handlers[0].evaluate(asked)["scores"]
    assert scores
    assert all(value == round(value, 3) for value in scores.values())
    whole = Clients(tmp_path / "again").handlers[0].evaluate(request(Run(Clients(tmp_path / "other"), SIMPLE)))["scores"]
    assert scores == whole, "a recipe cannot ask for the score of a single sample"
    masked = request(Run(clients, merge(SIMPLE, SECURE)), client_id=1)
    with pytest.raises(ClientError, match="scores are not masked"):
        clients.handlers[1].evaluate(masked)


@attack("A18", "Claims noise that the client has not added, or takes a new run for a new budget", "refused above max_epsilon")
@pytest.mark.parametrize(
    ("options", "word"), [({}, "set clip_norm and noise_multiplier"), ({"clip_norm": 1.0, "noise_multiplier": 0.5}, "budget")]
)
def test_max_epsilon_believes_no_server_and_starts_anew_for_no_run(tmp_path: Path, options: Any, word: str) -> None:
    pytest.importorskip("dp_accounting")
    clients = Clients(tmp_path, budget={"max_epsilon": 8.0, **options})
    claims = {"privacy": {"clip_norm": 1e9, "noise_multiplier": 1e6}, "aggregation": {"weighting": "uniform"}, **GROUP_NORM}
    run = Run(clients, merge(SIMPLE, claims))
    reasons = []
    for number in range(3):
        spec = json.dumps({**json.loads(run.run_spec), "run": f"run-{number}"})
        try:
            clients.handlers[0].answer(replace(request(run), run_spec=spec))
        except ClientError as error:
            reasons.append(str(error))
    assert len(reasons) >= 2
    assert all(word in reason for reason in reasons)


@attack("A23", "Names a method of an installed plug-in", "refused unless the owner lists it")
def test_code_of_other_packages_runs_only_if_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "[unisono.methods]\nspy = spying_package:Spy\n", spying_package="raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    from unisono.core.method import methods

    monkeypatch.setattr(methods, "_loaded", False)
    clients = Clients(tmp_path / "clients")
    asked = {**question(SIMPLE), "config": {"method": {"name": "spy"}}}
    with pytest.raises(UserError, match=r"'spy', which client\.toml does not list"):
        clients.handlers[0].describe(asked)
    monkeypatch.undo()
    methods._loaded = False


@attack("A13", "Reads pixels off the failures of a crafted model", "failures carry a code only, and each is counted")
def test_failures_tell_nothing_and_are_counted(tmp_path: Path) -> None:
    """A server crafts a model that is not finite if and only if a pixel is bright, and reads the answer off the failure."""
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, {"federation": {"rounds": 5}}))
    asked = request(run)
    not_finite = {name: {key: t * torch.nan if t.is_floating_point() else t for key, t in group.items()}
                  for name, group in asked.broadcast.groups.items()}  # fmt: skip
    with pytest.raises(ClientError, match=r"policy:bounds\.max_weight_abs"):
        clients.handlers[0].answer(replace(asked, broadcast=Payload(not_finite)))
    broken = {name: dict(list(group.items())[1:]) for name, group in asked.broadcast.groups.items()}
    for number in range(3):
        with pytest.raises(ClientError, match="its own log says why") as caught:
            clients.handlers[0].answer(replace(asked, broadcast=Payload(broken), round=number))
        assert caught.value.details == ""
    with pytest.raises(ClientError, match="failed 3 times here"):
        clients.handlers[0].answer(replace(asked, round=4))
    lines = [json.loads(line) for line in (clients.directories[0].path / "ledger.jsonl").read_text().splitlines()]
    assert [line["result"] for line in lines] == ["intent", "failed"] * 3


@attack("A17", "Provokes errors to read paths of the client's machine", "errors name no paths")
def test_errors_name_no_paths(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    clients.restart(1, data=str(tmp_path / "nowhere"))
    with pytest.raises(UserError) as caught:
        clients.handlers[1].describe(question(SIMPLE))
    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(ClientError) as refused:
        clients.handlers[1].answer(request(Run(clients, SIMPLE), client_id=1))
    assert str(tmp_path) not in str(refused.value)


def test_what_a_client_keeps_is_its_own(tmp_path: Path) -> None:
    """Neighbours' samples lie in the states of an exchange."""
    clients = Clients(tmp_path, **SHARING)
    Run(clients, EXCHANGE).go(until=1)
    for directory in clients.directories:
        for path in (directory.path, directory.states):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


@attack("A10", "Computes the client's batches from the run's seed", "the client draws from a secret of its own")
def test_a_server_cannot_foresee_a_clients_draws(tmp_path: Path) -> None:
    """Its seed would say which samples are in a batch or in a cluster."""
    same = [
        Clients(tmp_path / name, require={"own_randomness": own})
        for name, own in (("a", True), ("b", True), ("c", False), ("d", False))
    ]
    sent = [c.handlers[0].answer(request(Run(c, SIMPLE))).update.payload.flatten() for c in same]
    weights = [torch.cat([tensor.flatten().float() for tensor in tensors.values()]) for tensors in sent]
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    again = DeployedClient(same[0].directories[0]).answer(request(Run(same[0], SIMPLE))).update.payload.flatten()
    assert all(torch.equal(again[name], tensor) for name, tensor in sent[0].items()), "the same round again, the same answer"


@attack("A15", "Asks Orchestra for clusters of two samples", "no centroid of fewer than 10 samples leaves")
def test_orchestra_shows_no_cluster_of_few(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    tree = {**SIMPLE, "method": {"name": "orchestra", "projection_dim": 8, "min_cluster_size": 2, "memory_size": 4,
                                 "num_local_clusters": 2, "num_global_clusters": 2}}  # fmt: skip
    run = Run(clients, tree)
    server = run.federation.initial_state().server
    asked = Request(0, 0, "cluster", 0, run.run_spec, run.method.broadcast(server, Context(0, 0, "cluster")))
    sent = clients.handlers[0].answer(asked).update
    assert sent.metrics["smallest_cluster"] >= 10
    assert np.isfinite(sent.payload.groups["local_centroids"]["centroids"].numpy()).all()
