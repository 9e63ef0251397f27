"""Supervised averaging with hidden labels: the samples without one are as if they were not there."""

from __future__ import annotations

import torch

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.federation.client_turn import FederatedDataset, prepare_nets
from unisono.testing.tiny import SIZES, TinyFederation, tiny_clients


def with_hidden(keep_samples: bool) -> TinyFederation:
    """Every second sample of each client is hidden, or missing altogether."""
    whole = tiny_clients(labels=True)
    assert whole.labels is not None
    split = torch.arange(sum(SIZES)).split(list(SIZES))
    visible = torch.cat([torch.arange(size) % 2 == 0 for size in SIZES])
    if keep_samples:
        return TinyFederation(
            "supervised", clients=FederatedDataset(whole.samples, split, torch.where(visible, whole.labels, -1))
        )
    return TinyFederation(
        "supervised", clients=FederatedDataset(whole.samples, [rows[visible[rows]] for rows in split], whole.labels)
    )


def test_hidden_samples_are_left_aside() -> None:
    updates = []
    for keep_samples in (True, False):
        tiny = with_hidden(keep_samples)
        ctx, nets = Context(0, 0, "train", 3), prepare_nets(tiny.method, torch.device("cpu"))
        received = tiny.method.broadcast(tiny.method.init_server(Context(0)), ctx)
        data = tiny.clients.client_data(3, ctx.device)
        updates.append(tiny.method.client_step(nets, received, Payload(), data, ctx)[0])
    assert to_bytes(updates[0].payload) == to_bytes(updates[1].payload)
    assert updates[0].weight == updates[1].weight == 6
    assert updates[0].metrics == updates[1].metrics


def test_a_federation_without_labels_learns_nothing() -> None:
    whole = tiny_clients(labels=True)
    assert whole.labels is not None
    clients = FederatedDataset(whole.samples, torch.arange(sum(SIZES)).split(list(SIZES)), torch.full_like(whole.labels, -1))
    tiny = TinyFederation("supervised", clients=clients)
    start = tiny.federation.initial_state()
    assert all(torch.equal(tensor, start.server.flatten()[name]) for name, tensor in tiny.run(start, until=1).server.tensors())
