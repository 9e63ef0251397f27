"""Semi-supervised probes: a network fine-tuned with a small part of the labels, by our protocol or by those of public codes.

Ours, the default of ``FineTuning``, is after Chen et al., "A Simple Framework for Contrastive Learning of Visual
Representations" (2020), B.5: no weight decay, 30 epochs for 10% of the labels. They crop and flip at random; here samples stay
as they are. They take SGD with Nesterov momentum; here it is Adam, since the steps of SGD grow with the scale of the features,
which every method leaves at another one: at 0.05 the same network without normalisation layers fell to chance after one method
and learnt after another.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.progress import tell
from unisono.core.threads import threads
from unisono.evaluation.features import embed


@dataclass(frozen=True)
class FineTuning:
    """The numbers of a protocol; the default is ours.

    Args:
        epochs: passes over the labelled part.
        learning_rate: of the first step.
        batch_size: samples per step, at most.
        optimizer: adam at a constant rate; or sgd with momentum 0.9, its rate falling to 0 along a cosine, step by step.
        head_only: keep the encoder's weights. It is in training mode all the same, so that BatchNorm normalises by the batch
            and its statistics move, as in the codes of Orchestra and EasyFL.
        hidden_dim: width of the head's hidden layer, with BatchNorm and ReLU; 0 makes the head linear.
        augmented: crop and flip the samples.
    """

    epochs: int = 30
    learning_rate: float = 0.001
    batch_size: int = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    head_only: bool = False
    hidden_dim: int = 0
    augmented: bool = False

    def head(self, feature_dim: int, num_classes: int) -> nn.Module:
        """Return a new head with random weights."""
        if self.hidden_dim == 0:
            return nn.Linear(feature_dim, num_classes)
        hidden = nn.Linear(feature_dim, self.hidden_dim), nn.BatchNorm1d(self.hidden_dim), nn.ReLU()
        return nn.Sequential(*hidden, nn.Linear(self.hidden_dim, num_classes))


OURS = FineTuning()


@threads(1)
def finetune(
    encoder: nn.Module,
    feature_dim: int,
    train_samples: Tensor,
    train_labels: Tensor,
    test_samples: Tensor,
    test_labels: Tensor,
    fraction: float,
    generator: torch.Generator,
    protocol: FineTuning = OURS,
    device: torch.device | str = "cpu",
    crop_flip: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> float:
    """Return the test accuracy of a copy of the encoder and a head after the last epoch on a part of the labels.

    Args:
        encoder: samples to features; not changed.
        feature_dim: width of the features.
        train_samples: as for ``embed``.
        train_labels: shape (num_train,); a class may be missing.
        test_samples: as for ``embed``.
        test_labels: shape (num_test,).
        fraction: the part of the labels to use, such as 0.01 or 0.1.
        generator: draws the labels, the head, the batches and what the network draws in training (dropout).
        protocol: how it is trained.
        device: where the network runs.
        crop_flip: random views of float samples, drawn anew in every epoch; None takes samples as they are.
    """
    part = label_subset(train_labels, fraction, generator)
    classes, targets = torch.unique(train_labels[part], return_inverse=True)
    samples, targets = train_samples[part], targets.to(device)
    seed = int(torch.randint(2**62, (), generator=generator))
    num_batches = math.ceil(len(part) / protocol.batch_size)
    # Layers know the global generator only: it is seeded here, and restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body, head = copy.deepcopy(encoder), protocol.head(feature_dim, len(classes))
        network = nn.Sequential(body, head).to(device)
        network.requires_grad_(True).train()
        body.requires_grad_(not protocol.head_only)
        optimizer, schedule = _optimizer(protocol, network, protocol.epochs * num_batches)
        for epoch in range(protocol.epochs if len(classes) > 1 else 0):
            order = torch.randperm(len(part), generator=generator)
            # Near-equal batches: a last batch of one sample would break BatchNorm.
            for batch in order.tensor_split(num_batches):
                x = as_float(samples[batch])
                x = (x if crop_flip is None else crop_flip(x, generator)).to(device)
                optimizer.zero_grad()
                F.cross_entropy(network(x), targets[batch]).backward()
                optimizer.step()
                schedule.step()
            tell("fine-tuning", epoch + 1, protocol.epochs)
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


def _optimizer(
    protocol: FineTuning, network: nn.Module, num_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the optimiser of what is trained, and its learning rate over the steps."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if protocol.optimizer == "adam":
        adam = torch.optim.Adam(trained, lr=protocol.learning_rate)
        return adam, torch.optim.lr_scheduler.ConstantLR(adam, factor=1.0)
    sgd = torch.optim.SGD(trained, lr=protocol.learning_rate, momentum=0.9)
    return sgd, torch.optim.lr_scheduler.CosineAnnealingLR(sgd, max(1, num_steps))
