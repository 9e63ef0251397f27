import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unisono.evaluation.finetune import finetune, label_subset


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
    return finetune(net, 16, *train, *test, fraction, torch.Generator().manual_seed(seed), **options)


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
    assert 0 <= finetune(encoder(), 16, *train, *test, 1e-6, generator, epochs=2) <= 1
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
