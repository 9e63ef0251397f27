from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recorder import Recorder
from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.federation.client_turn import FederatedDataset
from unisono.losses.clustering import assignment_entropy, one_sided_contrast
from unisono.losses.contrastive import nt_xent
from unisono.methods.cc import CC
from unisono.methods.local_training import Batch, LocalTraining
from unisono.testing.tiny import TinyFederation, tiny_config, tiny_method


def make(**options: Any) -> CC:
    method = tiny_method(tiny_config("cc", {"method": options}))
    assert isinstance(method, CC)
    return method


def parts(method: CC) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The terms of a batch, and from the same views the projections and assignments."""
    nets = method.build_networks()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    terms = method.loss(nets, Batch(x, torch.arange(6), None), torch.Generator().manual_seed(2))
    features = [nets["encoder"](view) for view in method.views.pair(x, torch.Generator().manual_seed(2))]
    z_a, z_b = (nets["instance_head"](h) for h in features)
    c_a, c_b = (nets["cluster_head"](h).softmax(dim=1) for h in features)
    return dict(terms), (z_a, z_b), (c_a, c_b)


def test_loss_with_the_standard_contrast() -> None:
    """Half of both directions' sums, that is nt_xent's mean over both, minus the two entropies."""
    terms, (z_a, z_b), (c_a, c_b) = parts(make())
    expected = nt_xent(z_a, z_b, 0.5) + nt_xent(c_a.T, c_b.T, 1.0) - assignment_entropy(c_a) - assignment_entropy(c_b)
    torch.testing.assert_close(terms["loss"], expected)


def test_loss_as_the_paper_prints_it_but_for_the_sign_of_the_entropy() -> None:
    terms, (z_a, z_b), (c_a, c_b) = parts(make(contrast="paper", entropy_weight=2.0))
    halves = one_sided_contrast(z_a, z_b, 0.5) + one_sided_contrast(c_a.T, c_b.T, 1.0)
    torch.testing.assert_close(terms["loss"], 0.5 * halves - 2 * (assignment_entropy(c_a) + assignment_entropy(c_b)))


@pytest.mark.parametrize(("name", "half"), [("cc", 0.5), ("cc", 1.0), ("mcc", 1.0)])
def test_a_batch_of_the_unlabelled_part_has_the_instance_loss_only(name: str, half: float) -> None:
    method = tiny_method(tiny_config(name, {"method": {"contrast": "paper" if half < 1 else "ntxent"}}))
    assert isinstance(method, LocalTraining)
    nets = method.build_networks()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    both, only = (
        method.loss(nets, Batch(x, torch.arange(6), None, instance_only), torch.Generator().manual_seed(2))
        for instance_only in (False, True)
    )
    assert isinstance(both, Mapping)
    assert isinstance(only, Mapping)
    assert set(only) == {"loss", "instance_loss"}
    torch.testing.assert_close(only["instance_loss"], both["instance_loss"])
    torch.testing.assert_close(only["loss"], half * both["instance_loss"])
    only["loss"].backward()
    assert all(parameter.grad is None for parameter in nets["cluster_head"].parameters())


@pytest.mark.parametrize("name", ["cc", "mcc"])
def test_every_epoch_begins_with_a_pass_over_the_unlabelled_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrastive Clustering on STL-10: one pass with the instance loss, then one over the others with both losses."""
    method = tiny_method(tiny_config(name, {"training": {"local_epochs": 2}}))
    assert isinstance(method, LocalTraining)
    seen: list[tuple[bool, list[int]]] = []
    loss = method.loss

    def watched(nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        seen.append((batch.instance_only, batch.positions.tolist()))
        return loss(nets, batch, generator)

    monkeypatch.setattr(method, "loss", watched)
    samples = torch.randint(0, 256, (14, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    data = FederatedDataset(samples, [torch.arange(14)], None, 8).client_data(0, torch.device("cpu"))
    server = method.init_server(Context(0))
    update, _ = method.client_step(method.build_networks(), server, Payload(), data, Context(0, 0, "train", 0))
    assert [only for only, _ in seen] == [True, True, False, False] * 2
    for epoch in (seen[:4], seen[4:]):
        assert sorted(epoch[0][1] + epoch[1][1]) == list(range(8, 14))
        assert sorted(epoch[2][1] + epoch[3][1]) == list(range(8))
    assert seen[:4] != seen[4:]
    assert update.weight == 14
    # Both losses were seen in half of the steps only, and their means are over those.
    assert update.metrics["assignment_entropy"] > 0.5


def test_confidence_is_that_of_the_cluster_head() -> None:
    method = make()
    server = method.init_server(Context(0))
    x = torch.rand(4, 1, 8, 8)
    scores = method.cluster_model(server)(x)
    nets = method.build_networks()
    assert scores.shape == (4, 3)
    nets["cluster_head"].load_state_dict(dict(server.groups["cluster_head"]))
    torch.testing.assert_close(scores, nets["cluster_head"](method.encoder(server)(x)))


@pytest.mark.parametrize("method", ["cc", "mcc", "fedmcc"])
def test_a_collapse_is_noted_once(method: str) -> None:
    """A threshold of 1 is undercut in the first round that trains clusters, and in every round after it."""
    recorder = Recorder()
    over = {"method": {"collapse_threshold": 1.0}, "federation": {"rounds": 5}}
    TinyFederation(method, over=over).run(callbacks=[recorder])
    notes = [(record.round, note) for record in recorder.records for note in record.notes if "collapsing" in note]
    assert len(notes) == 1
    assert notes[0][0] == (4 if method == "fedmcc" else 0)


def test_one_client_is_centralised_training() -> None:
    """The mean over one client is that client's own networks."""
    from unisono.testing.tiny import tiny_clients

    tiny = TinyFederation("cc", clients=tiny_clients(labels=False, sizes=(8,)), over={"cohort": {"size": 1}})
    state = tiny.run(until=1)
    method = tiny.method
    assert isinstance(method, CC)
    start = method.init_server(Context(0))
    ctx = Context(0, 0, "train", 0)
    update, _ = method.client_step(method.build_networks(), start, start, tiny.clients.client_data(0, ctx.device), ctx)
    for name, tensor in update.payload.tensors():
        torch.testing.assert_close(state.server.flatten()[name], tensor, rtol=1e-6, atol=1e-7)
