"""Orchestra beside naive numpy versions of its formulas, on fixed inputs, so that a departure is noticed.

Formulas are those of the paper's section 4 and C.2, with the public code's choices: T = 0.1 on both sides, Sinkhorn with
lambda = 25, five alternations at a client, 500 steps of SGD on the prototypes at the server.
"""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from unisono.clustering import prototypes
from unisono.clustering.equal_mass import equal_mass_clustering
from unisono.clustering.equal_size import equal_size_clustering
from unisono.clustering.recent_points import RecentPoints
from unisono.core.context import Context
from unisono.core.payload import Aggregate, Payload
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.federation.client_turn import prepare_nets
from unisono.methods.local_training import Batch
from unisono.methods.orchestra import Orchestra
from unisono.models.nets import state_view
from unisono.testing.tiny import tiny_clients, tiny_config, tiny_method

Array = NDArray[np.float64]
CPU = torch.device("cpu")
VIEWS: Any = SimpleNamespace(first=lambda x, generator: x.flip(-1), second=lambda x, generator: 1 - x)
"""Views without chance: the first is mirrored, the second inverted."""


def make(norm: str = "batch", over: dict[str, Any] | None = None, **options: Any) -> Orchestra:
    tables = {"model": {"norm": norm}, "training": {"batch_size": 16, "learning_rate": 0.1, **(over or {})}}
    clusters = {"num_global_clusters": 4, "num_local_clusters": 2, "ema": 0.9}
    method = tiny_method(tiny_config("orchestra", {**tables, "method": {**clusters, **options}}))
    assert isinstance(method, Orchestra)
    method.views = VIEWS
    return method


def server_of(method: Orchestra) -> Payload:
    """Networks whose target differs from the online one, and four centroids."""
    server = method.init_server(Context(0))
    other = method.init_server(Context(1))
    centroids = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(2)), dim=1)
    targets = {name: other.groups[name] for name in ("target_encoder", "target_projector")}
    return server.with_groups(centroids={"centroids": centroids}, **targets)


def unit(z: Array) -> Array:
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def softmax(scores: Array) -> Array:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def outputs(nets: nn.ModuleDict, x: Tensor, prefix: str = "") -> Array:
    return nets[prefix + "projector"](nets[prefix + "encoder"](x)).detach().double().numpy()


def reference_losses(nets: nn.ModuleDict, x: Tensor, turns: list[int], centroids: Array, plain: bool) -> tuple[float, float]:
    """H(P of the target's first view, P of the online second view), and the cross-entropy of the rotation of another."""
    first = x if plain else x.flip(-1)
    p_target = softmax(unit(outputs(nets, first, "target_")) @ centroids.T / 0.1)
    p_online = softmax(unit(outputs(nets, 1 - x)) @ centroids.T / 0.1)
    rotated = torch.stack([torch.rot90(image, turn, dims=(1, 2)) for image, turn in zip(first, turns, strict=True)])
    weight, bias = (tensor.detach().double().numpy() for tensor in nets["rotation_head"].parameters())
    p_turns = softmax(outputs(nets, rotated) @ weight.T + bias)
    cluster = -(p_target * np.log(p_online)).sum(axis=1).mean()
    return float(cluster), float(-np.log(p_turns[np.arange(len(x)), turns]).mean())


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("target_view", ["augmented", "plain"])
def test_losses(norm: str, target_view: str) -> None:
    """Every view passes by itself, so BatchNorm takes its statistics from one view at a time."""
    method = make(norm, target_view=target_view)
    nets = prepare_nets(method, CPU).train()
    server = server_of(method)
    method.load_networks(nets, method.broadcast(server, Context(0, 1, "train")), Payload(), Context(0, 1, "train"))
    centroids, x = server.groups["centroids"]["centroids"], torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    turns = torch.randint(4, (6,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = reference_losses(deepcopy(nets), x, turns, centroids.double().numpy(), target_view == "plain")
    memory = RecentPoints(128)
    with torch.no_grad():
        terms = method._loss(nets, centroids, memory, Batch(x, torch.arange(6), None), torch.Generator().manual_seed(0))
    assert [float(terms[name]) for name in ("cluster_loss", "rotation_loss")] == pytest.approx(expected, rel=1e-4)
    assert float(terms["loss"]) == pytest.approx(sum(expected), rel=1e-4)
    assert memory.points().shape == (6, 16)


def test_one_local_step() -> None:
    """First the target's parameters move, m t + (1 - m) o; then one step of SGD, w - rate (gradient + decay w).

    Statistics of BatchNorm follow the batches that passed: the target's the first view, the online ones two batches.
    """
    method, ctx = make(), Context(0, 1, "train", 0)
    server, data = server_of(method), tiny_clients(labels=False).client_data(0, CPU)
    nets = prepare_nets(method, CPU).train()
    method.load_networks(nets, method.broadcast(server, ctx), Payload(), ctx)
    with torch.no_grad():
        for name in ("encoder", "projector"):
            for target, online in zip(nets["target_" + name].parameters(), nets[name].parameters(), strict=True):
                target.copy_(0.9 * target + 0.1 * online)
    centroids = server.groups["centroids"]["centroids"]
    order = torch.randperm(len(data), generator=ctx.rng("order"))
    x, turns = data.batch(order), torch.randint(4, (len(data),), generator=ctx.rng("views"))
    p_target = F.softmax(F.normalize(_project(nets, x.flip(-1), "target_").detach(), dim=1) @ centroids.T / 0.1, dim=1)
    log_online = F.log_softmax(F.normalize(_project(nets, 1 - x), dim=1) @ centroids.T / 0.1, dim=1)
    rotated = torch.stack([torch.rot90(image.flip(-1), int(turn), dims=(1, 2)) for image, turn in zip(x, turns, strict=True)])
    log_turns = F.log_softmax(nets["rotation_head"](_project(nets, rotated)), dim=1)
    loss = -(p_target * log_online).sum(dim=1).mean() - log_turns[torch.arange(len(x)), turns].mean()
    loss.backward()
    with torch.no_grad():
        for name in ("encoder", "projector", "rotation_head"):
            for parameter in nets[name].parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * (parameter.grad + 1e-4 * parameter))
    update, _ = method.client_step(prepare_nets(method, CPU), method.broadcast(server, ctx), Payload(), data, ctx)
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    for name in method.shared_networks:
        for key, tensor in state_view(nets[name]).items():
            torch.testing.assert_close(update.payload.groups[name][key], tensor, rtol=1e-3, atol=1e-5, msg=f"{name} {key}")


def _project(nets: nn.ModuleDict, x: Tensor, prefix: str = "") -> Tensor:
    projected: Tensor = nets[prefix + "projector"](nets[prefix + "encoder"](x))
    return projected


def test_the_first_clustering_sees_first_views_with_statistics_of_their_batch() -> None:
    method, ctx = make(share="representations"), Context(0, 0, "cluster", 0)
    server, data = method.init_server(Context(0)), tiny_clients(labels=False).client_data(0, CPU)
    update, _ = method.client_step(prepare_nets(method, CPU).eval(), method.broadcast(server, ctx), Payload(), data, ctx)
    assert set(update.payload.groups) == {"representations"}, "no statistics of this pass leave the client"
    nets = prepare_nets(method, CPU).train()
    method.load_networks(nets, method.broadcast(server, ctx), Payload(), ctx)
    order = torch.randperm(len(data), generator=ctx.rng("order"))
    expected = unit(outputs(nets, data.batch(order).flip(-1), "target_"))
    np.testing.assert_allclose(update.payload.groups["representations"]["points"].numpy(), expected, atol=1e-5)


def test_means_weigh_clients_by_samples_which_are_batches_where_clients_are_alike() -> None:
    """The code weighs by batches, the paper by 1/K: 31 for every client of 500 samples, so all three agree there."""
    method = make()
    found = Accumulator(method.shares, AggregationConfig())
    sizes, ctx = [9, 7, 12], Context(0, 1, "train")
    server = server_of(method)
    nets, parts = prepare_nets(method, CPU), []
    for client in (0, 1, 3):
        data = tiny_clients(labels=False).client_data(client, CPU)
        parts.append(method.client_step(nets, method.broadcast(server, ctx), Payload(), data, ctx.at(client_id=client))[0])
        found.add(parts[-1])
    means = found.finish(server.groups).means
    for name in ("encoder", "target_encoder"):
        for key, tensor in means[name].items():
            total = sum(size * part.payload.groups[name][key].double().numpy() for size, part in zip(sizes, parts, strict=True))
            np.testing.assert_allclose(tensor.numpy(), total / 28, rtol=1e-4, atol=1e-6)


# --- clustering


def reference_plan(similarity: Array, steps: int, tolerance: float) -> Array:
    """Sinkhorn: scale columns to N / G and rows to 1 in turn, from softmax(25 s) on; look every ten steps."""
    plan = softmax(25 * similarity)
    for step in range(1, steps + 1):
        mass = plan.sum(axis=0)
        if step % 10 == 0 and np.abs(mass / plan.shape[0] * plan.shape[1] - 1).max() < tolerance:
            break
        plan = plan / mass * plan.shape[0] / plan.shape[1]
        plan = plan / plan.sum(axis=1, keepdims=True)
    return plan


def points_on_the_sphere(number: int, dim: int, seed: int) -> Array:
    return unit(np.random.default_rng(seed).normal(size=(number, dim)) + 0.5)


def test_local_clusters() -> None:
    """Five alternations: Sinkhorn with 10 steps, the largest share of every point, the normalised mean of its points."""
    points = points_on_the_sphere(40, 6, 0)
    found = equal_mass_clustering(torch.tensor(points), 5, torch.Generator().manual_seed(7))
    centroids = points[torch.randperm(40, generator=torch.Generator().manual_seed(7))[:5].numpy()]
    for _ in range(5):
        nearest = reference_plan(points @ centroids.T, 10, 0.0).argmax(axis=1)
        centroids = unit(np.stack([points[nearest == cluster].sum(axis=0) for cluster in range(5)]))
    np.testing.assert_allclose(found.centroids.numpy(), centroids, atol=1e-6)
    assert found.assignment.tolist() == nearest.tolist()


def test_local_clusters_below_the_least_size_are_not_sent() -> None:
    points = torch.tensor(points_on_the_sphere(21, 3, 4)).float()
    method = make(local_clustering="sinkhorn", num_local_clusters=5, min_cluster_size=4)
    memory = RecentPoints(128)
    memory.add(torch.arange(21), points)
    ctx = Context(0, 1, "train", 0)
    released, metrics = method._release(memory, ctx)
    whole = equal_mass_clustering(points, 5, ctx.rng("local clustering"))
    sizes = whole.assignment.bincount(minlength=5)
    assert int(sizes.min()) < 4 <= int(sizes.max()), "the case has both"
    assert torch.equal(released["local_centroids"]["centroids"], whole.centroids[sizes >= 4])
    assert metrics["smallest_cluster"] == float(sizes[sizes >= 4].min())


def reference_prototypes(points: Array, start: Array, steps: int) -> Array:
    """Steps of SGD (rate 0.01, momentum 0.9, decay 1e-4) on -cos(plan, softmax(C z / 0.1)), renormalised after each."""
    prototypes, velocity = unit(start), np.zeros_like(start)
    for _ in range(steps):
        scores = points @ prototypes.T
        plan, shares = reference_plan(scores, 100, 1e-2), softmax(scores / 0.1)
        plan_norm, norm = (np.linalg.norm(each, axis=1, keepdims=True) for each in (plan, shares))
        cosine = (plan * shares).sum(axis=1, keepdims=True) / (plan_norm * norm)
        by_shares = -(plan / (plan_norm * norm) - cosine * shares / norm**2) / len(points)
        by_scores = shares * (by_shares - (by_shares * shares).sum(axis=1, keepdims=True)) / 0.1
        gradient = by_scores.T @ points + 1e-4 * prototypes
        velocity = 0.9 * velocity + gradient
        prototypes = unit(prototypes - 0.01 * velocity)
    return prototypes


@pytest.mark.parametrize(("num_points", "num_clusters"), [(24, 4), (3, 5)])
def test_global_clusters(num_points: int, num_clusters: int) -> None:
    """Also with fewer centroids than clusters, which stay as many as they are."""
    points, start = points_on_the_sphere(num_points, 6, 1), points_on_the_sphere(num_clusters, 6, 2)
    found = prototypes.prototype_clustering(
        torch.tensor(points), num_clusters, torch.Generator(), torch.tensor(start), num_steps=50
    )
    np.testing.assert_allclose(found.centroids.numpy(), reference_prototypes(points, start, 50), atol=1e-5)
    assert found.centroids.shape == (num_clusters, 6)


def test_the_server_takes_500_steps_from_the_last_rounds_prototypes() -> None:
    method, server = make(), server_of(make())
    points = torch.tensor(points_on_the_sphere(10, 16, 3)).float()
    aggregate = Aggregate(stacks={"local_centroids": [(0, {"centroids": points[:6]}), (1, {"centroids": points[6:]})]})
    stepped = method.server_step(server, aggregate, Context(0, 1, "train"))
    start = server.groups["centroids"]["centroids"].double().numpy()
    expected = reference_prototypes(points.double().numpy(), start, 500)
    np.testing.assert_allclose(stepped.groups["centroids"]["centroids"].numpy(), expected, atol=1e-3)


def test_equal_sizes_are_exact_where_sinkhorn_is_not() -> None:
    """The reason why clients form clusters of exactly equal size unless told otherwise: anonymity."""
    points = torch.tensor(points_on_the_sphere(21, 3, 4))
    exact, nearly = (
        cluster(points, 5, torch.Generator().manual_seed(0)).assignment.bincount(minlength=5)
        for cluster in (equal_size_clustering, equal_mass_clustering)
    )
    assert sorted(exact.tolist()) == [4, 4, 4, 4, 5]
    assert int(nearly.min()) < 4
