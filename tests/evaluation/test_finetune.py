import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unisono.evaluation.features import embed
from unisono.evaluation.finetune import FineTuning, finetune, label_subset


def stripes(num_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose class is the bright row."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num_samples,), generator=generator)
    images = torch.randint(0, 80, (num_samples, 1, 3, 4), dtype=torch.uint8, generator=generator)
    images[torch.arange(num_samples), 0, labels] += 150
    return images, labels


def encoder() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))


def tuned(net: nn.Module, seed: int = 0, fraction: float = 0.1, **options: float) -> float:
    train, test = stripes(300, 1), stripes(200, 2)
    return finetune(net, 16, *train, *test, fraction, torch.Generator().manual_seed(seed), FineTuning(**options))


def test_learns_from_a_tenth_of_the_labels():
    assert tuned(encoder()) > 0.95


def test_the_encoder_itself_learns_and_the_given_one_stays():
    """Behind features that say nothing a head alone gives chance; the frozen original keeps weights, flags and no gradient."""
    net = nn.Sequential(encoder(), nn.Linear(16, 16), nn.Sigmoid())
    nn.init.constant_(net[1].weight, 1e-3)
    net.requires_grad_(False).eval()
    before = copy.deepcopy(net.state_dict())
    assert tuned(net, fraction=1.0, epochs=60, learning_rate=0.5) > 0.6
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(parameter.requires_grad for parameter in net.parameters())
    assert not net.training


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_learns_at_any_scale_of_the_features(scale):
    """SGD at 0.05 stays at chance where features are 100 times as large."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16))
    with torch.no_grad():
        net[3].weight.mul_(scale)
    assert tuned(net, fraction=0.2, epochs=200) > 0.9


def test_same_generator_same_number_whatever_the_global_state():
    options = {"epochs": 3, "learning_rate": 0.02}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = tuned(encoder(), **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert tuned(encoder(), **options) == first
    assert len({tuned(encoder(), seed=seed, **options) for seed in range(5)}) > 1


def test_one_label_per_class_and_one_class_only():
    train, test = stripes(300, 1), stripes(200, 2)
    generator = torch.Generator().manual_seed(0)
    assert 0 <= finetune(encoder(), 16, *train, *test, 1e-6, generator, FineTuning(epochs=2)) <= 1
    only = torch.full_like(train[1], 2)
    share = (test[1] == 2).double().mean().item()
    assert finetune(encoder(), 16, train[0], only, *test, 1e-6, generator) == pytest.approx(share)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
)
def test_the_subset_keeps_every_class_in_proportion(labels, fraction, seed):
    labels = torch.tensor(labels)
    part = label_subset(labels, fraction, torch.Generator().manual_seed(seed))
    assert len(part.unique()) == len(part)
    for label in labels.unique():
        expected = max(1, round(fraction * int((labels == label).sum())))
        assert int((labels[part] == label).sum()) == expected


ORCHESTRA = FineTuning(50, 0.05, 256, "sgd", augmented=True)
EASYFL = FineTuning(100, 1e-3, 128, "adam", head_only=True, hidden_dim=64)


def flip(x, generator):
    flipped = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(flipped[:, None, None, None], x.flip(3), x)


@pytest.mark.parametrize(
    "protocol", [ORCHESTRA, replace(ORCHESTRA, head_only=True, learning_rate=30.0), EASYFL], ids=["whole", "head", "easyfl"]
)
def test_the_protocols_of_public_codes_learn(protocol):
    train, test = stripes(300, 1), stripes(200, 2)
    views = flip if protocol.augmented else None
    found = [
        finetune(encoder(), 16, *train, *test, 0.2, torch.Generator().manual_seed(0), protocol, crop_flip=views) for _ in "ab"
    ]
    assert found[0] == found[1] > 0.9


def test_a_head_alone_is_trained_on_an_encoder_whose_statistics_move(monkeypatch):
    """As Orchestra's released code and EasyFL do: weights stay, BatchNorm is in training mode."""
    seen = {}

    def watched(network, samples, device):
        seen.update(network.state_dict())
        return embed(network, samples, device)

    monkeypatch.setattr("unisono.evaluation.finetune.embed", watched)
    net = encoder()
    before = copy.deepcopy(net.state_dict())
    train, test = stripes(60, 1), stripes(20, 2)
    finetune(net, 16, *train, *test, 1.0, torch.Generator().manual_seed(0), replace(EASYFL, epochs=2))
    assert seen["1.0.weight"].shape == (64, 16)
    assert seen["1.3.weight"].shape == (3, 64)
    assert torch.equal(seen["0.1.weight"], before["1.weight"])
    assert not torch.equal(seen["0.2.running_mean"], before["2.running_mean"])
    finetune(net, 16, *train, *test, 1.0, torch.Generator().manual_seed(0), FineTuning(epochs=2))
    assert not torch.equal(seen["0.1.weight"], before["1.weight"])


def test_sgd_follows_a_cosine_to_zero():
    """Against a loop written out: one batch per epoch, so three steps at rates 1, 3/4 and 1/4 of the first."""
    (samples, labels), test = stripes(24, 1), stripes(50, 2)
    net = nn.Flatten()
    protocol = FineTuning(3, 0.5, 64, "sgd")
    accuracy = finetune(net, 12, samples, labels, *test, 1.0, torch.Generator().manual_seed(0), protocol)
    generator = torch.Generator().manual_seed(0)
    label_subset(labels, 1.0, generator)
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        head = nn.Linear(12, 3)
    momentum = [torch.zeros_like(parameter) for parameter in head.parameters()]
    for rate in (0.5, 0.375, 0.125):
        loss = nn.functional.cross_entropy(head(samples.flatten(1) / 255), labels)
        for place, gradient in enumerate(torch.autograd.grad(loss, list(head.parameters()))):
            momentum[place] = 0.9 * momentum[place] + gradient
        with torch.no_grad():
            for parameter, step in zip(head.parameters(), momentum, strict=True):
                parameter.sub_(rate * step)
    expected = (head(test[0].flatten(1) / 255).argmax(1) == test[1]).double().mean().item()
    assert accuracy == pytest.approx(expected)
