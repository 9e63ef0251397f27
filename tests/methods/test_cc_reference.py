"""Contrastive Clustering beside a naive implementation of its formulas, loop by loop, on fixed inputs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from unisono.core.context import Context
from unisono.core.payload import Payload, Update
from unisono.evaluation.clusters import clustering_accuracy
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.losses.clustering import assignment_entropy, cluster_contrast, instance_contrast
from unisono.methods.cc import CC
from unisono.models.nets import get_state, load_state
from unisono.testing.tiny import tiny_clients, tiny_config, tiny_method

Z_A = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
Z_B = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [2.0, 0.5]])
C_A = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
C_B = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.9, 0.05, 0.05]])


def naive_contrast(a: list[list[float]], b: list[list[float]], temperature: float) -> float:
    """Each of the 2 n rows against its partner: the others, those of both views, stand in the denominator beside it."""
    rows, n = [*a, *b], len(a)
    total = 0.0
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        scores = [math.exp(cosine(rows[i], rows[k]) / temperature) for k in range(2 * n)]
        total += -math.log(scores[partner] / sum(scores[k] for k in range(2 * n) if k != i))
    return total / (2 * n)


def cosine(u: list[float], v: list[float]) -> float:
    dot = sum(x * y for x, y in zip(u, v, strict=True))
    return dot / math.sqrt(sum(x * x for x in u) * sum(y * y for y in v))


def naive_negative_entropy(c: list[list[float]]) -> float:
    """The code's ``ne_loss`` of one view: log K plus the sum of p log p over mean assignments, 0 where clusters are even."""
    shares = [sum(row[k] for row in c) / len(c) for k in range(len(c[0]))]
    return math.log(len(shares)) + sum(p * math.log(p) for p in shares)


def columns(c: Tensor) -> list[list[float]]:
    return c.T.tolist()  # type: ignore[no-any-return]


def test_instance_loss() -> None:
    expected = naive_contrast(Z_A.tolist(), Z_B.tolist(), 0.5)
    assert expected == pytest.approx(1.25305, abs=1e-5)
    assert float(instance_contrast(Z_A, Z_B, 0.5)) == pytest.approx(expected, rel=1e-6)


def test_cluster_loss_compares_columns() -> None:
    expected = naive_contrast(columns(C_A), columns(C_B), 1.0)
    assert expected == pytest.approx(1.25745, abs=1e-5)
    assert float(cluster_contrast(C_A, C_B, 1.0)) == pytest.approx(expected, rel=1e-6)


def test_entropies_are_maximised() -> None:
    """The code minimises ne_loss, which is log K minus our entropy for each view: the gradients are the same."""
    for c in (C_A, C_B):
        assert float(assignment_entropy(c)) == pytest.approx(math.log(3) - naive_negative_entropy(c.tolist()), rel=1e-6)
    even, collapsed = torch.full((4, 3), 1 / 3), torch.tensor([[1.0, 0.0, 0.0]] * 4)
    assert float(assignment_entropy(even)) == pytest.approx(math.log(3))
    assert float(assignment_entropy(collapsed)) == pytest.approx(0.0, abs=1e-30)


def naive_loss(method: CC, nets: torch.nn.ModuleDict, x: Tensor, views: torch.Generator) -> Tensor:
    """One view after the other through the networks, and every pair of rows by itself."""
    a, b = method.views.pair(x, views)
    h_a, h_b = nets["encoder"](a), nets["encoder"](b)
    z = torch.cat((nets["instance_head"](h_a), nets["instance_head"](h_b)))
    c_a, c_b = nets["cluster_head"](h_a).softmax(dim=1), nets["cluster_head"](h_b).softmax(dim=1)
    total = naive_rows(z, 0.5) + naive_rows(torch.cat((c_a.T, c_b.T)), 1.0)
    for c in (c_a, c_b):
        p = c.sum(dim=0) / c.sum()
        total = total + math.log(len(p)) + (p * p.log()).sum()
    return total


def naive_rows(rows: Tensor, temperature: float) -> Tensor:
    n = len(rows) // 2
    losses = []
    for i in range(2 * n):
        scores = [torch.exp(torch.dot(rows[i], rows[k]) / rows[i].norm() / rows[k].norm() / temperature) for k in range(2 * n)]
        others = torch.stack([scores[k] for k in range(2 * n) if k != i]).sum()
        losses.append(-torch.log(scores[(i + n) % (2 * n)] / others))
    return torch.stack(losses).mean()


def test_one_local_step_of_adam() -> None:
    method = tiny_method(tiny_config("cc", {"training": {"batch_size": 9, "learning_rate": 3e-4}}))
    assert isinstance(method, CC)
    server = method.init_server(Context(0))
    data = tiny_clients(labels=False).client_data(0, torch.device("cpu"))
    ctx = Context(0, 0, "train", 0)
    update, _ = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)

    nets = method.build_networks()
    for name in nets:
        load_state(nets[name], server.groups[name])
    nets.train()
    order = torch.randperm(len(data), generator=ctx.rng("order"))
    loss = naive_loss(method, nets, data.batch(order), ctx.rng("views"))
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()) - 2 * math.log(3), rel=1e-4)
    loss.backward()
    with torch.no_grad():
        for parameter in nets.parameters():
            if parameter.grad is not None:  # the first step of Adam: both moments are unbiased, so it is g / (|g| + eps)
                parameter.sub_(3e-4 * parameter.grad / (parameter.grad.abs() + 1e-8))
    for name, net in nets.items():
        for key, tensor in get_state(net).items():
            # Where a gradient is near 0 the step's direction is rounding, so single entries may differ by a step.
            differences = (update.payload.groups[name][key] - tensor).abs()
            assert float(differences.median()) < 1e-6
            assert float(differences.max()) <= 2 * 3e-4 + 1e-6


def test_means_weigh_clients_by_samples() -> None:
    """Fed + CC: FedAvg of encoder and both heads, w = (3 w_1 + 1 w_2) / 4 for clients of 30 and 10 samples."""
    method = tiny_method(tiny_config("cc", {}))
    server = method.init_server(Context(0))
    found = Accumulator(method.shares, AggregationConfig())
    for client, (size, value) in enumerate([(30.0, 2.0), (10.0, -6.0)]):
        filled = {
            group: {name: torch.full_like(tensor, value) for name, tensor in tensors.items()}
            for group, tensors in server.groups.items()
        }
        found.add(Update(client, size, Payload(filled)))
    averaged = method.server_step(server, found.finish(server.groups), Context(0, 0, "train"))
    assert set(averaged.groups) == {"encoder", "instance_head", "cluster_head"}
    for tensors in averaged.groups.values():
        for tensor in tensors.values():
            torch.testing.assert_close(tensor, torch.zeros_like(tensor))


def test_a_sample_has_the_cluster_of_its_largest_assignment() -> None:
    """argmax of the cluster head in eval mode; ACC under the best of all matchings of clusters and classes."""
    method = tiny_method(tiny_config("cc", {}))
    server = method.init_server(Context(0))
    model = method.cluster_model(server)
    assert model is not None
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    nets = method.build_networks().eval()
    for name in nets:
        load_state(nets[name], server.groups[name])
    with torch.no_grad():
        shares = nets["cluster_head"](nets["encoder"](x)).softmax(dim=1)
        assert model(x).argmax(dim=1).tolist() == [row.index(max(row)) for row in shares.tolist()]
    clusters, classes = [0, 0, 1, 1, 2, 2, 2], [1, 1, 0, 2, 2, 2, 0]
    best = max(
        sum(order[cluster] == label for cluster, label in zip(clusters, classes, strict=True)) / 7
        for order in itertools.permutations(range(3))
    )
    assert best == pytest.approx(5 / 7)
    assert clustering_accuracy(torch.tensor(classes), torch.tensor(clusters)) == pytest.approx(best)
