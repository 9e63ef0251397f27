from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from unisono.clustering.equal_size import equal_size_clustering
from unisono.clustering.private import Noise, private_centroids
from unisono.clustering.recent_points import RecentPoints
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import RunInfo
from unisono.core.noise import SeededNoise
from unisono.core.payload import Aggregate, Payload, Reveals, Update
from unisono.core.wire import to_bytes
from unisono.federation.client_turn import prepare_nets
from unisono.federation.declared import ConsentConfig, check_consent
from unisono.federation.loop import ServerState
from unisono.methods.orchestra import Orchestra, OrchestraConfig
from unisono.models.nets import build_seeded, load_state
from unisono.privacy.guarantee import KAnonymity
from unisono.privacy.local_dp import LocalDp
from unisono.testing.tiny import SIZES, TinyFederation, same_bits, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(**options: Any) -> Orchestra:
    method = tiny_method(tiny_config("orchestra", {"method": {"num_global_clusters": 4, "num_local_clusters": 2, **options}}))
    assert isinstance(method, Orchestra)
    return method


def step(method: Orchestra, client_id: int, phase: str, server: Payload) -> Payload:
    ctx = Context(0, 0, phase, client_id)
    nets = prepare_nets(method, CPU)
    data = tiny_clients(labels=False).client_data(client_id, CPU)
    return method.client_step(nets, method.broadcast(server, ctx), Payload(), data, ctx)[0].payload


def with_centroids(method: Orchestra) -> Payload:
    server = method.init_server(Context(0))
    width = method.config.projection_dim
    centroids = F.normalize(torch.randn(4, width, generator=torch.Generator().manual_seed(2)), dim=1)
    return server.with_groups(centroids={"centroids": centroids})


@pytest.mark.parametrize("first_clustering", ["cohort", "all"])
def test_round_zero_clusters_without_training(first_clustering: str) -> None:
    method = make(first_clustering=first_clustering)
    phases = [(phase.name, phase.all_clients) for phase in method.phases(0, Payload())]
    assert phases == [("cluster", first_clustering == "all"), ("train", False)]
    assert [phase.name for phase in method.phases(1, with_centroids(method))] == ["train"]
    sent = step(method, 0, "cluster", method.init_server(Context(0)))
    assert set(sent.groups) == {"local_centroids"}


@pytest.mark.parametrize(("client_id", "num_centroids"), [(0, 2), (2, 0), (4, 2), (5, 1)])
def test_few_samples_mean_fewer_centroids(client_id: int, num_centroids: int) -> None:
    """Clients of 9, 1, 4 and 2 samples, L = 2, k = 2: no centroid ever stands for one sample."""
    method = make()
    for phase in ("cluster", "train"):
        groups = step(method, client_id, phase, with_centroids(method)).groups
        sent = groups["local_centroids"]["centroids"] if "local_centroids" in groups else torch.empty(0)
        assert len(sent) == num_centroids


def test_nothing_but_the_declared_shares_leaves_a_client() -> None:
    """Neither the memory nor a representation of a sample is in what crosses the wire."""
    method = make()
    server = with_centroids(method)
    nets = prepare_nets(method, CPU)
    assert {share.reveals for share in method.shares.values()} == {Reveals.PARAMETERS, Reveals.STATISTICS}
    for client_id in range(len(SIZES)):
        sent = step(method, client_id, "train", server)
        assert set(sent.groups) <= set(method.shares)
        centroids = sent.groups.get("local_centroids", {}).get("centroids", torch.empty(0, 16))
        assert len(centroids) <= method.config.num_local_clusters
        data = tiny_clients(labels=False).client_data(client_id, CPU)
        for name in ("encoder", "projector"):
            nets["target_" + name].load_state_dict(sent.groups["target_" + name], strict=False)
        z = F.normalize(nets["target_projector"](nets["target_encoder"](data.batch(torch.arange(len(data))))), dim=1)
        if len(centroids):
            assert float((centroids @ z.T).max()) < 0.99999


def test_memory_holds_the_most_recent_samples_once_each() -> None:
    memory = RecentPoints(3)
    memory.add(torch.tensor([0, 1]), torch.tensor([[0.0], [1.0]]))
    memory.add(torch.tensor([2, 0]), torch.tensor([[2.0], [10.0]]))
    assert memory.points().flatten().tolist() == [1.0, 2.0, 10.0]
    memory.add(torch.tensor([3]), torch.tensor([[3.0]]))
    assert memory.points().flatten().tolist() == [2.0, 10.0, 3.0]


def few_centroids() -> Aggregate:
    points = F.normalize(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    return Aggregate(stacks={"local_centroids": [(0, {"centroids": points[:2]}), (4, {"centroids": points[2:]})]})


def test_prototypes_keep_their_number_when_few_centroids_arrive() -> None:
    method = make()
    server = method.server_step(method.init_server(Context(0)), few_centroids(), Context(0, 0, "train"))
    assert server.groups["centroids"]["centroids"].shape == (4, 16)
    assert method.server_metrics(server)["num_centroids"] == 3
    assert -1 <= method.server_metrics(server)["delta"] <= 1


def test_clusters_of_equal_size_are_refused_when_few_centroids_arrive() -> None:
    method = make(global_clustering="equal-size")
    with pytest.raises(UserError, match=r"^Round 3: 3 centroids arrived for method.num_global_clusters = 4, .*prototypes"):
        method.server_step(method.init_server(Context(0)), few_centroids(), Context(0, 2, "train"))


@pytest.fixture(scope="module")
def plain(few_prototype_steps: None) -> tuple[TinyFederation, ServerState]:
    tiny = TinyFederation("orchestra", over={"method": {"num_global_clusters": 3}})
    return tiny, tiny.run()


def test_assigner_picks_the_nearest_global_centroid(plain: tuple[TinyFederation, ServerState]) -> None:
    tiny, server = plain[0], plain[1].server
    cluster_model = tiny.method.cluster_model(server)
    assert cluster_model is not None
    x = tiny.clients.samples[:7].float() / 255
    nets = tiny.method.build_networks()
    for name in ("encoder", "projector"):
        nets[name].load_state_dict(server.groups[name], strict=False)
    z = F.normalize(nets["projector"](nets["encoder"](x)), dim=1)
    distance = torch.cdist(z, server.groups["centroids"]["centroids"])
    assert cluster_model(x).argmax(1).tolist() == distance.argmin(1).tolist()


def test_target_restarts_from_the_online_networks_when_it_is_not_averaged() -> None:
    method = make(aggregate_target=False, ema=1.0)
    server = with_centroids(method)
    assert "target_encoder" not in server.groups
    nets = prepare_nets(method, CPU)
    ctx = Context(0, 0, "train", 0)
    method.client_step(nets, method.broadcast(server, ctx), Payload(), tiny_clients(labels=False).client_data(0, CPU), ctx)
    for name, tensor in server.groups["encoder"].items():
        assert torch.equal(dict(nets["target_encoder"].named_parameters())[name], tensor)


@pytest.mark.parametrize(
    "options",
    [
        {"degeneracy_weight": 0.0},
        {"ema": 0.0},
        {"target_view": "plain"},
        {"evaluate": "target"},
        {"last_norm": False},
        {"local_clustering": "sinkhorn"},
        {"global_clustering": "equal-size"},
        {"first_clustering": "all"},
        {"aggregate_target": False},
        {"projector_norm": "batch"},
        {"target_view": "plain", "degeneracy_weight": 0.0},
    ],
)
def test_ablations_and_variants_change_the_result(plain: tuple[TinyFederation, ServerState], options: dict[str, Any]) -> None:
    (base, base_state), variant = plain, TinyFederation("orchestra", over={"method": {"num_global_clusters": 3, **options}})
    variant_state = variant.run()
    x = base.clients.samples[:4].float() / 255
    first, second = (tiny.method.encoder(state.server)(x) for tiny, state in ((base, base_state), (variant, variant_state)))
    assert not torch.equal(first, second)
    if "evaluate" in options:
        assert same_bits(base_state, variant_state)


def test_batch_norm_in_the_projector_spreads_the_first_representations() -> None:
    """Without it they point the same way, every cluster is as near as every other, and the cluster loss teaches nothing."""
    x = tiny_clients(labels=False).samples.float() / 255

    def mean_cosine(norm: str) -> float:
        options = {"projector_norm": norm, "projection_dim": 64, "last_norm": False}
        method = tiny_method(tiny_config("orchestra", {"method": options, "model": {"backbone": "resnet18"}}))
        assert isinstance(method, Orchestra)
        with torch.no_grad():
            z = method._target(build_seeded(method.build_networks, 0), x)
        return float((z @ z.T).mean())

    assert mean_cosine("batch") < 0.5
    assert mean_cosine("group") > 0.8


def test_micro_batches_need_a_projector_without_batch_norm() -> None:
    over = {"method": {"projector_norm": "batch"}, "training": {"micro_batch": 2}}
    with pytest.raises(UserError, match="micro_batch"):
        tiny_method(tiny_config("orchestra", over))


def test_series_need_degeneracy_weight_zero() -> None:
    info = RunInfo((3, 100), (0.0,), (1.0,), None, 4, 1)
    with pytest.raises(UserError, match="degeneracy_weight must be 0"):
        Orchestra(OrchestraConfig(), info)


# --- what is released, and what is promised about it


def answer(method: Orchestra, client_id: int, phase: str, server: Payload, round: int = 0) -> Update:
    ctx = Context(0, round, phase, client_id)
    data = tiny_clients(labels=False).client_data(client_id, CPU)
    return method.client_step(prepare_nets(method, CPU), method.broadcast(server, ctx), Payload(), data, ctx)[0]


@pytest.mark.parametrize(("client_id", "smallest"), [(0, 4), (1, 3), (3, 6), (4, 2), (5, 2)])
def test_clients_tell_the_smallest_cluster_behind_a_centroid(client_id: int, smallest: int) -> None:
    """9, 7, 12, 4 and 2 samples in clusters of equal size, two or one of them."""
    method = make()
    for phase in ("cluster", "train"):
        assert answer(method, client_id, phase, with_centroids(method)).metrics["smallest_cluster"] == smallest
    assert "smallest_cluster" not in answer(method, 2, "train", with_centroids(method)).metrics
    assert isinstance(method.release_guarantee(), KAnonymity)


def test_private_centroids_see_every_sample_by_itself_through_the_received_target() -> None:
    """They are those of the coreset on the plain samples' representations; training, and the batch, play no part."""
    method = make(privacy="local-dp", epsilon=50.0)
    server = with_centroids(method)
    nets = prepare_nets(method, CPU)
    for name in ("encoder", "projector"):
        load_state(nets["target_" + name], server.groups["target_" + name])
    nets.eval()
    data = tiny_clients(labels=False).client_data(3, CPU)
    alone = [nets["target_projector"](nets["target_encoder"](data.batch(torch.tensor([i])))) for i in range(len(data))]
    points = F.normalize(torch.cat(alone).detach(), dim=1)
    budget = method.release_guarantee()
    assert isinstance(budget, LocalDp)
    assert budget.num_levels == 2, "L = 2 means at least 4 leaves"
    noise = Noise(budget.count_epsilon, budget.sum_deviation)
    ctx = Context(0, 0, "train", 3)
    expected = private_centroids(points, 2, 2, noise, ctx.rng("hash"), SeededNoise(ctx.rng("noise")))
    update = answer(method, 3, "train", server)
    assert torch.allclose(update.payload.groups["local_centroids"]["centroids"], expected, atol=1e-4)
    assert "smallest_cluster" not in update.metrics
    assert set(update.payload.groups) == set(method.shares)


def test_noise_of_the_system_cannot_be_repeated() -> None:
    seeded, system = make(privacy="local-dp"), make(privacy="local-dp", noise_source="system")
    for method, alike in ((seeded, True), (system, False)):
        server = method.init_server(Context(0))
        first, second = (
            [to_bytes(answer(method, client, "cluster", server).payload) for client in (0, 1, 3)] for _ in range(2)
        )
        assert (first == second) is alike


@pytest.mark.usefixtures("few_prototype_steps")
@pytest.mark.parametrize("over", [{}, {"norm": "batch"}])
def test_local_dp_runs_with_the_same_bits_and_clients_of_one_sample(over: dict[str, Any]) -> None:
    options = {"method": {"num_global_clusters": 4, "privacy": "local-dp", "sketch_dim": 8}, "model": over}
    assert same_bits(
        TinyFederation("orchestra", over=options).run(until=2), TinyFederation("orchestra", 2, over=options).run(until=2)
    )


def test_noise_above_the_signal_is_told_before_the_run() -> None:
    method = make(privacy="local-dp", epsilon=1.0)
    (sentence,) = method.preflight_warnings([10, 10, 10])
    assert "for a client of 10 samples" in sentence
    assert method.preflight_warnings([100_000] * 3) == ()
    assert make().preflight_warnings([1, 1]) == ()


def test_representations_are_declared_as_such_and_need_consent() -> None:
    method = make(share="representations")
    assert method.shares["representations"].reveals is Reveals.REPRESENTATIONS
    assert "local_centroids" not in method.shares
    with pytest.raises(UserError, match="allow_raw_representations"):
        check_consent(method.shares, ConsentConfig())
    check_consent(make().shares, ConsentConfig())
    with pytest.raises(UserError, match="sends samples one by one"):
        make(share="representations", privacy="local-dp")


def test_the_idealised_server_clusters_all_representations() -> None:
    method = make(share="representations", memory_size=5, global_clustering="equal-size")
    server = with_centroids(method)
    sent = {client: answer(method, client, "train", server).payload.groups for client in (0, 2, 4)}
    points = {client: groups["representations"]["points"] for client, groups in sent.items()}
    assert {client: len(rows) for client, rows in points.items()} == {0: 5, 2: 1, 4: 4}
    aggregate = Aggregate(stacks={"representations": [(client, {"points": rows}) for client, rows in points.items()]})
    ctx = Context(0, 1, "train")
    stepped = method.server_step(server, aggregate, ctx)
    initial = server.groups["centroids"]["centroids"]
    expected = equal_size_clustering(torch.cat(list(points.values())), 4, ctx.rng("global clustering"), initial)
    assert torch.equal(stepped.groups["centroids"]["centroids"], expected.centroids)


def test_fewer_centroids_than_clusters_are_told_once() -> None:
    method = make()
    before, after = Payload(), Payload(scalars={"num_centroids": 3})
    told = ("3 centroids arrived for 4 global clusters, so some clusters have none",)
    assert method.round_notes(before, after) == told
    assert method.round_notes(after, Payload(scalars={"num_centroids": 2})) == ()
    assert method.round_notes(before, Payload(scalars={"num_centroids": 4})) == ()


class OneHot(torch.nn.Module):
    """A sample's first pixel says which axis it lies on, with a little of its second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.flatten(1)
        axis = F.one_hot((pixels[:, 0] * 255).round().long(), 16).float()
        axis[:, -1] = 0.01 * pixels[:, 1]
        return axis


def test_consistency_on_a_constructed_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four directions, one local cluster per client.

    Clients of one direction each lose nothing: c = 1. Where all four clients hold every direction alike, their local centroids
    are the same, so the global cluster of a sample is its client and says nothing of its direction: the best matching of four
    clients with four directions, two samples in each pair, covers 8 of 32 samples.
    """
    method = make(num_local_clusters=1)
    monkeypatch.setattr(method, "_evaluated", lambda server: (OneHot(), torch.nn.Identity()))

    def client(*axes: int) -> torch.Tensor:
        samples = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)
        samples[:, 0, 0, 0] = torch.tensor(axes).repeat(8 // len(axes))
        samples[:, 0, 0, 1] = torch.arange(8)
        return samples

    ctx = Context(0)
    assert method.cluster_consistency(Payload(), [client(0), client(1), client(2), client(3)], ctx) == 1.0
    assert method.cluster_consistency(Payload(), [client(0, 1, 2, 3)] * 4, ctx) == 0.25
    assert method.cluster_consistency(Payload(), [client(0)[:1]], ctx) == 1.0
