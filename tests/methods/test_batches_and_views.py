"""Which samples are in a batch, and which rows BatchNorm sees together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.federation.client_turn import prepare_nets
from unisono.losses.contrastive import spectral_contrastive
from unisono.methods.local_training import Batch, LocalTraining
from unisono.methods.training_loop import TrainingConfig, batches, train_locally
from unisono.models.first_statistics import random_samples, set_first_statistics
from unisono.models.nets import build_seeded, get_state
from unisono.testing.tiny import tiny_clients, tiny_config, tiny_method

TWO_VIEWS = ("simclr", "specloss", "simsiam", "byol", "fedu", "fedema", "fedca", "cc", "mcc", "fedmcc", "cfcl")
CPU = torch.device("cpu")


def blank_images(number: int) -> ClientData:
    return ClientData(torch.zeros(number, 1, 2, 2, dtype=torch.uint8), torch.arange(number))


@pytest.mark.parametrize(
    ("number", "drop_last", "expected"),
    [
        (500, True, [16] * 31),
        (500, False, [16] * 31 + [4]),
        (48, True, [16] * 3),
        (9, True, [9]),  # fewer samples than a batch: all of them in one
        (16, True, [16]),
        (0, True, []),
    ],
)
def test_the_last_batch_is_dropped_unless_it_is_the_only_one(number: int, drop_last: bool, expected: list[int]) -> None:
    training = TrainingConfig(batch_size=16, local_epochs=2, drop_last=drop_last)
    found = [batch.positions for batch in batches(blank_images(number), training, torch.Generator().manual_seed(0))]
    assert [len(positions) for positions in found] == expected * 2
    for positions in (torch.cat(found[: len(expected)]) if expected else torch.empty(0), *found):
        assert len(positions.unique()) == len(positions)
    steps = TrainingConfig(batch_size=16, local_steps=5, drop_last=drop_last)
    assert len(list(batches(blank_images(number), steps, torch.Generator()))) == (5 if number else 0)


def test_before_and_after_a_step() -> None:
    """What is called before a step is seen by its loss, what is called after it sees the new weights."""
    weight, seen = nn.Parameter(torch.tensor(1.0)), []

    def loss(batch: Batch, generator: torch.Generator) -> Tensor:
        seen.append(("loss", weight.item()))
        return weight * 1.0

    train_locally(
        [weight],
        loss,
        blank_images(4),
        TrainingConfig(batch_size=2, momentum=0.0, weight_decay=0.0),
        Context(0),
        learning_rate=0.5,
        before_step=lambda: seen.append(("before", weight.item())),
        after_step=lambda: seen.append(("after", weight.item())),
    )
    assert seen == [("before", 1.0), ("loss", 1.0), ("after", 0.5), ("before", 0.5), ("loss", 0.5), ("after", 0.0)]


def method_of(name: str, separate: bool, norm: str = "batch", **options: Any) -> LocalTraining:
    own = {"loss": "simclr"} if name == "cfcl" else {}
    model = {"backbone": "convnet", "width": 0.25, "norm": norm}
    config = tiny_config(name, {"method": {**own, **options}, "model": model, "training": {"separate_views": separate}})
    method = tiny_method(config)
    assert isinstance(method, LocalTraining)
    return method


class Spy(nn.Module):
    """The same network, which writes down the rows of every pass."""

    def __init__(self, net: nn.Module, rows: list[int]) -> None:
        super().__init__()
        self.net, self.rows = net, rows

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        output: Tensor = self.net(x)
        return output


def passes(method: LocalTraining) -> dict[str, list[int]]:
    """The rows of every pass through an encoder, for a batch of five samples."""
    nets = build_seeded(method.build_networks, 0).train()
    rows: dict[str, list[int]] = {name: [] for name in nets if name.endswith("encoder")}
    for name, seen in rows.items():
        nets[name] = Spy(nets[name], seen)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    method.loss(nets, Batch(x, torch.arange(5), None), torch.Generator().manual_seed(0))
    return rows


@pytest.mark.parametrize("name", TWO_VIEWS)
def test_batch_norm_sees_one_view_at_a_time(name: str) -> None:
    assert set(map(tuple, passes(method_of(name, separate=True)).values())) == {(5, 5)}
    assert set(map(tuple, passes(method_of(name, separate=False)).values())) == {(10,)}
    assert set(map(tuple, passes(method_of(name, separate=True, norm="group")).values())) == {(10,)}


def test_separate_passes_by_hand() -> None:
    """Each view is normalised by its own mean and variance, and the statistics follow the first view, then the second."""
    method = method_of("simclr", separate=True)
    net, views = nn.BatchNorm1d(1, affine=False), torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    torch.testing.assert_close(method.pass_views(net, views), torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]), atol=1e-4, rtol=0)
    assert net.running_mean is not None
    assert net.running_mean.item() == pytest.approx(0.9 * 0.1 * 1 + 0.1 * 12)
    torch.testing.assert_close(method.pass_views(net.eval(), views), net(views))


def test_spectral_loss_on_cosines_of_scores() -> None:
    """-2 mean cos(s_i, s'_i) + mean over i != j of cos(s_i, s'_j)^2 with s = W z / |z| + b."""
    method = method_of("specloss", separate=True, num_scores=3, last_norm=True)
    nets = prepare_nets(method, CPU).train()
    assert "score_head" in method.shared_networks
    z_1, z_2 = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
    weight, bias = nets["score_head"].weight, nets["score_head"].bias
    scores = [[weight @ (row / row.norm()) + bias for row in z] for z in (z_1, z_2)]
    cosines = torch.stack([torch.stack([a @ b / (a.norm() * b.norm()) for b in scores[1]]) for a in scores[0]])
    expected = -2 * cosines.diagonal().mean() + (cosines.square().sum() - cosines.diagonal().square().sum()) / 12
    found = method.contrast(*method.compared(nets, torch.cat((z_1, z_2))).chunk(2))  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected)
    plain = method_of("specloss", separate=True, mu=0.5)
    torch.testing.assert_close(plain.contrast(z_1, z_2), spectral_contrastive(z_1, z_2, 0.5))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["simclr", "specloss", "rotpred", "orchestra"])
def test_the_last_norm_has_neither_scale_nor_shift(name: str) -> None:
    with_norm, without = (method_of(name, True, last_norm=last).build_networks()["projector"] for last in (True, False))
    *_, linear, norm = with_norm
    assert isinstance(norm, nn.BatchNorm1d)
    assert (norm.affine, linear.bias) == (False, None)
    assert isinstance(without[-1], nn.Linear)


def test_first_statistics_are_those_of_random_samples() -> None:
    """Layers that have seen no batch get them, others stay; afterwards eval mode gives what train mode gave."""
    method = method_of("orchestra", True)
    samples = random_samples(64, method.info, torch.Generator().manual_seed(0))
    assert samples.shape == (64, *method.info.input_shape)
    assert 0 <= float(samples.min()) < float(samples.max()) <= 1
    nets = build_seeded(method.build_networks, 0)
    net = nn.Sequential(nets["target_encoder"], nets["target_projector"]).train()
    set_first_statistics(net, samples)
    assert net.training
    with torch.no_grad():
        first = net.eval()(samples)
        assert float(first.mean(dim=0).abs().max()) < 0.05, "up to the bias of variances, the mean is theirs"
    state = get_state(net)
    set_first_statistics(net, 1 - samples)
    assert all(torch.equal(tensor, state[name]) for name, tensor in get_state(net).items())


def test_first_statistics_spread_what_local_dp_clusters() -> None:
    """With a mean of 0 and a variance of 1 random networks send all samples the same way."""
    method = method_of("orchestra", True, projection_dim=64)
    x = tiny_clients(labels=False).samples.float() / 255

    def mean_cosine(net: nn.Module) -> float:
        with torch.no_grad():
            z = torch.nn.functional.normalize(net.eval()(x), dim=1)
        return float((z @ z.T).mean())

    nets = build_seeded(method.build_networks, 0)
    net = nn.Sequential(nets["target_encoder"], nets["target_projector"])
    before = mean_cosine(net)
    set_first_statistics(net, random_samples(256, method.info, torch.Generator().manual_seed(0)))
    assert mean_cosine(net) < before - 0.05
