from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recorder import Recorder
from unisono.clustering.kmeans import kmeans
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.payload import Aggregate, Payload, Reveals
from unisono.methods.federated_kmeans import ASSIGN, SEED, FederatedKMeans
from unisono.runs.files import payload_to_safetensors
from unisono.testing.tiny import TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(over: dict[str, Any] | None = None, **options: Any) -> FederatedKMeans:
    method = tiny_method(tiny_config("federated-kmeans", {"method": options, **(over or {})}))
    assert isinstance(method, FederatedKMeans)
    return method


def points_of(tiny: TinyFederation) -> torch.Tensor:
    return tiny.clients.samples.flatten(1) / 255


def test_one_client_is_plain_kmeans() -> None:
    clients = tiny_clients(labels=False, sizes=(40,))
    over = {"cohort": {"size": 1}, "method": {"min_cluster_size": 1}, "federation": {"rounds": 20}}
    tiny = TinyFederation("federated-kmeans", clients=clients, over=over)
    found = tiny.run().server.groups["centroids"]["centroids"]
    expected = kmeans(points_of(tiny), 3, Context(0, 0, SEED, 0).rng("seeds"))
    assert_same_clusters(found, expected.centroids)


def assert_same_clusters(first: torch.Tensor, second: torch.Tensor) -> None:
    order = torch.cdist(first, second).argmin(dim=1)
    assert sorted(order.tolist()) == list(range(len(second)))
    torch.testing.assert_close(first, second[order], rtol=1e-4, atol=1e-5)


def test_many_clients_take_the_steps_of_one_place() -> None:
    """Lloyd's step on all samples, from the centroids that the server held."""
    over = {"cohort": {"size": 6}, "method": {"min_cluster_size": 1}}
    tiny = TinyFederation("federated-kmeans", over=over)
    state = tiny.run(until=1)
    before = state.server.groups["centroids"]["centroids"]
    after = tiny.federation.run_round(state).server.groups["centroids"]["centroids"]
    points = points_of(tiny)
    nearest = torch.cdist(points, before).argmin(dim=1)
    expected = torch.stack([points[nearest == k].mean(dim=0) if (nearest == k).any() else before[k] for k in range(3)])
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


def test_only_centroids_and_counts_leave_a_client() -> None:
    method = make()
    assert {share.reveals for share in method.shares.values()} == {Reveals.STATISTICS}
    server = TinyFederation("federated-kmeans").run(until=1).server
    for phase, group, names in ((SEED, "seeds", {"centroids", "counts"}), (ASSIGN, "totals", {"sums", "counts"})):
        ctx = Context(0, 1, phase, 3)
        received = method.broadcast(server, ctx)
        update, local = method.client_step(
            method.build_networks(), received, Payload(), tiny_clients(False).client_data(3, CPU), ctx
        )
        assert {group: names} == {name: set(tensors) for name, tensors in update.payload.groups.items()}
        assert not local.groups


def test_no_cluster_of_fewer_samples_than_the_config_says_is_shown() -> None:
    method = make(min_cluster_size=4)
    server = TinyFederation("federated-kmeans").run(until=1).server
    for client_id, num_samples in ((3, 12), (4, 4), (2, 1)):
        data = tiny_clients(labels=False).client_data(client_id, CPU)
        ctx = Context(0, 1, ASSIGN, client_id)
        update, _ = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
        counts = (update.payload.groups["totals"]["counts"] * num_samples).round()
        assert bool(((counts == 0) | (counts >= 4)).all())
        assert bool((counts > 0).any()) == (num_samples >= 4)
        assert bool((update.payload.groups["totals"]["sums"][counts == 0] == 0).all())
        ctx = Context(0, 0, SEED, client_id)
        update, _ = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
        shown = update.payload.groups.get("seeds", {"counts": torch.empty(0)})["counts"]
        assert bool((shown >= 4).all())
    assert "seeds" not in update.payload.groups


def test_the_first_centroids_are_means_over_samples_not_over_clients() -> None:
    method = make()
    seeds = [
        {"centroids": torch.tensor([[0.0, 0], [10, 10], [20, 0]]), "counts": torch.tensor([3.0, 1, 1])},
        {"centroids": torch.tensor([[1.0, 0], [20, 0]]), "counts": torch.tensor([1.0, 5])},
    ]
    merged = method._merge(seeds, Context(0))
    assert_same_clusters(merged, torch.tensor([[0.25, 0], [10, 10], [20, 0]]))


def test_fewer_clusters_than_asked_for_are_noted() -> None:
    recorder = Recorder()
    over = {"method": {"num_clusters": 30}, "cohort": {"size": 6}}
    tiny = TinyFederation("federated-kmeans", over=over)
    state = tiny.run(callbacks=[recorder])
    found = len(state.server.groups["centroids"]["centroids"])
    assert found < 30
    assert [record.notes for record in recorder.records[1:]] == [[], []]
    assert f"only {found} clusters of the 30 asked for" in recorder.records[0].notes[0]


def test_a_round_in_which_nobody_tells_a_loss_keeps_the_variance() -> None:
    method = make()
    held = Payload({"encoder": {}, "centroids": {"centroids": torch.zeros(3, 4)}}, {"variance": 2.0})
    totals = {"sums": torch.ones(3, 4), "counts": torch.ones(3)}
    after = method.server_step(held, Aggregate({"totals": totals}), Context(0, 1, ASSIGN))
    assert (after.scalars["variance"], after.scalars["moved"]) == (2.0, 2.0)


def test_assigner_picks_the_nearest_centroid() -> None:
    tiny = TinyFederation("federated-kmeans")
    server = tiny.run().server
    cluster_model = tiny.method.cluster_model(server)
    assert cluster_model is not None
    x = tiny.clients.samples.float() / 255
    distances = torch.cdist(x.flatten(1), server.groups["centroids"]["centroids"])
    assert torch.equal(cluster_model(x).argmax(dim=1), distances.argmin(dim=1))


def test_features_of_a_finished_encoder(tmp_path: Path) -> None:
    fedu = tiny_method(tiny_config("fedu"))
    server = fedu.init_server(Context(5))
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(payload_to_safetensors(Payload({"encoder": server.groups["encoder"]})))
    over = {"method": {"features": "encoder"}, "model": {"pretrained": str(path)}}
    tiny = TinyFederation("federated-kmeans", over=over)
    state = tiny.run()
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(tiny.method.encoder(state.server)(x), fedu.encoder(server)(x))
    assert state.server.groups["centroids"]["centroids"].shape == (3, fedu.encoder(server).feature_dim)
    with pytest.raises(UserError, match=r"model\.pretrained"):
        make(features="encoder")
