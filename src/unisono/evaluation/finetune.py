"""Semi-supervised probe: the whole network fine-tuned with a small part of the labels.

After Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020), B.5: no weight decay, 30
epochs for 10% of the labels. They crop and flip at random; here samples stay as they are. They take SGD with Nesterov momentum;
here it is Adam, since the steps of SGD grow with the scale of the features, which every method leaves at another one: at 0.05
the same network without normalisation layers fell to chance after one method and learnt after another.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.evaluation.features import embed


def finetune(
    encoder: nn.Module,
    feature_dim: int,
    train_samples: Tensor,
    train_labels: Tensor,
    test_samples: Tensor,
    test_labels: Tensor,
    fraction: float,
    generator: torch.Generator,
    epochs: int = 30,
    learning_rate: float = 0.001,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> float:
    """Return the test accuracy of a copy of the encoder and a linear head after training on a part of the labels.

    Args:
        encoder: samples to features; not changed.
        feature_dim: width of the features.
        train_samples: as for ``embed``.
        train_labels: shape (num_train,); a class may be missing.
        test_samples: as for ``embed``.
        test_labels: shape (num_test,).
        fraction: the part of the labels to use, such as 0.01 or 0.1.
        generator: draws the labels, the head, the batches and what the network draws in training (dropout).
        epochs: passes over the labelled part.
        learning_rate: of network and head, by Adam.
        batch_size: samples per step.
        device: where the network runs.
    """
    part = label_subset(train_labels, fraction, generator)
    classes, targets = torch.unique(train_labels[part], return_inverse=True)
    samples, targets = train_samples[part], targets.to(device)
    seed = int(torch.randint(2**62, (), generator=generator))
    # Layers know the global generator only: it is seeded here, and restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(copy.deepcopy(encoder), nn.Linear(feature_dim, len(classes))).to(device)
        network.requires_grad_(True).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        for _ in range(epochs if len(classes) > 1 else 0):
            order = torch.randperm(len(part), generator=generator)
            # Near-equal batches: a last batch of one sample would break BatchNorm.
            for batch in order.tensor_split(math.ceil(len(order) / batch_size)):
                optimizer.zero_grad()
                scores = network(as_float(samples[batch].to(device)))
                F.cross_entropy(scores, targets[batch]).backward()
                optimizer.step()
    predictions = classes[embed(network, test_samples, device).argmax(dim=1)]
    return float((predictions == test_labels).double().mean())


def label_subset(labels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Return sorted positions of a random part that has the same fraction of every class, and at least one sample of each.

    Args:
        labels: shape (num_samples,).
        fraction: in (0, 1].
        generator: draws the part.
    """
    parts = []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        count = max(1, round(fraction * len(members)))
        parts.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(parts).sort().values
