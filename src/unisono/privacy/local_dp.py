"""Local differential privacy of centroids: noise for a budget per release, and what many releases of a client add up to.

One release is the noisy tree of ``clustering/private.py``: discrete Laplace noise on the counts of every level, Gaussian noise
on the sums of the leaves. A fifth of epsilon goes to the counts, which only weigh the leaves and decide where the tree ends.
Noise of the sums is calibrated with the exact curve of the Gaussian mechanism (Balle & Wang 2018), and releases are composed by
privacy loss distributions; both are done by the library dp-accounting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from unisono.core.errors import UserError

COUNT_SHARE = 0.2
"""Part of a release's epsilon that the counts get."""


class LocalDp:
    """The budget of one release, and its sum over releases; neighbouring clients differ by one sample more or less.

    Args:
        epsilon: of one release.
        delta: of one release, and the delta at which the sum is stated.
        num_levels: levels of the tree, each of which counts every point once.
        seeded: whether the noise comes from the run's seed, which the server knows.
    """

    def __init__(self, epsilon: float, delta: float, num_levels: int, seeded: bool = True) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.num_levels = num_levels
        self.seeded = seeded

    @property
    def noise_is_repeatable(self) -> bool:
        """True if the noise comes from the run's seed, which the server knows."""
        return self.seeded

    @property
    def count_epsilon(self) -> float:
        """The parameter of the discrete Laplace noise on a count: levels add up."""
        return COUNT_SHARE * self.epsilon / self.num_levels

    @property
    def sum_deviation(self) -> float:
        """Standard deviation of the noise on every coordinate of a sum, whose sensitivity is 1."""
        return _sum_deviation((1 - COUNT_SHARE) * self.epsilon, self.delta)

    def spent(self, num_releases: int) -> float:
        """Return epsilon at ``delta`` after so many releases of one client."""
        return _spent(self.epsilon, self.delta, self.num_levels, num_releases) if num_releases else 0.0

    def noise_to_signal(self, num_samples: int, dim: int) -> float:
        """Return the expected norm of the noise on a leaf's sum over the largest norm the sum can have, if leaves are equal.

        Args:
            num_samples: of the client.
            dim: coordinates of a sum.
        """
        return self.sum_deviation * math.sqrt(dim) * float(2**self.num_levels) / max(num_samples, 1)

    def warnings(self, client_sizes: Sequence[int], dim: int) -> tuple[str, ...]:
        """Return a sentence if the noise drowns the centroids of a client of median size.

        Args:
            client_sizes: samples of each client.
            dim: coordinates of a sum.
        """
        median = sorted(client_sizes)[len(client_sizes) // 2]
        ratio = self.noise_to_signal(median, dim)
        if ratio <= 1:
            return ()
        return (
            f"the noise of method.privacy = 'local-dp' is {ratio:.1f} times as large as the signal for a client of {median} "
            "samples, so its centroids are mostly noise: raise method.epsilon, or lower method.projection_dim, tree_depth "
            "or the number of clients",
        )

    def numbers(self, releases: Mapping[int, int], smallest: int | None) -> dict[str, Any]:
        """Return the numbers for the log and the report, for the client that released most often."""
        most = max(releases.values(), default=0)
        return {
            "mechanism": "local-dp",
            "centroid_epsilon": self.spent(most),
            "centroid_delta": self.delta,
            "release_epsilon": self.epsilon,
            "most_releases": most,
        }

    def by_client(self, releases: Mapping[int, int]) -> dict[int, float]:
        """Return epsilon of every client that has released anything."""
        spent = {number: self.spent(number) for number in Counter(releases.values())}
        return {client_id: spent[number] for client_id, number in sorted(releases.items())}

    def statement(self, releases: Mapping[int, int], smallest: int | None) -> str:
        """Return the guarantee in words: for whom it holds, and what it does not cover."""
        most = max(releases.values(), default=0)
        source = (
            " The noise of this run comes from its seed, which the server knows, so the guarantee is simulated: real clients "
            'need method.noise_source = "system".'
            if self.seeded
            else ""
        )
        return (
            f"The centroids that a client released, at most {most} times, are ({self.spent(most):.4g}, {self.delta:g})-"
            "differentially private for each of its samples, whatever networks it received: neighbouring clients differ by one "
            f"sample more or less, and one release has epsilon {self.epsilon:g} (privacy loss distributions). This covers "
            f"centroids, not model updates, numbers of samples or numbers for the log.{source}"
        )


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError as error:
        raise UserError("method.privacy = 'local-dp' needs the extra 'dp': pip install 'unisono[dp]'.") from error
    return dp_accounting


@cache
def _sum_deviation(epsilon: float, delta: float) -> float:
    return float(_library().get_sigma_gaussian(epsilon, delta))


@cache
def _spent(epsilon: float, delta: float, num_levels: int, num_releases: int) -> float:
    dp = _library()
    counts = dp.dp_event.DiscreteLaplaceDpEvent(COUNT_SHARE * epsilon / num_levels, 1)
    sums = dp.GaussianDpEvent(_sum_deviation((1 - COUNT_SHARE) * epsilon, delta))
    # The library rounds every loss up to this grid, so the result errs on the side of caution.
    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-3 * epsilon)
    accountant.compose(dp.ComposedDpEvent([dp.SelfComposedDpEvent(counts, num_levels), sums]), num_releases)
    return float(accountant.get_epsilon(delta))
