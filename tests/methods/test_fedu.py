from __future__ import annotations

from typing import Any

import pytest
import torch

from unisono.core.context import Context
from unisono.core.payload import Payload, Tensors, Update
from unisono.methods.fedu import FedU
from unisono.models.nets import weight_divergence
from unisono.testing.tiny import TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(**options: Any) -> FedU:
    method = tiny_method(tiny_config("fedu", {"method": options}))
    assert isinstance(method, FedU)
    return method


def step(method: FedU, server: Payload, local: Payload, client_id: int = 3) -> tuple[Update, Payload]:
    ctx = Context(0, 0, "train", client_id)
    data = tiny_clients(labels=False).client_data(client_id, CPU)
    return method.client_step(method.build_networks(), method.broadcast(server, ctx), local, data, ctx)


def same(first: Tensors, second: Tensors) -> bool:
    return all(torch.allclose(tensor, second[name], rtol=0, atol=1e-20) for name, tensor in first.items())


def moved(server: Payload, by: float) -> Payload:
    """A global model elsewhere."""
    return Payload({group: {name: tensor + by for name, tensor in tensors.items()} for group, tensors in server.groups.items()})


def test_a_client_that_has_not_trained_takes_the_global_model_and_its_copy_as_target() -> None:
    method = make(ema=1.0)
    server = method.init_server(Context(0))
    update, local = step(method, server, Payload())
    assert set(local.groups) == {"predictor", "target_encoder", "target_projector"}
    assert same(local.groups["target_encoder"], server.groups["encoder"])
    assert same(local.groups["target_projector"], server.groups["projector"])
    assert "divergence" not in update.metrics


def test_state_is_what_was_trained() -> None:
    method = make(divergence="global")
    update, local = step(method, method.init_server(Context(0)), Payload())
    assert same(local.groups["encoder"], update.payload.groups["encoder"])
    assert same(local.groups["predictor"], update.payload.groups["predictor"])
    assert not local.scalars


def test_drift_is_how_far_the_encoder_moved_in_training_and_counts_in_the_next_round() -> None:
    method = make()
    server = method.init_server(Context(0))
    update, local = step(method, server, Payload())
    moved_by = weight_divergence(server.groups["encoder"], update.payload.groups["encoder"])
    assert moved_by > 0
    assert local.scalars["drift"] == pytest.approx(moved_by)
    later, again = step(method, moved(server, 0.5), local)
    assert later.metrics["divergence"] == local.scalars["drift"], "where the global model went does not matter"
    assert again.scalars["drift"] != local.scalars["drift"]


@pytest.mark.parametrize(("drift", "own"), [(0.39, False), (0.4, True)])
def test_the_threshold_is_held_against_the_drift(drift: float, own: bool) -> None:
    method = tiny_method(tiny_config("fedu", {"training": {"learning_rate": 1e-30}}))
    assert isinstance(method, FedU)
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    later = moved(first, 0.5)
    update, _ = step(method, later, Payload(local.groups, {"drift": drift}))
    assert update.metrics["personal_predictor"] == float(own)
    assert same(update.payload.groups["predictor"], (local if own else later).groups["predictor"])


@pytest.mark.parametrize(("threshold", "own"), [(0.0, True), (1e6, False)])
def test_the_predictor_stays_at_home_when_the_models_have_drifted_apart(threshold: float, own: bool) -> None:
    """The learning rate is too small to move anything, so what is sent is what was started from."""
    method = tiny_method(
        tiny_config(
            "fedu",
            {"method": {"divergence_threshold": threshold, "divergence": "global"}, "training": {"learning_rate": 1e-30}},
        )
    )
    assert isinstance(method, FedU)
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    later = moved(first, 0.5)
    update, _ = step(method, later, local)
    expected = weight_divergence(later.groups["encoder"], local.groups["encoder"])
    assert update.metrics["divergence"] == pytest.approx(expected)
    assert update.metrics["personal_predictor"] == float(own)
    assert same(update.payload.groups["predictor"], (local if own else later).groups["predictor"])
    assert same(update.payload.groups["encoder"], later.groups["encoder"]), "the encoder is always the global one"


def test_targets_go_on_where_they_were() -> None:
    method = make(ema=1.0)
    first = method.init_server(Context(0))
    _, local = step(method, first, Payload())
    _, again = step(method, moved(first, 0.5), local)
    assert same(again.groups["target_encoder"], local.groups["target_encoder"])


def test_clients_remember_through_rounds_in_which_they_are_not_asked() -> None:
    """With one client of six in a round, everyone has the state of its own last turn, not of the last round."""
    tiny = TinyFederation("fedu", over={"cohort": {"size": 1}, "federation": {"rounds": 6}})
    state = tiny.federation.initial_state()
    remembered: dict[int, Payload] = {}
    for _ in range(6):
        before = {client_id: tiny.store.get(client_id) for client_id in tiny.store}
        state = tiny.federation.run_round(state)
        changed = [client_id for client_id in tiny.store if before.get(client_id) is not tiny.store.get(client_id)]
        assert len(changed) == 1
        remembered[changed[0]] = tiny.store.get(changed[0])
    assert len(remembered) > 1
    for client_id, payload in remembered.items():
        assert same(tiny.store.get(client_id).groups["predictor"], payload.groups["predictor"])
