"""BatchNorm, the default: its statistics are part of the state, and what cannot go with it is refused."""

from __future__ import annotations

import pytest
import torch

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import methods
from unisono.core.payload import Payload
from unisono.federation.client_turn import prepare_nets
from unisono.testing.tiny import SIZES, TinyFederation, tiny_config, tiny_method

ALL = {
    "model": {"backbone": "convnet", "width": 0.25, "norm": "batch"},
    "cohort": {"size": len(SIZES)},
    "federation": {"rounds": 1},
}


def test_statistics_are_averaged_with_the_weights() -> None:
    federation = TinyFederation("simclr", over=ALL)
    method, start = federation.method, federation.start()
    nets, cpu = prepare_nets(method, torch.device("cpu")), torch.device("cpu")
    received = method.broadcast(start.server, Context(0))
    parts = [
        method.client_step(
            nets, received, Payload(), federation.clients.client_data(client, cpu), Context(0, 0, "train", client)
        )[0]
        for client in range(len(SIZES))
    ]
    after = federation.run(start).server
    names = [name for name in after.groups["encoder"] if "running" in name]
    assert len(names) == 4
    total = sum(part.weight for part in parts)
    for name in names:
        mean = sum(part.payload.groups["encoder"][name] * (part.weight / total) for part in parts)
        torch.testing.assert_close(after.groups["encoder"][name], mean)
        assert not torch.equal(after.groups["encoder"][name], start.server.groups["encoder"][name])


@pytest.mark.parametrize("method", [name for name in methods if name != "federated-kmeans"])
def test_a_batch_of_one_is_skipped(method: str) -> None:
    federation = TinyFederation(method, over=ALL)
    assert federation.method.min_batch_size == 2  # type: ignore[attr-defined]
    state = federation.run()  # one client has a single sample, another a last batch of one
    assert all(bool(tensor.isfinite().all()) for _, tensor in state.server.tensors())


@pytest.mark.parametrize("method", ["rotpred", "byol"])
def test_with_groups_a_single_sample_trains(method: str) -> None:
    assert tiny_method(tiny_config(method, {"model": {"norm": "group"}})).min_batch_size == 1  # type: ignore[attr-defined]


def test_micro_batches_are_refused_in_a_sentence() -> None:
    config = tiny_config("simclr", {"model": {"norm": "batch"}, "training": {"micro_batch": 2}})
    with pytest.raises(UserError, match=r'training.micro_batch = 2 .* BatchNorm.*set model.norm = "group"'):
        tiny_method(config)
