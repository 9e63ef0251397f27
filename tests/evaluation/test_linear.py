import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from unisono.evaluation.linear import (
    LinearClassifier,
    fit_linear_sgd,
    fit_logistic_regression,
    linear_probe,
)


def probe_by_sgd(train_x, train_y, test_x, test_y, generator, **options):
    return fit_linear_sgd(train_x, train_y, generator, **options).accuracy(test_x, test_y)


def blobs(num_samples: int, num_classes: int = 4, dim: int = 12, spread: float = 1.0, seed: int = 0):
    """Overlapping classes in ill-conditioned, shifted coordinates, as backbone features are."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(99))
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(98)) * torch.logspace(0, -2, dim)
    y = torch.randint(num_classes, (num_samples,), generator=generator)
    x = (centers[y] + spread * torch.randn(num_samples, dim, generator=generator)) @ mixing + 3
    return x, y


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("num_samples", [600, 11])
@pytest.mark.parametrize("l2", [1e-1, 1e-2, 1e-3])
def test_fit_is_the_optimum_that_a_long_fit_finds(l2, num_samples):
    x, y = blobs(num_samples, spread=1.5)
    y[:4] = torch.arange(4)  # no class is missing
    x = (x - x.mean(0)) / x.std(0)
    long = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=20_000).fit(x.double().numpy(), y.numpy())

    def objective(weight: np.ndarray, bias: np.ndarray) -> float:
        scores = x.double().numpy() @ weight + bias
        return np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]) + l2 / 2 * np.sum(weight**2)

    fitted = fit_logistic_regression(x, y, l2)
    excess = objective(fitted.weight.double().numpy(), fitted.bias.double().numpy()) - objective(long.coef_.T, long.intercept_)
    assert abs(excess) < (2e-6 if num_samples > 100 else 1e-5)
    test_x, _ = blobs(2000, spread=1.5, seed=5)
    test_x = (test_x - test_x.mean(0)) / test_x.std(0)
    predictions = (test_x @ fitted.weight + fitted.bias).argmax(1).numpy()
    assert np.mean(predictions == long.predict(test_x.double().numpy())) > 0.99


def test_separable_classes_are_told_apart():
    train, test = blobs(200, spread=0.05), blobs(300, spread=0.05, seed=1)
    assert linear_probe(*train, *test) == 1.0
    assert probe_by_sgd(*train, *test, generator()) == 1.0


def test_random_labels_give_about_chance():
    x, _ = blobs(2000)
    labels = torch.randint(4, (2000,), generator=generator())
    splits = (x[:1000], labels[:1000], x[1000:], labels[1000:])
    assert abs(linear_probe(*splits) - 0.25) < 0.06
    assert abs(probe_by_sgd(*splits, generator()) - 0.25) < 0.06


def test_scale_and_shift_of_a_feature_do_not_matter():
    (x, y), (test_x, test_y) = blobs(300), blobs(300, seed=1)
    factor, offset = torch.logspace(-2, 2, 12), torch.linspace(-5, 5, 12)
    moved = linear_probe(x * factor + offset, y, test_x * factor + offset, test_y)
    assert moved == pytest.approx(linear_probe(x, y, test_x, test_y), abs=0.005)


def test_repeated_calls_agree_to_the_bit():
    x, y = blobs(300)
    first, second = fit_logistic_regression(x, y), fit_logistic_regression(x, y)
    assert torch.equal(first.weight, second.weight)
    first, second = (fit_linear_sgd(x, y, generator(), num_steps=20) for _ in range(2))
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("probe", [linear_probe, lambda *splits: probe_by_sgd(*splits, generator(), num_steps=200)])
def test_a_class_that_training_never_saw_is_never_right(probe):
    (x, y), (test_x, test_y) = blobs(400, spread=0.05), blobs(400, spread=0.05, seed=1)
    seen = y != 2
    assert probe(x[seen], y[seen], test_x, test_y) == pytest.approx((test_y != 2).double().mean().item())


def test_one_class_is_predicted_everywhere():
    x, y = blobs(20)
    assert linear_probe(x, torch.full_like(y, 7), x, torch.tensor([7] * 15 + [8] * 5)) == 0.75


def test_constant_features_and_more_features_than_samples():
    x, y = blobs(8, num_classes=2)
    x = torch.cat([x, torch.ones(8, 50)], dim=1)
    assert linear_probe(x, y, x, y) == 1.0


def test_sgd_takes_the_step_of_nesterov_momentum():
    """The gradient at zero is (1/2 - 1) x for the own class of two, and Nesterov's first step is lr (1 + 0.9) gradient."""
    x, y = torch.tensor([[2.0, -1.0]]), torch.tensor([1])
    start = LinearClassifier(torch.zeros(2, 2), torch.zeros(2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="same classes"):
        fit_linear_sgd(x, y, generator(), num_steps=1, start=start)
    x, y = x.repeat(2, 1), torch.tensor([0, 1])
    fitted = fit_linear_sgd(x * torch.tensor([[1.0], [-1.0]]), y, generator(), num_steps=1, learning_rate=0.1)
    expected = 0.1 * 1.9 * 0.5 * x[0]
    torch.testing.assert_close(fitted.weight, torch.stack([expected, -expected], dim=1))


def test_a_warm_start_goes_on_where_the_last_fit_ended():
    x, y = blobs(400)
    test_x, test_y = blobs(400, seed=1)
    warm = fit_linear_sgd(x, y, generator(), num_steps=500)
    before = warm.weight.clone()
    one_step = {"generator": generator(), "num_steps": 1, "learning_rate": 1e-4}
    assert probe_by_sgd(x, y, test_x, test_y, **one_step, start=warm) == pytest.approx(warm.accuracy(test_x, test_y), abs=0.01)
    assert warm.accuracy(test_x, test_y) > probe_by_sgd(x, y, test_x, test_y, **one_step) + 0.05
    assert torch.equal(warm.weight, before)
