"""What the clients of a federation agree on before a run: the shape of a sample, and how samples are normalised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unisono.core.errors import UserError

Description = Mapping[str, Any]


@dataclass(frozen=True)
class Agreement:
    """What a run takes as given.

    Args:
        shape: of one sample.
        mean: per channel, over the samples of all clients that fit.
        std: per channel, likewise.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def misfit(self, description: Description) -> str | None:
        """Why a client's samples do not fit, None if they do."""
        shape = tuple(description["shape"])
        if shape != self.shape:
            kind = "images" if len(shape) == 3 else "series"
            return (
                f"its samples are {kind} of shape {shape}, and this federation learns on {self.shape}; "
                "set data.image_size and data.channels in the recipe, or convert the samples"
            )
        if len(description["mean"]) != shape[0] or int(description["samples"]) < 1:
            return "it has no samples"
        return None


def agree(descriptions: Mapping[int, Description]) -> Agreement:
    """The shape that most clients bring, and the mean and deviation of all samples of that shape.

    If two shapes are equally frequent, it is that of the client with the lowest number.

    Args:
        descriptions: by client; ``shape``, ``samples``, and ``mean`` and ``std`` per channel.
    """
    if not descriptions:
        raise UserError("No client has described its data: see the notes above, and 'unisono deploy status'.")
    shapes = Counter(tuple(descriptions[client]["shape"]) for client in sorted(descriptions))
    shape = shapes.most_common(1)[0][0]
    fitting = [description for description in descriptions.values() if tuple(description["shape"]) == shape]
    total = sum(int(description["samples"]) for description in fitting)
    means, deviations = [], []
    for channel in range(shape[0]):
        parts = [(int(d["samples"]), float(d["mean"][channel]), float(d["std"][channel])) for d in fitting]
        mean = sum(count * value for count, value, _ in parts) / total
        square = sum(count * (deviation**2 + value**2) for count, value, deviation in parts) / total
        means.append(mean)
        deviations.append(max(math.sqrt(max(square - mean**2, 0.0)), 1e-6))
    return Agreement(shape, tuple(means), tuple(deviations))
