"""Algorithm 2 against its own words, for every method that compares two views."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.context import Context
from unisono.federation.client_turn import FederatedDataset, prepare_nets
from unisono.losses.contrastive import info_nce, nt_xent, spectral_contrastive
from unisono.losses.siamese import negative_cosine
from unisono.methods.local_training import Batch
from unisono.methods.user_verification import VECTORS
from unisono.testing.tiny import NUM_CLASSES, SIZES, TinyFederation, same_bits, tiny_clients

METHODS = ("simclr", "specloss", "simsiam")
CPU = torch.device("cpu")
LABELS = torch.tensor([1, -1, 0, 1, -1, 2, 0, -1, 1])


def semi_supervised(method: str, over: dict[str, Any] | None = None, **arguments: Any) -> TinyFederation:
    options = {"uv_weight": 0.7, "label_weight": 0.3, **(over or {})}
    if method == "simclr":
        options.setdefault("loss", "info-nce")
    tree = {"method": options, "training": {"batch_size": 6}, "views": {"preset": "none"}, "federation": {"rounds": 2}}
    return TinyFederation(method, over=tree, clients=arguments.pop("clients", half_labelled()), **arguments)


def half_labelled(seed: int = 0) -> FederatedDataset:
    clients = tiny_clients(labels=True)
    assert clients.labels is not None
    hidden = torch.rand(len(clients.labels), generator=torch.Generator().manual_seed(seed)) < 0.5
    return FederatedDataset(
        clients.samples, torch.arange(sum(SIZES)).split(list(SIZES)), torch.where(hidden, -1, clients.labels)
    )


def own_loss(method: str, nets: nn.ModuleDict, h_1: Tensor, h_2: Tensor) -> Tensor:
    """The method's unsupervised loss of some samples alone."""
    z_1, z_2 = nets["projector"](h_1), nets["projector"](h_2)
    if method == "simclr":
        return info_nce(z_1, z_2, 0.1)
    if method == "specloss":
        return spectral_contrastive(z_1, z_2, 1.0)
    return (negative_cosine(nets["predictor"](z_1), z_2) + negative_cosine(nets["predictor"](z_2), z_1)) / 2


def ready(tiny: TinyFederation, client_id: int = 3) -> nn.ModuleDict:
    nets = prepare_nets(tiny.method, CPU)
    if VECTORS in nets:
        nets[VECTORS].load(tiny.method.init_server(Context(0)).groups[VECTORS]["vectors"], client_id)  # type: ignore[operator]
    return nets


def terms_of(tiny: TinyFederation, nets: nn.ModuleDict, x: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    batch = Batch(x, torch.arange(len(x)), labels)
    return dict(tiny.method.loss(nets, batch, torch.Generator()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("uv_labelled", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_sum_of_algorithm_2(method: str, uv_labelled: bool) -> None:
    """L_ul and L_uv of the unlabelled, L_ul within every class, L_y of both views; Eq. 13 verifies the labelled too."""
    tiny = semi_supervised(method, {"uv_labelled": uv_labelled})
    nets = ready(tiny)
    x = torch.rand(len(LABELS), 1, 8, 8)
    found = terms_of(tiny, nets, x, LABELS)
    h = nets["encoder"](x)  # the preset "none" makes both views the sample itself
    unlabelled = LABELS < 0
    expected = own_loss(method, nets, h[unlabelled], h[unlabelled])
    verified = h if uv_labelled else h[unlabelled]
    z = F.normalize(nets["client_projector"](verified), dim=1)
    vectors = nets[VECTORS].vectors
    for row in z @ vectors.T * 3:  # type: ignore[operator]
        expected = expected - 0.7 * 2 * (row[3] - row.logsumexp(dim=0)) / len(z)
    for label in range(NUM_CLASSES):
        members = LABELS.eq(label)
        if int(members.sum()) >= tiny.method.min_batch_size:  # type: ignore[attr-defined]
            expected = expected + 0.3 * own_loss(method, nets, h[members], h[members])
    logits = nets["label_head"](h)
    known = [row for row in range(len(LABELS)) if LABELS[row] >= 0]
    for row in known:
        expected = expected - 0.3 * 2 * F.log_softmax(logits[row], dim=0)[LABELS[row]] / len(known)
    torch.testing.assert_close(found["loss"], expected, atol=1e-5, rtol=1e-5)


def test_all_labelled_or_all_hidden() -> None:
    tiny = semi_supervised("simclr")
    nets, x = ready(tiny), torch.rand(4, 1, 8, 8)
    every = terms_of(tiny, nets, x, torch.tensor([0, 0, 1, 1]))
    assert not {"unsupervised_loss", "uv_loss", "mi_local"} & every.keys()
    none = terms_of(tiny, nets, x, torch.full((4,), -1))
    assert not {"class_loss", "label_loss"} & none.keys()
    plain = terms_of(semi_supervised("simclr", {"label_weight": 0.0}), nets, x, None)
    torch.testing.assert_close(none["loss"], plain["loss"])


def test_one_unlabelled_sample_has_nothing_to_contrast_with() -> None:
    tiny = semi_supervised("simclr", {"uv_weight": 0.0})
    terms = terms_of(tiny, ready(tiny), torch.rand(2, 1, 8, 8), torch.tensor([-1, 2]))
    assert terms.keys() == {"loss", "class_loss", "label_loss"}
    assert float(terms["class_loss"]) == 0
    assert terms["loss"].requires_grad


@pytest.mark.parametrize(("loss", "reference"), [("nt-xent", nt_xent), ("info-nce", info_nce)])
def test_simclr_uses_the_loss_it_is_told(loss: str, reference: Any) -> None:
    tiny = TinyFederation("simclr", over={"method": {"loss": loss, "temperature": 0.3}, "views": {"preset": "none"}})
    nets, x = ready(tiny), torch.rand(5, 1, 8, 8)
    z = nets["projector"](nets["encoder"](x))
    torch.testing.assert_close(terms_of(tiny, nets, x, None)["loss"], reference(z, z, 0.3))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_given_labels_but_needs_none_ignores_them(method: str) -> None:
    tiny = semi_supervised(method, {"label_weight": 0.0})
    assert not tiny.method.needs_labels
    assert "label_head" not in tiny.method.build_networks()
    nets, x = ready(tiny), torch.rand(len(LABELS), 1, 8, 8)
    assert torch.equal(terms_of(tiny, nets, x, LABELS)["loss"], terms_of(tiny, nets, x, None)["loss"])


@pytest.mark.parametrize("method", METHODS)
def test_semi_supervised_runs_are_reproducible_and_use_their_labels(method: str) -> None:
    tiny = semi_supervised(method)
    assert tiny.method.needs_labels
    state = tiny.run()
    assert same_bits(semi_supervised(method, workers=2).run(), state)
    assert not same_bits(semi_supervised(method, clients=half_labelled(1)).run(), state)
    assert all(bool(torch.isfinite(tensor).all()) for _, tensor in state.server.tensors())


def test_the_papers_heads() -> None:
    """Louizos et al., A: h to 2048 to 128 without norm; SimSiam's with GroupNorm, and its predictor 128 to 2048 to 128."""
    heads = {"projection_dim": 128, "hidden_dim": 2048}
    simclr = TinyFederation("simclr", over={"method": {**heads, "projector_norm": False}}).method.build_networks()["projector"]
    assert [type(layer).__name__ for layer in simclr] == ["Linear", "ReLU", "Linear"]  # type: ignore[arg-type]
    over = {"method": {**heads, "projector": "two-layer", "bottleneck_dim": 2048}}
    simsiam = TinyFederation("simsiam", over=over).method.build_networks()
    for name in ("projector", "predictor"):
        assert [type(layer).__name__ for layer in simsiam[name]] == ["Linear", "GroupNorm", "ReLU", "Linear"]  # type: ignore[arg-type]
    assert simsiam["predictor"][0].weight.shape == (2048, 128)  # type: ignore[index]


def test_chance_level_is_the_entropy() -> None:
    """Untrained, a client is recognised about as well as by a guess."""
    tiny = semi_supervised("simclr", {"uv_scale": 0.01})
    terms = terms_of(tiny, ready(tiny), torch.rand(4, 1, 8, 8), torch.full((4,), -1))
    assert float(terms["uv_loss"].detach()) == pytest.approx(2 * math.log(len(SIZES)), abs=0.1)
