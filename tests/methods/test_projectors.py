"""The space in which each method is scored without labels: its projector's output, or the encoder's features."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unisono.core.client_data import as_float
from unisono.core.method import methods
from unisono.core.payload import Payload
from unisono.models.nets import load_state
from unisono.testing import TinyFederation

PROJECTORS = {
    "byol": "projector",
    "cbafed": None,
    "cc": "instance_head",
    "cfcl": None,
    "featarc": "projector",
    "fedca": "projector",
    "fedema": "projector",
    "federated-kmeans": None,
    "fedmcc": "instance_head",
    "fedu": "projector",
    "mcc": "instance_head",
    "orchestra": "projector",
    "rotpred": "projector",
    "semifed": None,
    "simclr": "projector",
    "simsiam": "projector",
    "specloss": "projector",
    "supervised": None,
}
OPTIONS = {
    "cfcl": ({"loss": "simclr"}, "projector"),
    "orchestra": ({"evaluate": "target"}, "target_projector"),
    "fedmcc": ({"target": "average"}, "instance_head"),
    "simsiam": ({"projector": "two-layer"}, "projector"),
}


def as_expected(tiny: TinyFederation, name: str | None) -> None:
    """The hook gives the network of this name with the server's weights, in eval mode."""
    server = tiny.run(until=1).server  # weights that differ between online and target networks
    projector = tiny.method.projector(server)
    assert (projector is None) == (name is None)
    if projector is None or name is None:
        return
    net = tiny.method.build_networks()[name]
    load_state(net, server.groups[name])
    assert not projector.training
    features = tiny.method.encoder(server)(as_float(tiny.clients.samples[:6]))
    torch.testing.assert_close(projector(features), net.eval()(features))


def test_every_method_is_listed() -> None:
    built_in = {name for name in methods if methods[name].__module__.startswith("unisono.methods.")}
    assert set(PROJECTORS) == built_in


@pytest.mark.parametrize(("method", "name"), PROJECTORS.items())
def test_projector_of_each_method(method: str, name: str | None) -> None:
    as_expected(TinyFederation(method), name)


@pytest.mark.parametrize("method", OPTIONS)
def test_options_decide_about_the_projector(method: str) -> None:
    options, name = OPTIONS[method]
    as_expected(TinyFederation(method, over={"method": options}), name)


def test_a_server_that_sends_no_projector_is_scored_on_features() -> None:
    tiny = TinyFederation("simclr")
    server = tiny.start().server
    assert tiny.method.projector(Payload({"encoder": server.groups["encoder"]})) is None


def test_the_encoder_of_the_projector_is_the_one_that_is_evaluated() -> None:
    """Orchestra's target projector goes with its target encoder."""
    tiny = TinyFederation("orchestra")
    state = tiny.run(until=1)
    model = tiny.method.cluster_model(state.server)
    projector = tiny.method.projector(state.server)
    assert model is not None
    assert projector is not None
    x = as_float(tiny.clients.samples[:6])
    z = nn.functional.normalize(projector(tiny.method.encoder(state.server)(x)), dim=1)
    centroids = state.server.groups["centroids"]["centroids"]
    torch.testing.assert_close(model(x), z @ centroids.T / tiny.method.config.temperature)
