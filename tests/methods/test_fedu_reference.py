"""FedU and FedEMA beside a naive implementation of what their public code (EasyFL) does, on fixed inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from unisono.core.context import Context
from unisono.core.payload import Payload, Tensors, Update
from unisono.federation.aggregate import Accumulator, AggregationConfig
from unisono.losses.siamese import symmetric_byol_regression
from unisono.methods.fedema import FedEMA
from unisono.methods.momentum_target import MomentumTarget
from unisono.models.nets import get_state, load_state, weight_divergence
from unisono.testing.tiny import tiny_clients, tiny_config, tiny_method

ONLINE = ("encoder", "projector", "predictor")
RATE, DECAY, MOMENTUM = 0.032, 5e-4, 0.99


def make(name: str, **options: Any) -> MomentumTarget:
    over = {"model": {"backbone": "resnet18"}, "method": options, "training": {"batch_size": 9}}
    method = tiny_method(tiny_config(name, over))
    assert isinstance(method, MomentumTarget)
    return method


def client_step(method: MomentumTarget, server: Payload, local: Payload, round: int) -> tuple[Update, Payload]:
    ctx = Context(0, round, "train", 0)
    data = tiny_clients(labels=False).client_data(0, torch.device("cpu"))
    return method.client_step(method.build_networks(), method.broadcast(server, ctx), local, data, ctx)


def naive_step(method: MomentumTarget, start: Payload, targets: dict[str, Tensors], round: int) -> nn.ModuleDict:
    """One step of SGD on the sum of 2 - 2 cos over both directions, then the moving average, parameter by parameter."""
    nets = method.build_networks()
    for name in ONLINE:
        load_state(nets[name], start.groups[name])
    for name, tensors in targets.items():
        load_state(nets[name], tensors)
    nets.train()
    ctx = Context(0, round, "train", 0)
    data = tiny_clients(labels=False).client_data(0, torch.device("cpu"))
    x = data.batch(torch.randperm(len(data), generator=ctx.rng("order")))
    a, b = method.views.pair(x, ctx.rng("views"))
    losses = []
    for first, second in ((a, b), (b, a)):
        p = nets["predictor"](nets["projector"](nets["encoder"](first)))
        t = nets["target_projector"](nets["target_encoder"](second)).detach()
        losses.append(torch.stack([2 - 2 * (u @ v) / (u.norm() * v.norm()) for u, v in zip(p, t, strict=True)]).mean())
    (losses[0] + losses[1]).backward()
    rate = RATE * 0.5 * (1 + math.cos(math.pi * round / 3))
    with torch.no_grad():
        for name in ONLINE:
            for parameter in nets[name].parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * (parameter.grad + DECAY * parameter))
        for name in ("encoder", "projector"):
            for slow, fast in zip(nets[f"target_{name}"].parameters(), nets[name].parameters(), strict=True):
                slow.copy_(MOMENTUM * slow + (1 - MOMENTUM) * fast)
    return nets


def naive_divergence(first: Tensors, second: Tensors) -> float:
    distances = []
    for name, tensor in first.items():
        if "conv" in name and "weight" in name:
            distances.append(
                math.sqrt(
                    sum((x - y) ** 2 for x, y in zip(tensor.flatten().tolist(), second[name].flatten().tolist(), strict=True))
                )
            )
    assert len(distances) == 17, "a ResNet-18 has seventeen, whose shortcuts have another name"
    return sum(distances) / len(distances)


def assert_same(first: Tensors, second: Tensors) -> None:
    for name, tensor in second.items():
        torch.testing.assert_close(first[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_sum_of_both_directions() -> None:
    """cos(p_a, t_b) = 0.6 and cos(p_b, t_a) = 0, so (2 - 1.2) + 2."""
    p_a, t_b = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    p_b, t_a = torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0, 0.0]])
    assert float(symmetric_byol_regression(p_a, p_b, t_a, t_b)) == pytest.approx(2.8)


@pytest.mark.parametrize("name", ["fedu", "fedema"])
def test_one_step(name: str) -> None:
    method = make(name)
    server = method.init_server(Context(0))
    update, local = client_step(method, server, Payload(), 0)
    targets = {f"target_{part}": server.groups[part] for part in ("encoder", "projector")}
    nets = naive_step(method, server, targets, 0)
    for part in ONLINE:
        assert_same(update.payload.groups[part], get_state(nets[part]))
    for part in targets:
        assert_same(local.groups[part], get_state(nets[part]))
    expected = naive_divergence(server.groups["encoder"], get_state(nets["encoder"]))
    assert local.scalars["drift"] == pytest.approx(expected, rel=1e-3)
    assert weight_divergence(server.groups["encoder"], update.payload.groups["encoder"]) == local.scalars["drift"]


@pytest.mark.parametrize("threshold", [0.0, 1e6])
def test_a_second_round_of_fedu(threshold: float) -> None:
    """From the threshold on the client's own predictor, below it the global one; the target is always the client's."""
    method = make("fedu", divergence_threshold=threshold)
    server = method.init_server(Context(0))
    _, local = client_step(method, server, Payload(), 0)
    elsewhere = _moved(server, 0.01)
    update, again = client_step(method, elsewhere, local, 1)
    start = elsewhere.with_groups(predictor=local.groups["predictor"]) if threshold == 0 else elsewhere
    nets = naive_step(method, start, {name: local.groups[name] for name in ("target_encoder", "target_projector")}, 1)
    for part in ONLINE:
        assert_same(update.payload.groups[part], get_state(nets[part]))
    for part in ("target_encoder", "target_projector"):
        assert_same(again.groups[part], get_state(nets[part]))


@pytest.mark.parametrize(
    ("options", "weight"), [({}, 0.7), ({"divergence_scale": 10.0}, None), ({"divergence_scale": 1e6}, 1.0)]
)
def test_a_second_round_of_fedema(options: dict[str, float], weight: float | None) -> None:
    """mu = min(1, lambda d); the autoscaler's lambda = tau / d makes the first mu tau itself."""
    method = make("fedema", **options)
    assert isinstance(method, FedEMA)
    server = method.init_server(Context(0))
    _, local = client_step(method, server, Payload(), 0)
    drift = float(local.scalars["drift"])
    elsewhere = _moved(server, 0.01)
    update, again = client_step(method, elsewhere, local, 1)
    mu = 10.0 * drift if weight is None else weight
    assert 0 < mu <= 1
    assert update.metrics["own_weight"] == pytest.approx(mu)
    assert update.metrics["divergence"] == drift
    mixed = {
        part: {key: mu * local.groups[part][key] + (1 - mu) * tensor for key, tensor in elsewhere.groups[part].items()}
        for part in ONLINE
    }
    nets = naive_step(method, Payload(mixed), {name: local.groups[name] for name in ("target_encoder", "target_projector")}, 1)
    for part in ONLINE:
        assert_same(update.payload.groups[part], get_state(nets[part]))
    scale = 0.7 / drift if not options else options["divergence_scale"]
    assert again.scalars["scale"] == pytest.approx(scale)
    assert again.scalars["drift"] == pytest.approx(naive_divergence(mixed["encoder"], get_state(nets["encoder"])), rel=1e-3)


@pytest.mark.parametrize(("own_weight", "own_statistics"), [(0.3, False), (0.7, True)])
def test_statistics_of_batches_are_not_mixed(own_weight: float, own_statistics: bool) -> None:
    """Those of encoder and projector are the global ones; those of the predictor are of whichever counts for more."""
    config = tiny_config("fedema", {"model": {"norm": "batch"}, "method": {"divergence_scale": 1.0}})
    method = tiny_method(config)
    assert isinstance(method, FedEMA)
    received = _moved(Payload({name: get_state(net) for name, net in method.build_networks().items()}), 1.0)
    local = Payload(_moved(received, 2.0).groups, {"drift": own_weight})
    start = method.start_from(received, local).networks
    for part in ONLINE:
        for key, tensor in start.groups[part].items():
            ours, theirs = local.groups[part][key], received.groups[part][key]
            if not key.endswith(("running_mean", "running_var")):
                torch.testing.assert_close(tensor, own_weight * ours + (1 - own_weight) * theirs)
            else:
                assert torch.equal(tensor, ours if part == "predictor" and own_statistics else theirs)


@pytest.mark.parametrize("name", ["fedu", "fedema"])
def test_means_weigh_clients_by_samples_and_leave_targets_out(name: str) -> None:
    """The server averages what was trained, (9 w_1 + 7 w_2) / 16, statistics of batches too; targets stay with clients."""
    method = tiny_method(tiny_config(name, {"model": {"norm": "batch"}, "training": {"batch_size": 4}}))
    server = method.init_server(Context(0))
    found, updates = Accumulator(method.shares, AggregationConfig()), []
    for client in (0, 1):
        ctx = Context(0, 0, "train", client)
        data = tiny_clients(labels=False).client_data(client, torch.device("cpu"))
        update, _ = method.client_step(method.build_networks(), method.broadcast(server, ctx), Payload(), data, ctx)
        found.add(update)
        updates.append(update)
    assert [update.weight for update in updates] == [9, 7]
    averaged = method.server_step(server, found.finish(server.groups), Context(0, 0, "train"))
    assert set(updates[0].payload.groups) == set(averaged.groups) == set(ONLINE)
    for part in ONLINE:
        first, second = (update.payload.groups[part] for update in updates)
        assert part != "encoder" or any(key.endswith("running_var") for key in first)
        for key, tensor in averaged.groups[part].items():
            torch.testing.assert_close(tensor, (9 * first[key] + 7 * second[key]) / 16, rtol=1e-4, atol=1e-6)


def _moved(server: Payload, by: float) -> Payload:
    return Payload({group: {name: tensor + by for name, tensor in tensors.items()} for group, tensors in server.groups.items()})
