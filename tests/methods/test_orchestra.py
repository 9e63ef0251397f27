from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.tiny import SIZES, TinyFederation, same_bits, tiny_clients, tiny_config, tiny_method
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Setting
from unisono.core.payload import Aggregate, Payload, Reveals
from unisono.federation.worker import prepare_nets
from unisono.methods.local_training import Batch
from unisono.methods.orchestra import Orchestra, OrchestraConfig, _Memory

CPU = torch.device("cpu")


def make(**options: Any) -> Orchestra:
    method = tiny_method(tiny_config("orchestra", {"method": {"num_global_clusters": 4, "num_local_clusters": 2, **options}}))
    assert isinstance(method, Orchestra)
    return method


def step(method: Orchestra, client_id: int, phase: str, server: Payload) -> Payload:
    ctx = Context(0, 0, phase, client_id)
    nets = prepare_nets(method, CPU)
    data = tiny_clients(labels=False).data_of(client_id, CPU)
    return method.client_step(nets, method.broadcast(server, ctx), Payload(), data, ctx)[0].payload


def with_centroids(method: Orchestra) -> Payload:
    server = method.init_server(Context(0))
    width = method.config.projection_dim
    centroids = F.normalize(torch.randn(4, width, generator=torch.Generator().manual_seed(2)), dim=1)
    return server.with_groups(centroids={"centroids": centroids})


def test_loss_against_a_naive_reference() -> None:
    """L = mean_i H(P_T(x_i), P_O(t(x_i))) + mean_i H(R_i, rotation prediction), both cross-entropies minimised."""
    method = make()
    method.views = type("Plain", (), {"first": staticmethod(lambda x, generator: x.flip(-1))})()  # type: ignore[assignment]
    nets = prepare_nets(method, CPU)
    centroids = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(2)), dim=1)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    memory = _Memory(128)
    batch = Batch(x, torch.arange(5), None)
    with torch.no_grad():
        terms = method._loss(nets, batch, torch.Generator().manual_seed(0), centroids, memory)
    turns = torch.randint(4, (5,), generator=torch.Generator().manual_seed(0))
    cluster = rotation = 0.0
    for i in range(5):
        z_t = F.normalize(nets["target_projector"](nets["target_encoder"](x[i : i + 1])), dim=1)[0]
        z_o = F.normalize(nets["projector"](nets["encoder"](x[i : i + 1].flip(-1))), dim=1)[0]
        p_t, p_o = (F.softmax(centroids @ z / 0.1, dim=0) for z in (z_t, z_o))
        cluster -= (p_t * p_o.log()).sum().item() / 5
        rotated = torch.rot90(x[i : i + 1], int(turns[i]), dims=(2, 3))
        logits = nets["rotation_head"](nets["projector"](nets["encoder"](rotated)))[0]
        rotation -= logits.log_softmax(0)[turns[i]].item() / 5
    assert float(terms["cluster_loss"]) == pytest.approx(cluster, rel=1e-4)
    assert float(terms["rotation_loss"]) == pytest.approx(rotation, rel=1e-4)
    assert float(terms["loss"]) == pytest.approx(cluster + rotation, rel=1e-4)
    assert len(memory.points()) == 5


def test_round_zero_clusters_everyone_without_training() -> None:
    method = make()
    assert [(phase.name, phase.everyone) for phase in method.phases(0, Payload())] == [("cluster", True), ("train", False)]
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


def test_nothing_but_the_whitelist_leaves_a_client() -> None:
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
        data = tiny_clients(labels=False).data_of(client_id, CPU)
        for name in ("encoder", "projector"):
            nets["target_" + name].load_state_dict(sent.groups["target_" + name], strict=False)
        z = F.normalize(nets["target_projector"](nets["target_encoder"](data.batch(torch.arange(len(data))))), dim=1)
        if len(centroids):
            assert float((centroids @ z.T).max()) < 0.99999


def test_memory_holds_the_most_recent_samples_once_each() -> None:
    memory = _Memory(3)
    memory.add(torch.tensor([0, 1]), torch.tensor([[0.0], [1.0]]))
    memory.add(torch.tensor([2, 0]), torch.tensor([[2.0], [10.0]]))
    assert memory.points().flatten().tolist() == [1.0, 2.0, 10.0]
    memory.add(torch.tensor([3]), torch.tensor([[3.0]]))
    assert memory.points().flatten().tolist() == [2.0, 10.0, 3.0]


def test_server_lowers_the_number_of_clusters_when_few_centroids_arrive() -> None:
    method = make()
    server = method.init_server(Context(0))
    points = F.normalize(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    stacks = {"local_centroids": [(0, {"centroids": points[:2]}), (4, {"centroids": points[2:]})]}
    server = method.server_step(server, Aggregate(stacks=stacks), Context(0, 0, "train"))
    assert len(server.groups["centroids"]["centroids"]) == 3
    assert method.server_metrics(server)["num_global_clusters"] == 3
    assert "delta" in method.server_metrics(server)


def test_assigner_picks_the_nearest_global_centroid() -> None:
    tiny = TinyFederation("orchestra", over={"method": {"num_global_clusters": 3}})
    server = tiny.run().server
    assigner = tiny.method.assigner(server)
    assert assigner is not None
    x = tiny.clients.samples[:7].float() / 255
    nets = tiny.method.build()
    for name in ("encoder", "projector"):
        nets[name].load_state_dict(server.groups["target_" + name], strict=False)
    z = F.normalize(nets["projector"](nets["encoder"](x)), dim=1)
    distance = torch.cdist(z, server.groups["centroids"]["centroids"])
    assert assigner(x).argmax(1).tolist() == distance.argmin(1).tolist()


def test_target_restarts_from_the_online_networks_when_it_is_not_averaged() -> None:
    method = make(aggregate_target=False, ema=1.0)
    server = with_centroids(method)
    assert "target_encoder" not in server.groups
    nets = prepare_nets(method, CPU)
    ctx = Context(0, 0, "train", 0)
    method.client_step(nets, method.broadcast(server, ctx), Payload(), tiny_clients(labels=False).data_of(0, CPU), ctx)
    for name, tensor in server.groups["encoder"].items():
        assert torch.equal(dict(nets["target_encoder"].named_parameters())[name], tensor)


@pytest.mark.parametrize(
    "options",
    [
        {"degeneracy_weight": 0.0},
        {"ema": 0.0},
        {"target_view": "augmented"},
        {"evaluate": "online"},
        {"aggregate_target": False},
        {"target_view": "augmented", "degeneracy_weight": 0.0},
    ],
)
def test_ablations_and_variants_change_the_result(options: dict[str, Any]) -> None:
    base = TinyFederation("orchestra", over={"method": {"num_global_clusters": 3}})
    variant = TinyFederation("orchestra", over={"method": {"num_global_clusters": 3, **options}})
    base_state, variant_state = base.run(), variant.run()
    x = base.clients.samples[:4].float() / 255
    first, second = (tiny.method.encoder(state.server)(x) for tiny, state in ((base, base_state), (variant, variant_state)))
    assert not torch.equal(first, second)
    if "evaluate" in options:
        assert same_bits(base_state, variant_state)


def test_series_need_degeneracy_weight_zero() -> None:
    setting = Setting((3, 100), (0.0,), (1.0,), None, 4, 1)
    with pytest.raises(UserError, match="degeneracy_weight must be 0"):
        Orchestra(OrchestraConfig(), setting)
