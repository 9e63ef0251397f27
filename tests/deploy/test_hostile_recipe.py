"""A server that attacks a client by its recipe or its model: what the owner's limits refuse, and what only noise can hide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from tests.attacks import ROOT, attack
from tests.deploy.test_client import SIMPLE, Clients, Run, request
from tests.deploy.test_policy import LOCAL_DP, SECURE, client_with, first_request
from unisono.core.config import merge
from unisono.core.errors import ClientError
from unisono.core.payload import Payload
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger
from unisono.deploy.negotiation import load_client_data
from unisono.deploy.policy_tables import Policy

DEFAULTS = {
    **Policy().model_dump(mode="json"), "require": {**Policy().require.model_dump(mode="json"), "min_samples": 1},
    "log": {"errors": "codes"},
}  # fmt: skip
"""What an owner has who has set nothing but a lower number of samples, for the tests have few."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


def refusal(clients: Clients, tmp_path: Path, tree: dict[str, Any]) -> str:
    """What the server reads from a client with the default policy; nothing was computed, and no answer was counted as sent."""
    client = client_with(clients, tmp_path, DEFAULTS)
    with pytest.raises(ClientError) as caught:
        client.answer(first_request(clients, tree, {}))
    assert all(line["result"] != "sent" for line in Ledger(ClientDirectory.open(tmp_path)).chain.lines)
    return caught.value.reason


def trained(**options: Any) -> dict[str, Any]:
    return merge(SIMPLE, {"training": options})


@attack("A9", "Asks for one step on a batch of one or a few samples", "refused by bounds.min_batch_size, bounds.min_drawn")
@pytest.mark.parametrize(
    ("tree", "key"),
    [(trained(batch_size=2), "min_batch_size"), (trained(batch_size=16, local_steps=1), "min_drawn"),
     (merge(SIMPLE, {"views": {"preset": "none"}}), "plain_views"), (trained(learning_rate=1e-9), "learning_rate")],
)  # fmt: skip
def test_steps_on_few_samples_are_refused(clients: Clients, tmp_path: Path, tree: dict[str, Any], key: str) -> None:
    assert refusal(clients, tmp_path, tree) == f"refused: policy:bounds.{key}"


@attack("A26", "Asks for networks, images or epochs that fill the machine, or for a compiler", "refused by a key of [bounds]")
@pytest.mark.parametrize(
    ("tree", "key"),
    [(trained(local_epochs=51), "max_epochs"), (trained(local_steps=10_001), "max_steps"), (trained(compile=True), "compile"),
     (merge(SIMPLE, {"method": {"projection_dim": 8193}}), "max_head_dim"),
     (merge(SIMPLE, {"data": {"image_size": 513}}), "image_size")],
)  # fmt: skip
def test_recipes_beyond_the_machine_are_refused(clients: Clients, tmp_path: Path, tree: dict[str, Any], key: str) -> None:
    assert refusal(clients, tmp_path, tree) == f"refused: policy:bounds.{key}"


@attack("A22", "Sets the epsilon of noisy centroids so high that there is no noise", "refused above bounds.max_release_epsilon")
def test_noise_that_hides_nothing_is_refused(clients: Clients, tmp_path: Path) -> None:
    tree = merge(LOCAL_DP, {"method": {"epsilon": 1e6}})
    assert refusal(clients, tmp_path, tree) == "refused: policy:bounds.max_release_epsilon"


@attack("A6", "Turns masks off in the recipe", "refused with require.secure_aggregation")
def test_masks_cannot_be_turned_off(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"require": {"secure_aggregation": True}})
    for asked in (client.answer, client.evaluate):
        with pytest.raises(ClientError, match=r"policy:require\.secure_aggregation"):
            asked(request(Run(clients, SIMPLE)))  # type: ignore[operator]


@attack("A25", "Asks under masks for what each client sends as it is", "refused by the client too")
def test_what_is_no_sum_is_refused_under_masks(clients: Clients, tmp_path: Path) -> None:
    tree = merge({**SIMPLE, **SECURE}, {"method": {"name": "fedca"}, "consent": {"allow_raw_representations": True}})
    client = client_with(clients, tmp_path, {"allow": {"reveals": ["parameters", "statistics", "representations"]}})
    with pytest.raises(ClientError, match="hides single clients in a sum, but this method sends representations"):
        client.answer(first_request(clients, {**tree, "method": {"name": "fedca"}}, {}))


# --- a model whose update shows samples

TRAP = {
    "method": {"name": "simclr", "projection_dim": 8},
    "data": {"channels": 1, "image_size": 28},
    "model": {"backbone": "cfcl-cnn", "norm": "group"},
    "views": {"preset": "none"},
    "training": {"batch_size": 64, "local_epochs": 1, "optimizer": "sgd", "learning_rate": 1.0, "weight_decay": 0.0},
    "federation": {"rounds": 2},
}
BINS = torch.linspace(3.2, 4.4, 128)


def trap(broadcast: Payload) -> Payload:
    """A network whose hidden unit i is active for samples brighter than the i-th bin, and that passes 36 pixels on to it."""
    encoder = {name: torch.zeros_like(t) if name.startswith("trunk") else t for name, t in broadcast.groups["encoder"].items()}
    for layer in ("trunk.maps.0", "trunk.maps.2"):
        encoder[f"{layer}.weight"][0, 0, 1, 1] = 1.0
    encoder["trunk.maps.0.bias"][0] = 4.0  # normalised pixels are above -2, so that no ReLU cuts them
    encoder["trunk.linear.0.weight"][:, :36] = 0.01 / 36  # small numbers, so that floats round their changes little
    encoder["trunk.linear.0.bias"] = -0.01 * BINS
    generator = torch.Generator().manual_seed(0)
    encoder["trunk.linear.2.weight"][:] = 5 * torch.randn(64, 1, generator=generator)  # all hidden units have one gradient
    encoder["trunk.linear.2.bias"] = torch.randn(64, generator=generator)
    return broadcast.with_groups(encoder=encoder)


def shown(start: Payload, update: Payload) -> Tensor:
    """What two neighbouring units differ by, shape (127, 36): the pixels of a sample if one lies between their bins."""
    moved = {name: update.groups["encoder"][name] - start.groups["encoder"][name] for name in start.groups["encoder"]}
    weight, bias = moved["trunk.linear.0.weight"][:, :36].diff(dim=0), moved["trunk.linear.0.bias"].diff(dim=0)
    return weight / bias[:, None]


def recognised(clients: Clients, directory: ClientDirectory, own: dict[str, Any], tmp_path: Path) -> int:
    """How many of a client's 40 samples the server can read off its update, every one of 36 pixels within 2 of 255."""
    client = client_with(clients, tmp_path, merge({"bounds": {"plain_views": True}}, own))
    run = Run(clients, TRAP)
    asked = request(run)
    crafted = replace(asked, broadcast=trap(asked.broadcast))
    update = client.answer(crafted).update
    samples = load_client_data(directory, run.config.data).samples[:, 0, 3:27:4, 3:27:4].flatten(1).float()
    pixels = ((shown(crafted.broadcast, update.payload) - 4.0) * 0.25 + 0.5) * 255
    errors = (samples[:, None] - pixels).abs().amax(dim=2).nan_to_num(1e9)
    return int((errors.amin(dim=1) < 2).sum())


@attack("A11", "Sends a crafted model whose update shows samples", "not refused; only the client's own noise hides them")
def test_a_crafted_model_shows_samples_unless_the_client_adds_noise(clients: Clients, tmp_path: Path) -> None:
    found = []
    for noise in (None, 1e-4, 1.0):
        (tmp_path / f"{noise}").mkdir()
        budget = {} if noise is None else {"clip_norm": 1.0, "noise_multiplier": noise}
        found.append(recognised(clients, clients.directories[0], {"budget": budget}, tmp_path / f"{noise}"))
    page = " ".join((ROOT / "docs" / "site-owners.md").read_text().split())
    assert found[1:] == [0, 0]
    assert f"**{found[0]} of 40 samples**" in page, found
    assert "**none** with noise of 0.0001 times the clipping norm" in page
