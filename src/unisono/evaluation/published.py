"""Linear probes as the papers' public codes run them.

- ``linear_probe_orchestra``: Orchestra's code trains a linear layer on the raw features of cropped and flipped images for 50
  epochs, by SGD at a rate of 30 that falls to 0 along a cosine.
- ``fit_linear_adam``: EasyFL's code (FedU, FedEMA) trains it by Adam at 0.003 on plain features for 200 epochs in batches of
  2,048. Wagle et al. (CF-CL) write "1000 SGD iterations" and mean Adam at 0.0001 everywhere else, so that is a reading too.

All layers begin at zero, where the codes draw small random weights; the loss is convex.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.client_data import as_float
from unisono.core.threads import threads
from unisono.evaluation.linear import LinearClassifier, random_batches

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Float samples to random views of them."""


def linear_probe_orchestra(
    encode: Callable[[Tensor], Tensor],
    train_samples: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    crop_flip: Augment,
    generator: torch.Generator,
    epochs: int = 50,
    batch_size: int = 256,
    learning_rate: float = 30.0,
) -> float:
    """Return the test accuracy of a linear layer after the last epoch.

    The code goes through CIFAR's files in their order, which is random, in every epoch; here the order is drawn once, so that
    samples sorted by class do no harm. The last incomplete batch is dropped.

    Args:
        encode: float samples to features, in eval mode.
        train_samples: as for ``embed``.
        train_y: labels, shape (num_train,); a class may be missing.
        test_x: features of the test samples as they are, shape (num_test, feature_dim).
        test_y: labels, shape (num_test,).
        crop_flip: random crops and flips, drawn anew in every epoch.
        generator: draws the order and the views.
        epochs: passes over the samples.
        batch_size: samples per step; all of them where they are fewer.
        learning_rate: of the first step; it falls to 0 along a cosine, step by step.
    """
    classes, targets = torch.unique(train_y, return_inverse=True)
    weight = test_x.new_zeros(test_x.shape[1], len(classes)).requires_grad_()
    bias = test_x.new_zeros(len(classes)).requires_grad_()
    batch_size = min(batch_size, len(train_samples))
    order = torch.randperm(len(train_samples), generator=generator)
    batches = order[: len(order) // batch_size * batch_size].split(batch_size)
    optimizer = torch.optim.SGD([weight, bias], lr=learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    for _ in range(epochs):
        for batch in batches:
            x = encode(crop_flip(as_float(train_samples[batch]), generator))
            optimizer.zero_grad()
            F.cross_entropy(x @ weight + bias, targets[batch]).backward()
            optimizer.step()
            schedule.step()
    return LinearClassifier(weight.detach(), bias.detach(), classes).accuracy(test_x, test_y)


@threads(1)
def fit_linear_adam(
    x: Tensor, y: Tensor, generator: torch.Generator, num_steps: int, batch_size: int, learning_rate: float
) -> LinearClassifier:
    """Return a linear layer after so many steps of Adam at a constant rate on the cross-entropy, without weight decay.

    Args:
        x: features, shape (num_samples, feature_dim).
        y: labels, shape (num_samples,).
        generator: draws the batches.
        num_steps: steps of Adam.
        batch_size: samples per step.
        learning_rate: of every step.
    """
    classes, targets = torch.unique(y, return_inverse=True)
    weight = x.new_zeros(x.shape[1], len(classes)).requires_grad_()
    bias = x.new_zeros(len(classes)).requires_grad_()
    optimizer = torch.optim.Adam([weight, bias], lr=learning_rate)
    for batch in islice(random_batches(len(x), batch_size, generator), num_steps):
        optimizer.zero_grad()
        F.cross_entropy(x[batch] @ weight + bias, targets[batch]).backward()
        optimizer.step()
    return LinearClassifier(weight.detach(), bias.detach(), classes)
