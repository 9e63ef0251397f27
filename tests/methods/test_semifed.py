"""SemiFed: pseudo-labels by the received model, and agreement of two views."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.federation.client_turn import prepare_nets
from unisono.methods.local_training import Batch
from unisono.methods.semifed import SemiFed, consistency, pseudo_labels
from unisono.testing.tiny import TinyFederation

CPU = torch.device("cpu")


def test_pseudo_labels_by_hand() -> None:
    """Odds of e^3, e^4 and 1 against two other classes: 0.91, 0.96 and 1/3."""
    logits = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    assert pseudo_labels(logits, 0.95).tolist() == [-1, 1, -1]
    assert pseudo_labels(logits, 0.9).tolist() == [0, 1, -1]
    assert pseudo_labels(torch.empty(0), 0.9).shape == (0,)


def test_consistency_is_the_divergence_from_the_fixed_first_view() -> None:
    logits_1 = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    logits_2 = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    p, q = logits_1.detach().softmax(dim=1), logits_2.detach().softmax(dim=1)
    naive = sum(float(p[i, c]) * math.log(float(p[i, c]) / float(q[i, c])) for i in range(4) for c in range(3)) / 4
    found = consistency(logits_1, logits_2)
    assert float(found.detach()) == pytest.approx(naive)
    found.backward()
    assert logits_1.grad is None
    assert logits_2.grad is not None
    assert float(consistency(logits_2.detach(), logits_2.detach())) == pytest.approx(0)


def test_the_sum_of_its_terms() -> None:
    weights = {"pseudo_weight": 0.5, "consistency_weight": 2.0}
    tiny = TinyFederation("semifed", over={"method": weights, "views": {"preset": "none"}})
    assert isinstance(tiny.method, SemiFed)
    nets, x = prepare_nets(tiny.method, CPU), torch.rand(5, 1, 8, 8)
    labels, guesses = torch.tensor([2, -1, -1, 0, -1]), torch.tensor([1, 1, -1, 2, 0])
    terms = tiny.method._loss(nets, Batch(x, torch.arange(5), labels), torch.Generator(), guesses)
    logits = nets["label_head"](nets["encoder"](x))
    log_p = F.log_softmax(logits, dim=1)
    # Guesses count where the label is hidden: samples 1 and 4. Both views are the sample itself here.
    expected = -2 * (log_p[0, 2] + log_p[3, 0]) / 2 - 0.5 * 2 * (log_p[1, 1] + log_p[4, 0]) / 2
    torch.testing.assert_close(terms["loss"], expected)
    assert float(terms["pseudo_labelled"]) == pytest.approx(0.4)


def test_the_received_model_guesses_once_at_the_start_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TinyFederation("semifed", over={"method": {"threshold": 0.0}, "training": {"local_epochs": 3}})
    assert isinstance(tiny.method, SemiFed)
    server = tiny.method.init_server(Context(0))
    nets, data = prepare_nets(tiny.method, CPU), tiny.clients.client_data(0, CPU)
    for name in tiny.method.shared_networks:
        nets[name].load_state_dict(server.groups[name], strict=False)
    expected = nets.eval()["label_head"](nets["encoder"](data.batch(torch.arange(len(data))))).argmax(dim=1)
    seen = []
    monkeypatch.setattr(
        SemiFed, "_loss", lambda self, nets, batch, rng, guesses: seen.append(guesses) or {"loss": _some_loss(nets)}
    )
    tiny.method.client_step(nets, tiny.method.broadcast(server, Context(0)), Payload(), data, Context(0, 0, "train", 0))
    assert len(seen) > 3
    assert all(torch.equal(guesses, expected) for guesses in seen)


def _some_loss(nets: torch.nn.ModuleDict) -> torch.Tensor:
    return sum((parameter.square().sum() for parameter in nets.parameters()), torch.zeros(()))
