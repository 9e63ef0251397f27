from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recorder import Recorder
from unisono.clustering.federated_kmeans import merge_clusters
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.payload import Aggregate, Payload, Reduce, Reveals
from unisono.federation.client_turn import FederatedDataset
from unisono.losses.clustering import assignment_entropy, cluster_contrast, instance_contrast
from unisono.methods.fedmcc import CLUSTER, LEARNT, REPRESENT, SEED, FedMCC
from unisono.methods.local_training import Batch
from unisono.models.nets import get_state
from unisono.runs.files import payload_to_safetensors
from unisono.testing.tiny import TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(rounds: int = 3, over: dict[str, Any] | None = None, **options: Any) -> FedMCC:
    method = tiny_method(tiny_config("fedmcc", {"method": options, "federation": {"rounds": rounds}, **(over or {})}))
    assert isinstance(method, FedMCC)
    return method


def stages(rounds: int, **options: Any) -> list[str]:
    recorder = Recorder()
    over = {"method": options, "federation": {"rounds": rounds}}
    TinyFederation("fedmcc", over=over).run(callbacks=[recorder])
    return [phase for record in recorder.records for phase in {phase for phase, _ in record.clients}]


def test_stages_change_after_the_rounds_that_the_config_says() -> None:
    assert stages(5, represent_rounds=2) == [REPRESENT, REPRESENT, CLUSTER, CLUSTER, CLUSTER]
    assert stages(3, represent_rounds=9) == [REPRESENT] * 3


@pytest.mark.parametrize(("phase", "rows"), [(REPRESENT, range(14)), (CLUSTER, range(8))])
def test_stage_2_leaves_the_unlabelled_part_out(phase: str, rows: range, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make()
    seen: list[int] = []
    for name in ("loss", "loss_of_clusters"):
        own = getattr(method, name)

        def watched(nets: Any, batch: Batch, generator: torch.Generator, own: Any = own) -> Any:
            seen.extend((batch.x.flatten(1)[:, 0] * 255).round().int().tolist())
            return own(nets, batch, generator)

        monkeypatch.setattr(method, name, watched)
    samples = torch.randint(0, 256, (14, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    samples[:, 0, 0, 0] = torch.arange(14)  # the first pixel tells the row
    data = FederatedDataset(samples, [torch.arange(14)], None, 8).client_data(0, CPU)
    server, ctx = method.init_server(Context(0)), Context(0, 0, phase, 0)
    method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
    assert sorted(seen) == list(rows)


def test_the_last_eleventh_of_a_run_clusters_where_the_config_says_nothing() -> None:
    """The paper's 100 and 10 rounds."""
    assert make(rounds=110).represent_rounds == 100
    assert make(rounds=3).represent_rounds == 2
    assert make(rounds=22).represent_rounds == 20


def test_stage_2_begins_when_the_loss_has_stopped_falling() -> None:
    method = make(rounds=50, handover="plateau", plateau_patience=2, plateau_tolerance=0.1, represent_rounds=40)
    server = method.init_server(Context(0))
    losses = [5.0, 4.0, 3.9, 3.8, 3.0, 2.9, 2.9]
    seen = []
    for round, loss in enumerate(losses):
        seen.append(method.phases(round, server)[0].name)
        server = method.server_step(server, Aggregate(metrics={"loss": loss}), Context(0, round, seen[-1]))
    # 3.9 and 3.8 lie within a tenth of 4.0, which makes two rounds without progress.
    assert seen == [REPRESENT] * 4 + [CLUSTER] * 3


def test_patience_begins_anew_with_every_progress_and_ends_at_the_latest_after_represent_rounds() -> None:
    method = make(rounds=50, handover="plateau", plateau_patience=2, plateau_tolerance=0.0, represent_rounds=6)
    server = method.init_server(Context(0))
    for round, loss in enumerate([5.0, 5.0, 4.0, 4.0, 3.0, 3.5]):
        assert method.phases(round, server)[0].name == REPRESENT
        server = method.server_step(server, Aggregate(metrics={"loss": loss}), Context(0, round, REPRESENT))
    assert method.phases(6, server)[0].name == CLUSTER


def test_a_round_without_a_loss_is_no_plateau() -> None:
    method = make(rounds=50, handover="plateau", plateau_patience=1)
    server = method.init_server(Context(0))
    for round in range(3):
        server = method.server_step(server, Aggregate(), Context(0, round, REPRESENT))
    assert server.scalars["stage"] == REPRESENT


def test_the_hand_over_is_noted() -> None:
    recorder = Recorder()
    TinyFederation("fedmcc").run(callbacks=[recorder])
    said = [record.round for record in recorder.records if any("stage 1 is done" in note for note in record.notes)]
    assert said == [1]


@pytest.mark.parametrize("target", ["restart", "keep", "average"])
def test_what_each_stage_shares_and_keeps(target: str) -> None:
    method = make(target=target)
    server = method.init_server(Context(0))
    data = tiny_clients(labels=False).client_data(3, CPU)
    for phase, names in ((REPRESENT, {"encoder", "instance_head"}), (CLUSTER, {"cluster_head"})):
        ctx = Context(0, 0, phase, 3)
        update, local = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
        targets = {f"target_{name}" for name in names}
        assert set(update.payload.groups) == (names | targets if target == "average" else names)
        assert set(local.groups) == (targets if target == "keep" else set())
        for name in names:
            moved, before = update.payload.groups[name], server.groups[name]
            assert not all(torch.equal(moved[key], before[key]) for key in before)


def test_stage_2_leaves_the_encoder_alone_even_its_batch_statistics() -> None:
    over = {"model": {"norm": "batch"}}
    tiny = TinyFederation("fedmcc", over={"method": {"represent_rounds": 1}, **over})
    first = tiny.run(until=1)
    last = TinyFederation("fedmcc", over={"method": {"represent_rounds": 1}, **over}).run()
    before, after = first.server.groups, last.server.groups
    assert all(torch.equal(tensor, after["encoder"][name]) for name, tensor in before["encoder"].items())
    assert not all(torch.equal(tensor, after["cluster_head"][name]) for name, tensor in before["cluster_head"].items())


def test_losses_of_both_stages() -> None:
    method = make()
    nets, other = method.build_networks(), method.build_networks()
    for name in ("encoder", "instance_head", "cluster_head"):
        nets[f"target_{name}"].load_state_dict(other[name].state_dict())
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    batch = Batch(x, torch.arange(6), None)
    a, b = method.views.pair(x, torch.Generator().manual_seed(2))
    z_a, z_b = (nets["instance_head"](nets["encoder"](view)) for view in (a, b))
    t_a, t_b = (nets["target_instance_head"](nets["target_encoder"](view)) for view in (a, b))
    expected = 0.5 * (instance_contrast(z_a, t_b, 0.5) + instance_contrast(t_a, z_b, 0.5))
    torch.testing.assert_close(method.loss(nets, batch, torch.Generator().manual_seed(2))["loss"], expected)
    c_a, c_b = (nets["cluster_head"](nets["encoder"](view)).softmax(dim=1) for view in (a, b))
    t_a, t_b = (nets["target_cluster_head"](nets["encoder"](view)).softmax(dim=1) for view in (a, b))
    expected = 0.5 * (cluster_contrast(c_a, t_b, 1.0) + cluster_contrast(t_a, c_b, 1.0))
    expected = expected - assignment_entropy(c_a) - assignment_entropy(c_b)
    torch.testing.assert_close(method.loss_of_clusters(nets, batch, torch.Generator().manual_seed(2))["loss"], expected)


@pytest.mark.parametrize(("target", "start"), [("restart", 2.0), ("keep", 3.0), ("average", 5.0)])
@pytest.mark.parametrize("phase", [REPRESENT, CLUSTER])
def test_where_targets_start(target: str, start: float, phase: str) -> None:
    """With a momentum of 1 a target stays where it starts: the received online network, its own last one, or the mean."""
    method = make(ema=1.0, target=target)
    server = method.init_server(Context(0))
    online = LEARNT[phase]

    def filled(value: float) -> dict[str, dict[str, torch.Tensor]]:
        return {name: {key: torch.full_like(tensor, value) for key, tensor in server.groups[name].items()} for name in online}

    averaged = {f"target_{name}": tensors for name, tensors in filled(5.0).items()} if target == "average" else {}
    server = server.with_groups(**filled(2.0), **averaged)
    local = Payload({f"target_{name}": tensors for name, tensors in filled(3.0).items()} if target == "keep" else {})
    nets, ctx = method.build_networks(), Context(0, 0, phase, 3)
    data = tiny_clients(labels=False).client_data(3, CPU)
    method.client_step(nets, method.broadcast(server, ctx), local, data, ctx)
    for name in online:
        assert all(bool((tensor == start).all()) for tensor in get_state(nets[f"target_{name}"]).values())


def test_a_client_without_a_target_of_its_own_starts_it_from_the_online_network() -> None:
    method = make(ema=1.0, target="keep")
    server = method.init_server(Context(0))
    ctx = Context(0, 0, REPRESENT, 3)
    data = tiny_clients(labels=False).client_data(3, CPU)
    _, local = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
    for name in ("encoder", "instance_head"):
        assert all(torch.equal(local.groups[f"target_{name}"][key], tensor) for key, tensor in server.groups[name].items())


def test_there_are_clusters_only_after_a_round_of_stage_2() -> None:
    tiny = TinyFederation("fedmcc")
    assert tiny.method.cluster_model(tiny.run(until=2).server) is None
    cluster_model = tiny.method.cluster_model(TinyFederation("fedmcc").run().server)
    assert cluster_model is not None
    assert not cluster_model.training
    assert cluster_model(torch.rand(4, 1, 8, 8)).shape == (4, 3)


def test_stage_2_alone_on_a_finished_encoder(tmp_path: Path) -> None:
    """FedU + MCC: the encoder of another method, clustered."""
    fedu = tiny_method(tiny_config("fedu")).init_server(Context(5))
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(payload_to_safetensors(Payload({"encoder": fedu.groups["encoder"]})))
    over = {"method": {"represent_rounds": 0}, "model": {"pretrained": str(path)}}
    state = TinyFederation("fedmcc", over=over).run()
    assert all(torch.equal(tensor, fedu.groups["encoder"][name]) for name, tensor in state.server.groups["encoder"].items())
    with pytest.raises(UserError, match=r"name one in model\.pretrained"):
        make(represent_rounds=0)


@pytest.mark.parametrize(("options", "expected"), [({}, 0.25), ({"cluster_ema": 0.0}, 1.0)])
def test_the_target_of_stage_2_may_have_a_momentum_of_its_own(options: dict[str, Any], expected: float) -> None:
    method = make(ema=0.75, **options)
    for phase, step in ((REPRESENT, 0.25), (CLUSTER, expected)):
        nets = method.build_networks()
        name = "instance_head" if phase == REPRESENT else "cluster_head"
        with torch.no_grad():
            for parameter in nets[name].parameters():
                parameter.add_(1)
        before = nets[f"target_{name}"][-1].bias.clone()  # type: ignore[index]
        method.update_targets(nets, phase)
        torch.testing.assert_close(nets[f"target_{name}"][-1].bias, before + step)  # type: ignore[index]


def test_clusters_may_start_from_federated_kmeans() -> None:
    """In the first round of stage 2 everyone is asked for centroids and counts, once, and the head starts at the nearest."""
    recorder = Recorder()
    over = {"method": {"cluster_start": "kmeans", "represent_rounds": 1}, "federation": {"rounds": 3}, "cohort": {"size": 4}}
    tiny = TinyFederation("fedmcc", over=over)
    method = tiny.method
    assert isinstance(method, FedMCC)
    state = tiny.run(callbacks=[recorder])
    assert [sorted({phase for phase, _ in record.clients}) for record in recorder.records] == [
        [REPRESENT],
        [CLUSTER, SEED],
        [CLUSTER],
    ]
    assert state.server.scalars["num_seeded"] == method.num_clusters


def seeds_of(method: FedMCC, server: Payload) -> Aggregate:
    clients = tiny_clients(labels=False)
    nets, sent = method.build_networks(), []
    for client_id in range(len(clients)):
        ctx = Context(0, 1, SEED, client_id)
        received = method.broadcast(server, ctx)
        assert set(received.groups) == {"encoder"}
        update, _ = method.client_step(nets, received, Payload(), clients.client_data(client_id, CPU), ctx)
        if update.payload.groups:
            sent.append((client_id, update.payload.groups["seeds"]))
    return Aggregate(stacks={"seeds": sent})


def test_seeds_are_centroids_and_counts_of_clusters_of_several_samples() -> None:
    method = make(cluster_start="kmeans")
    aggregate = seeds_of(method, method.init_server(Context(0)))
    assert 2 not in dict(aggregate.stacks["seeds"]), "client 2 has a single sample"
    for _, tensors in aggregate.stacks["seeds"]:
        assert set(tensors) == {"centroids", "counts", "squared_distance"}
        assert float(tensors["counts"].min()) >= 2
        assert len(tensors["centroids"]) <= method.num_clusters


@pytest.mark.parametrize("target", ["restart", "average"])
def test_the_seeded_head_assigns_to_the_nearest_merged_centroid(target: str) -> None:
    method = make(cluster_start="kmeans", target=target)
    server = method.init_server(Context(0))
    aggregate = seeds_of(method, server)
    after = method.server_step(server, aggregate, Context(0, 1, SEED))
    head = method.build_networks()["cluster_head"]
    head.load_state_dict(dict(after.groups["cluster_head"]))
    own = torch.cat([tensors["centroids"] for _, tensors in aggregate.stacks["seeds"]])
    sizes = torch.cat([tensors["counts"] for _, tensors in aggregate.stacks["seeds"]])
    merged = merge_clusters(own, sizes, method.num_clusters, Context(0, 1, SEED).rng("seeds"))
    with torch.no_grad():
        assert torch.equal(head(own).argmax(dim=1), torch.cdist(own, merged).argmin(dim=1))
    assert ("target_cluster_head" in after.groups) == (target == "average")
    assert method.round_notes(server, after) == []


def test_too_few_seeds_leave_the_head_as_it_was_and_are_noted() -> None:
    method = make(cluster_start="kmeans", num_clusters=40)
    server = method.init_server(Context(0))
    after = method.server_step(server, seeds_of(method, server), Context(0, 1, SEED))
    for name, tensor in after.groups["cluster_head"].items():
        assert torch.equal(tensor, server.groups["cluster_head"][name])
    assert "of 40 clusters, so the cluster head starts at random" in method.round_notes(server, after)[0]
    assert method.server_step(server, Aggregate(), Context(0, 1, SEED)).scalars["num_seeded"] == 0


def test_without_it_no_centroid_may_leave_a_client() -> None:
    assert "seeds" not in make().shares
    seeds = make(cluster_start="kmeans").shares["seeds"]
    assert (seeds.reduce, seeds.reveals) == (Reduce.STACK, Reveals.STATISTICS)
