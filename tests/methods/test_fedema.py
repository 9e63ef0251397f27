from __future__ import annotations

from typing import Any

import pytest
import torch

from unisono.core.context import Context
from unisono.core.payload import Payload, Tensors, Update
from unisono.methods.fedema import ONLINE, FedEMA
from unisono.models.nets import mix_states, weight_divergence
from unisono.testing.tiny import tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(**options: Any) -> FedEMA:
    """Its learning rate is too small to move anything, so what is sent is what was started from."""
    own = {"divergence": "global", **options}
    method = tiny_method(tiny_config("fedema", {"method": own, "training": {"learning_rate": 1e-30}}))
    assert isinstance(method, FedEMA)
    return method


def step(method: FedEMA, server: Payload, local: Payload) -> tuple[Update, Payload]:
    ctx = Context(0, 0, "train", 3)
    data = tiny_clients(labels=False).client_data(3, CPU)
    return method.client_step(method.build_networks(), method.broadcast(server, ctx), local, data, ctx)


def moved(server: Payload, by: float) -> Payload:
    return Payload({group: {name: tensor + by for name, tensor in tensors.items()} for group, tensors in server.groups.items()})


def assert_same(first: Tensors, second: Tensors) -> None:
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name])


def test_a_client_that_has_not_trained_takes_the_global_model() -> None:
    method = make()
    server = method.init_server(Context(0))
    update, local = step(method, server, Payload())
    for name in ONLINE:
        assert_same(update.payload.groups[name], server.groups[name])
    assert not local.scalars


def test_autoscaler_gives_its_own_model_a_weight_of_tau_first_and_keeps_lambda() -> None:
    """mu = lambda d with lambda = tau / d: 0.7 at the first divergence, 1.0 (cut) at twice that, 0.35 at half of it."""
    method = make()
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    later = moved(first, 0.5)
    update, remembered = step(method, later, local)
    divergence = weight_divergence(later.groups["encoder"], first.groups["encoder"])
    assert remembered.scalars["scale"] == pytest.approx(0.7 / divergence)
    assert update.metrics["own_weight"] == pytest.approx(0.7)
    for name in ONLINE:
        assert_same(update.payload.groups[name], mix_states(first.groups[name], later.groups[name], 0.7))
    known = Payload(local.groups, remembered.scalars)
    for by, expected in ((1.0, 1.0), (0.25, 0.35)):
        update, again = step(method, moved(first, by), known)
        assert update.metrics["own_weight"] == pytest.approx(expected)
        assert again.scalars == remembered.scalars


def test_a_fixed_lambda_is_the_same_for_everyone() -> None:
    method = make(divergence_scale=0.01)
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    update, _ = step(method, moved(first, 0.5), local)
    assert update.metrics["own_weight"] == pytest.approx(0.01 * update.metrics["divergence"])


def test_the_scale_and_the_weight_follow_the_drift() -> None:
    """The first drift of 0.02 makes lambda = 0.7 / 0.02; half of it has half the weight, wherever the global model is."""
    method = make(divergence="drift")
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    for by in (0.5, 3.0):
        update, known = step(method, moved(first, by), Payload(local.groups, {"drift": 0.02}))
        assert update.metrics["divergence"] == 0.02
        assert known.scalars["scale"] == pytest.approx(35.0)
        assert update.metrics["own_weight"] == pytest.approx(0.7)
        update, again = step(method, moved(first, by), Payload(local.groups, {"drift": 0.01, "scale": 35.0}))
        assert update.metrics["own_weight"] == pytest.approx(0.35)
        assert again.scalars["scale"] == 35.0
        assert again.scalars["drift"] == pytest.approx(0.0, abs=1e-12), "nothing moves at this learning rate"


def test_no_divergence_tells_nothing_about_lambda() -> None:
    method = make()
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    update, again = step(method, first, local)
    assert update.metrics["own_weight"] == 0
    assert not again.scalars
