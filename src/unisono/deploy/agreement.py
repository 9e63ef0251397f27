"""What the clients of a federation agree on before a run: the shape of a sample, and how samples are normalised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from unisono.core.errors import UserError

Description = Mapping[str, Any]

MOST_SAMPLES = 10**9
LARGEST_NUMBER = 1e6
"""Of a mean or a deviation: images lie in [0, 1], series are measured in sensible units."""
MOST_TIMES_MEDIAN = 10
"""No client counts for more than this many times the median number of samples, whatever it says."""


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
        """Return why a client's samples do not fit, None if they do."""
        problem = invalid(description)
        if problem is not None:
            return problem
        shape = tuple(description["shape"])
        if shape != self.shape:
            kind = "images" if len(shape) == 3 else "series"
            return (
                f"its samples are {kind} of shape {shape}, and this federation learns on {self.shape}; "
                "set data.image_size and data.channels in the recipe, or convert the samples"
            )
        return None


def invalid(description: Description) -> str | None:
    """Return why a description cannot be meant seriously, None if it can; it comes from a client and may hold anything."""
    shape, samples = description.get("shape"), description.get("samples")
    if not isinstance(shape, list | tuple) or not 2 <= len(shape) <= 3 or not all(_is_count(edge, 2**16) for edge in shape):
        return "its description has no shape of two or three positive whole numbers"
    if not _is_count(samples, MOST_SAMPLES):
        return "it has no samples" if samples == 0 else "its description has no sensible number of samples"
    for name, least in (("mean", -LARGEST_NUMBER), ("std", 0.0)):
        numbers = description.get(name)
        if not isinstance(numbers, list | tuple) or len(numbers) != shape[0]:
            return f"its description has no {name} for each channel"
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= LARGEST_NUMBER:
                return f"its description has a {name} that is no sensible number"
    return None


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def agree(descriptions: Mapping[int, Description]) -> Agreement:
    """Return the shape that most clients bring, and the mean and deviation of all samples of that shape.

    If two shapes are equally frequent, it is that of the client with the lowest number. Descriptions that cannot be meant
    seriously do not count, and no client counts for more than ten times the median.

    Args:
        descriptions: by client; ``shape``, ``samples``, and ``mean`` and ``std`` per channel.
    """
    valid = {client: descriptions[client] for client in sorted(descriptions) if invalid(descriptions[client]) is None}
    if not valid:
        raise UserError("No client has described its data: see the notes above, and 'unisono deploy status'.")
    shape = Counter(tuple(description["shape"]) for description in valid.values()).most_common(1)[0][0]
    fitting = [description for description in valid.values() if tuple(description["shape"]) == shape]
    most = MOST_TIMES_MEDIAN * median_low(description["samples"] for description in fitting)
    counts = [min(description["samples"], most) for description in fitting]
    total = sum(counts)
    means, deviations = [], []
    for channel in range(shape[0]):
        parts = [(n, float(d["mean"][channel]), float(d["std"][channel])) for n, d in zip(counts, fitting, strict=True)]
        mean = sum(count * value for count, value, _ in parts) / total
        square = sum(count * (deviation**2 + value**2) for count, value, deviation in parts) / total
        means.append(mean)
        deviations.append(max(math.sqrt(max(square - mean**2, 0.0)), 1e-6))
    return Agreement(shape, tuple(means), tuple(deviations))
