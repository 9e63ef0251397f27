import pytest
import torch
from torch import nn

from unisono.core.errors import UserError
from unisono.evaluation.features import assign, embed


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (11, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def encoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Dropout(0.5))


def test_features_are_those_of_eval_mode_on_scaled_images(encoder, images):
    encoder[1].running_mean.fill_(0.25)
    expected = (images.flatten(1).float() / 255 - 0.25) / (1 + encoder[1].eps) ** 0.5
    features = embed(encoder, images, batch_size=4)
    torch.testing.assert_close(features, expected)
    assert features.dtype == torch.float32


def test_batch_size_does_not_matter_and_every_batch_is_told(encoder, images):
    told = []
    small = embed(encoder, images, batch_size=4, on_batch=told.append)
    torch.testing.assert_close(small, embed(encoder, images, batch_size=100))
    assert told == [4, 4, 3]


def test_every_training_flag_and_buffer_is_as_before(encoder, images):
    encoder.train()
    encoder[1].eval()
    mean = encoder[1].running_mean.clone()
    embed(encoder, images)
    assert [part.training for part in encoder.modules()] == [True, True, False, True]
    assert torch.equal(encoder[1].running_mean, mean)


def test_training_flags_are_restored_after_a_failure(images):
    encoder = nn.Linear(1, 1)
    with pytest.raises(RuntimeError):
        embed(encoder, images)
    assert encoder.training


def test_a_probe_may_train_on_features(encoder, images):
    weight = torch.zeros(48, requires_grad=True)
    (embed(encoder, images) @ weight).sum().backward()
    assert weight.grad is not None


def test_half_precision_and_series_come_back_as_float32():
    series = torch.randn(5, 2, 7, generator=torch.Generator().manual_seed(0))

    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=2).bfloat16()

    features = embed(Halved(), series)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, series.mean(dim=2), atol=1e-2, rtol=1e-2)


def test_no_samples_is_the_users_mistake(encoder):
    with pytest.raises(UserError, match="no samples"):
        embed(encoder, torch.empty(0, 3, 4, 4))


def test_clusters_are_the_highest_scores():
    scores = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
    clusters, num_clusters = assign(nn.Identity(), scores, batch_size=2)
    assert clusters.tolist() == [1, 0, 2]
    assert num_clusters == 3
