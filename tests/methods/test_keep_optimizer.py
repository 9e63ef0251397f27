"""One optimiser for a whole run, as in centralised training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.federation.loop import Callback
from unisono.methods.cc import CC
from unisono.methods.training_loop import TrainingConfig, batches
from unisono.models.nets import get_state, load_state
from unisono.testing.tiny import TinyFederation, same_bits, tiny_clients, tiny_config, tiny_method

KEPT = {"training": {"keep_optimizer": True, "learning_rate": 0.01}, "cohort": {"size": 1}}


def alone(over: dict[str, Any], **options: Any) -> TinyFederation:
    return TinyFederation("cc", clients=tiny_clients(labels=False, sizes=(9,)), over=over, **options)


def by_hand(method: CC, num_rounds: int) -> nn.ModuleDict:
    """Plain Adam over the batches of all rounds, with one optimiser from the first step to the last."""
    nets = method.build_networks()
    start = method.init_server(Context(0))
    for name in nets:
        load_state(nets[name], start.groups[name])
    nets.train()
    optimizer = torch.optim.Adam(nets.parameters(), lr=0.01)
    data = tiny_clients(labels=False, sizes=(9,)).client_data(0, torch.device("cpu"))
    for round in range(num_rounds):
        ctx = Context(0, round, "train", 0)
        views = ctx.rng("views")
        for batch in batches(data, method.training, ctx.rng("order")):
            if len(batch) >= method.min_batch_size:
                optimizer.zero_grad()
                method.loss(nets, batch, views)["loss"].backward()
                optimizer.step()
    return nets


def test_one_client_with_a_kept_optimiser_is_centralised_training() -> None:
    tiny = alone(KEPT)
    method = tiny.method
    assert isinstance(method, CC)
    state, expected = tiny.run(), by_hand(method, 3)
    for name, net in expected.items():
        for key, tensor in get_state(net).items():
            torch.testing.assert_close(state.server.groups[name][key], tensor, rtol=1e-4, atol=1e-6)
    restarted = alone({**KEPT, "training": {"learning_rate": 0.01}}).run()
    assert not same_bits(state, restarted), "a new Adam in every round goes elsewhere"


def test_its_memory_stays_with_the_client() -> None:
    tiny = alone(KEPT)
    tiny.run()
    memory = tiny.store.get(0).groups["optimizer"]
    steps = 3 * (9 // 4)  # batches of 4, 4 and 1, of which the last is too small
    assert {name.rpartition("#")[2] for name in memory} == {"step", "exp_avg", "exp_avg_sq"}
    assert all(float(value) == steps for name, value in memory.items() if name.endswith("#step"))
    assert "optimizer" not in tiny.method.shares


def test_workers_change_nothing() -> None:
    assert same_bits(alone(KEPT).run(), alone(KEPT, workers=2).run())


def test_it_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Stopped after two of four rounds and resumed, a run ends bit-identical to an undisturbed one."""
    settings = [
        f"run.directory={tmp_path}", "data.dataset=digits", "data.limit=60", "data.test_limit=20", "partition.num_clients=1",
        "partition.scheme=iid", "model.backbone=cfcl-cnn", "training.keep_optimizer=true", "training.batch_size=16",
        "run.checkpoint_every=1", "evaluation.probes=['kmeans']", "report.enabled=false", "engine.device=cpu",
    ]  # fmt: skip
    unisono.run("cc", rounds=4, name="whole", set=settings)
    with pytest.raises(KeyboardInterrupt):
        unisono.run("cc", rounds=4, name="stopped", set=settings, callbacks=[_StopAfter(2)])
    unisono.resume(tmp_path / "stopped")
    names = ("metrics.jsonl", "model/encoder.safetensors")
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


class _StopAfter(Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_start(self, round: int, num_clients: int) -> None:
        if round >= self.rounds:
            raise KeyboardInterrupt


def test_methods_with_steps_of_their_own_refuse_it() -> None:
    with pytest.raises(UserError, match=r"training\.keep_optimizer = true is not possible with fedmcc"):
        tiny_method(tiny_config("fedmcc", {"training": {"keep_optimizer": True}}))


def test_a_schedule_may_be_longer_than_the_run() -> None:
    """A run that stops after 5 of 20 rounds has the learning rates of the first 5; beyond its end the rate is 0."""
    whole = TrainingConfig(learning_rate=1.0, schedule="cosine")
    part = TrainingConfig(learning_rate=1.0, schedule="cosine", schedule_rounds=20)
    for round in range(5):
        assert part.learning_rate_at(round, 5) == whole.learning_rate_at(round, 20)
    assert part.learning_rate_at(20, 40) == part.learning_rate_at(30, 40) == 0
