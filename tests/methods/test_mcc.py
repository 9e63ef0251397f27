from __future__ import annotations

from typing import Any

import torch

from unisono.losses.clustering import assignment_entropy, one_sided_contrast
from unisono.methods.cc import CC
from unisono.methods.local_training import Batch
from unisono.methods.mcc import MCC, ONLINE
from unisono.models.nets import load_state, state_view
from unisono.testing.tiny import tiny_config, tiny_method


def make(**options: Any) -> MCC:
    method = tiny_method(tiny_config("mcc", {"method": options}))
    assert isinstance(method, MCC)
    return method


def batch() -> Batch:
    return Batch(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(6), None)


def test_loss_is_equation_6_but_for_the_sign_of_the_entropies() -> None:
    """Targets that differ from the online networks, in the formula as it is printed; entropies of the online ones only."""
    method = make(contrast="paper")
    nets = method.build_networks()
    other = method.build_networks()
    for name in ONLINE:
        load_state(nets[f"target_{name}"], state_view(other[name]))
    terms = method.loss(nets, batch(), torch.Generator().manual_seed(2))
    views = method.views.pair(batch().x, torch.Generator().manual_seed(2))
    z, c = {}, {}
    for view, x in zip("ab", views, strict=True):
        for network, prefix in (("O", ""), ("T", "target_")):
            h = nets[f"{prefix}encoder"](x)
            z[view + network] = nets[f"{prefix}instance_head"](h)
            c[view + network] = nets[f"{prefix}cluster_head"](h).softmax(dim=1)
    contrasts = (
        one_sided_contrast(z["aO"], z["bT"], 0.5)
        + one_sided_contrast(z["aT"], z["bO"], 0.5)
        + one_sided_contrast(c["aO"].T, c["bT"].T, 1.0)
        + one_sided_contrast(c["aT"].T, c["bO"].T, 1.0)
    )
    expected = 0.5 * contrasts - assignment_entropy(c["aO"]) - assignment_entropy(c["bO"])
    torch.testing.assert_close(terms["loss"], expected)


def test_with_a_target_that_equals_the_online_networks_it_is_contrastive_clustering() -> None:
    method = make()
    cc = tiny_method(tiny_config("cc"))
    assert isinstance(cc, CC)
    nets = method.build_networks()
    terms, expected = (m.loss(nets, batch(), torch.Generator().manual_seed(2)) for m in (method, cc))
    torch.testing.assert_close(terms["loss"], expected["loss"])


def test_no_gradient_reaches_the_target() -> None:
    method = make()
    nets = method.build_networks()
    method.loss(nets, batch(), torch.Generator().manual_seed(2))["loss"].backward()
    for name, parameter in nets.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name


def test_targets_follow_the_online_networks() -> None:
    method = make(ema=0.75)
    nets = method.build_networks()
    with torch.no_grad():
        for name in ONLINE:
            for parameter in nets[name].parameters():
                parameter.add_(1)
    before = {name: nets[f"target_{name}"][-1].bias.clone() for name in ONLINE[1:]}  # type: ignore[index]
    method.update_targets(nets, "train")
    for name, bias in before.items():
        torch.testing.assert_close(nets[f"target_{name}"][-1].bias, bias + 0.25)  # type: ignore[index]
