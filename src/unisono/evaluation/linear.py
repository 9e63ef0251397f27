"""Linear probes: how well a linear classifier on frozen features predicts the labels.

``linear_probe`` fits multinomial logistic regression to convergence, so that its number depends on the features alone.
``fit_linear_sgd`` is the papers' recipe: a linear layer trained for a fixed number of SGD steps (1000 in Wagle et al.,
"Embedding Alignment for Unsupervised Federated Learning via Smart Data Exchange"), with the optimiser of Chen et al.,
"A Simple Framework for Contrastive Learning of Visual Representations" (2020, B.6): Nesterov momentum 0.9, learning rate
0.1 x batch size / 256, no weight decay. The papers name no schedule; the learning rate falls to 0 along a cosine, without
which the last step's noise decides (on features of an untrained network 15% instead of 41%).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from unisono.core.threads import threads

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearClassifier:
    """Scores are ``x @ weight + bias``; the prediction is the class of the highest one.

    Args:
        weight: shape (feature_dim, num_classes).
        bias: shape (num_classes,).
        classes: the labels the columns stand for, sorted, shape (num_classes,).
    """

    weight: Tensor
    bias: Tensor
    classes: Tensor

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Return the share of right predictions; a label that is none of ``classes`` is never right."""
        return (self.classes[(x @ self.weight + self.bias).argmax(dim=1)] == y).double().mean().item()


def linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, l2: float = 0.01, tolerance: float = 1e-4
) -> float:
    """Return the test accuracy of logistic regression fitted to convergence on features standardised by the training split.

    Args:
        train_x: features, shape (num_train, feature_dim).
        train_y: labels, shape (num_train,); a class may be missing.
        test_x: features, shape (num_test, feature_dim).
        test_y: labels, shape (num_test,).
        l2: weight of ``|W|^2 / 2`` beside the mean cross-entropy.
        tolerance: as for ``fit_logistic_regression``.
    """
    mean, std = train_x.mean(dim=0), train_x.std(dim=0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return fit_logistic_regression((train_x - mean) / std, train_y, l2, tolerance).accuracy((test_x - mean) / std, test_y)


def fit_logistic_regression(
    x: Tensor, y: Tensor, l2: float = 0.01, tolerance: float = 1e-4, max_iterations: int = 1000
) -> LinearClassifier:
    """Return the classifier that minimises mean cross-entropy + l2 / 2 |W|^2, by preconditioned L-BFGS.

    With ``w = P v`` and ``P P' = (X'X / (n K) + l2 I)^-1``, the inverse of the Hessian at ``w = 0`` but for the coupling of
    classes, L-BFGS needs 15 to 100 iterations where the plain variables need 40 to 300; the optimum is the same. Features that
    outnumber the samples are first turned into as many as there are samples: the optimum lies in the span of the samples.

    Args:
        x: features, shape (num_samples, feature_dim), best centred and of unit variance.
        y: labels, shape (num_samples,).
        l2: weight of the penalty; the bias is free.
        tolerance: the fit ends where no entry of the gradient with respect to ``v`` is larger.
        max_iterations: where it ends otherwise.
    """
    from scipy.linalg import lapack
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    classes, targets = torch.unique(y, return_inverse=True)
    num_samples, num_classes = len(x), len(classes)
    features, one_hot = x.float().numpy(), F.one_hot(targets, num_classes).float().numpy()
    # One thread: bit-identical on every machine, and no pool of threads woken some thousand times for a millisecond each.
    with threadpool_limits(1):
        basis = np.linalg.qr(features.T)[0] if num_samples < x.shape[1] else None
        inputs = features if basis is None else features @ basis
        hessian = inputs.T @ inputs / np.float32(num_samples * num_classes)
        hessian.ravel()[:: len(hessian) + 1] += np.float32(l2)
        preconditioner = np.ascontiguousarray(lapack.strtri(np.linalg.cholesky(hessian), lower=1)[0].T)
        bias_scale = np.float32(num_classes**0.5)

        def objective(flat: Array) -> tuple[float, Array]:
            v = flat.reshape(-1, num_classes).astype(np.float32)
            w = preconditioner @ v[:-1]
            scores = inputs @ w + bias_scale * v[-1]
            scores -= scores.max(axis=1, keepdims=True)
            p = np.exp(scores)
            sums = p.sum(axis=1, keepdims=True)
            loss = np.mean(np.log(sums[:, 0]) - (scores * one_hot).sum(axis=1), dtype=np.float64)
            p /= sums
            p -= one_hot
            by_weight = preconditioner.T @ (inputs.T @ p / np.float32(num_samples) + np.float32(l2) * w)
            gradient = np.vstack([by_weight, bias_scale * p.mean(axis=0)]).astype(np.float64)
            return float(loss + l2 * np.square(w, dtype=np.float64).sum() / 2), gradient.ravel()

        start = np.zeros((inputs.shape[1] + 1) * num_classes)
        options = {"gtol": tolerance, "ftol": 1e-12, "maxiter": max_iterations}
        result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        v = result.x.reshape(-1, num_classes).astype(np.float32)
        weight, bias = preconditioner @ v[:-1], bias_scale * v[-1]
        weight = weight if basis is None else basis @ weight
    return LinearClassifier(torch.from_numpy(weight), torch.from_numpy(bias), classes)


@threads(1)
def fit_linear_sgd(
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    num_steps: int = 1000,
    batch_size: int = 256,
    learning_rate: float = 0.1,
    start: LinearClassifier | None = None,
) -> LinearClassifier:
    """Return a linear layer after so many steps of SGD with Nesterov momentum on the cross-entropy.

    Args:
        x: features, shape (num_samples, feature_dim).
        y: labels, shape (num_samples,).
        generator: draws the batches.
        num_steps: steps of SGD.
        batch_size: samples per step.
        learning_rate: of the first step; it falls to 0 along a cosine.
        start: where to begin, zero if None. Louizos et al., "A Mutual Information Perspective on Federated Contrastive
            Learning" (2024): "we initialize the LP from the final parameters of the previous evaluation".
    """
    classes, targets = torch.unique(y, return_inverse=True)
    if start is None:
        start = LinearClassifier(x.new_zeros(x.shape[1], len(classes)), x.new_zeros(len(classes)), classes)
    elif not torch.equal(start.classes, classes):
        raise ValueError(f"a warm start needs the same classes, got {start.classes.tolist()} and now {classes.tolist()}")
    weight, bias = start.weight.clone().requires_grad_(), start.bias.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight, bias], lr=learning_rate, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for batch in islice(random_batches(len(x), batch_size, generator), num_steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(x[batch] @ weight + bias, targets[batch])
        loss.backward()
        optimizer.step()
        schedule.step()
    return LinearClassifier(weight.detach(), bias.detach(), classes)


def random_batches(num_samples: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield positions, reshuffled after every pass, without end."""
    while True:
        yield from torch.randperm(num_samples, generator=generator).split(batch_size)
