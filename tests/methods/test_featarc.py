"""FeatARC: views stay near what the global model said of the plain sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.federation.client_turn import prepare_nets
from unisono.losses.contrastive import info_nce
from unisono.methods.featarc import FeatARC
from unisono.methods.local_training import Batch
from unisono.testing.tiny import TinyFederation

CPU = torch.device("cpu")


def test_alignment_by_hand() -> None:
    """-mean <g, out> over both views, all of unit length; the anchor gets no gradient."""
    z_1, z_2, g = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    unit = [F.normalize(part.detach(), dim=1) for part in (z_1, z_2, g)]
    naive = -sum(float(unit[2][i] @ unit[view][i]) for i in range(5) for view in (0, 1)) / 10
    found = FeatARC.alignment(z_1, z_2, g)
    assert float(found.detach()) == pytest.approx(naive)
    found.backward()
    assert g.grad is None
    assert z_1.grad is not None
    assert float(FeatARC.alignment(unit[0], unit[0], 3 * unit[0])) == pytest.approx(-1)


def test_the_sum_of_its_terms() -> None:
    tiny = TinyFederation("featarc", over={"method": {"align_weight": 0.5}, "views": {"preset": "none"}})
    assert isinstance(tiny.method, FeatARC)
    nets, x, anchors = prepare_nets(tiny.method, CPU), torch.rand(4, 1, 8, 8), torch.randn(9, 16)
    positions = torch.tensor([7, 0, 3, 8])
    found = tiny.method._loss(nets, Batch(x, positions, None), torch.Generator(), anchors)["loss"]
    z = nets["projector"](nets["encoder"](x))
    expected = info_nce(z, z, 0.1) - 0.5 * F.cosine_similarity(z, anchors[positions], dim=1).mean()
    torch.testing.assert_close(found, expected)


def test_anchors_are_of_the_received_model_and_the_plain_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TinyFederation("featarc", over={"training": {"local_epochs": 3, "learning_rate": 0.5}})
    assert isinstance(tiny.method, FeatARC)
    server = tiny.method.init_server(Context(0))
    nets, data = prepare_nets(tiny.method, CPU), tiny.clients.client_data(3, CPU)
    for name in tiny.method.shared_networks:
        nets[name].load_state_dict(server.groups[name], strict=False)
    with torch.no_grad():
        expected = nets.eval()["projector"](nets["encoder"](data.batch(torch.arange(len(data)))))
    original, seen = FeatARC._loss, []

    def watched(self: FeatARC, nets: object, batch: Batch, rng: torch.Generator, anchors: torch.Tensor) -> object:
        seen.append(anchors)
        return original(self, nets, batch, rng, anchors)  # type: ignore[arg-type]

    monkeypatch.setattr(FeatARC, "_loss", watched)
    tiny.method.client_step(nets, tiny.method.broadcast(server, Context(0)), Payload(), data, Context(0, 0, "train", 3))
    assert len(seen) > 3
    for anchors in seen:
        torch.testing.assert_close(anchors, expected)
