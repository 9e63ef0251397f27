from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.payload import Payload, Reveals
from unisono.federation.declared import ConsentConfig, check_consent
from unisono.losses.contrastive import nt_xent
from unisono.methods.fedca import FedCA
from unisono.methods.local_training import Batch
from unisono.testing.tiny import SIZES, TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


def make(**options: Any) -> FedCA:
    method = tiny_method(tiny_config("fedca", {"method": options}))
    assert isinstance(method, FedCA)
    return method


@pytest.fixture
def public(tmp_path: Path) -> str:
    values = np.random.default_rng(0).integers(0, 256, (10, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", x=values)
    return str(tmp_path / "public.npz")


def test_it_is_refused_without_consent() -> None:
    method = make()
    assert method.shares["representations"].reveals is Reveals.REPRESENTATIONS
    with pytest.raises(UserError, match="allow_raw_representations = true"):
        check_consent(method.shares, ConsentConfig())
    check_consent(method.shares, ConsentConfig(allow_raw_representations=True))


def test_the_dictionary_is_what_the_clients_of_the_round_sent() -> None:
    tiny = TinyFederation("fedca", over={"method": {"dictionary_size": 3}, "cohort": {"size": len(SIZES)}})
    dictionary = tiny.run(until=1).server.groups["dictionary"]["z"]
    assert dictionary.shape == (sum(min(size, 3) for size in SIZES), 16)
    torch.testing.assert_close(dictionary.norm(dim=1), torch.ones(len(dictionary)))


def test_representations_are_those_of_the_trained_model() -> None:
    method = make()
    server = method.init_server(Context(0))
    ctx = Context(0, 0, "train", 1)
    data = tiny_clients(labels=False).client_data(1, CPU)
    nets = method.build_networks()
    update, _ = method.client_step(nets, method.broadcast(server, ctx), Payload(), data, ctx)
    order = torch.randperm(len(data), generator=ctx.rng("dictionary"))
    with torch.no_grad():
        expected = F.normalize(nets["projector"](nets["encoder"](data.batch(order))), dim=1)
    torch.testing.assert_close(update.payload.groups["representations"]["z"], expected)


def test_loss_with_a_dictionary_and_alignment() -> None:
    method = make(alignment_weight=0.5)
    nets = method.build_networks()
    generator = torch.Generator().manual_seed(0)
    x, negatives = torch.rand(5, 1, 8, 8, generator=generator), torch.randn(7, 16, generator=generator)
    samples = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8, generator=generator)
    public = {"samples": samples, "targets": torch.eye(3, 16)}
    terms = method.loss(nets, Batch(x, torch.arange(5), None), torch.Generator().manual_seed(2), negatives, public)
    generator = torch.Generator().manual_seed(2)
    z_a, z_b = (nets["projector"](nets["encoder"](view)) for view in method.views.pair(x, generator))
    rows = torch.randint(3, (5,), generator=generator)
    distance = 0.0
    for row in rows.tolist():
        z = F.normalize(nets["projector"](nets["encoder"](public["samples"][[row]] / 255)), dim=1)[0].detach()
        distance += float((z - public["targets"][row]).square().sum()) / 5
    assert terms["alignment"].item() == pytest.approx(distance, rel=1e-5)
    torch.testing.assert_close(terms["loss"], nt_xent(z_a, z_b, 0.5, negatives) + 0.5 * terms["alignment"])


def test_alignment_goes_to_a_model_of_the_public_samples(public: str) -> None:
    tiny = TinyFederation("fedca", over={"method": {"alignment_data": public, "alignment_rounds": 2}})
    server = tiny.federation.initial_state().server
    assert server.groups["alignment"]["samples"].shape == (10, 1, 8, 8)
    assert server.groups["alignment"]["targets"].shape == (10, 16)
    untrained = make().init_server(Context(0))
    assert all(torch.equal(tensor, untrained.groups["encoder"][name]) for name, tensor in server.groups["encoder"].items())
    assert "alignment" in tiny.run(until=1).server.groups


def test_public_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x=np.zeros((4, 6, 6), dtype=np.uint8))
    with pytest.raises(UserError, match=r"method\.alignment_data .* shape \(1, 6, 6\)"):
        make(alignment_data=str(tmp_path / "public.npz")).init_server(Context(0))
    with pytest.raises(UserError, match=r"nowhere\.npz"):
        make(alignment_data=str(tmp_path / "nowhere.npz")).init_server(Context(0))
