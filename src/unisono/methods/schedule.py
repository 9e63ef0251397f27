"""Schedule of an exchange: which rounds begin with a pull, and which begin and end an aggregation interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unisono.core.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """Pulls every T_p steps and aggregations every T_a steps, in rounds that are short enough for both.

    Args:
        steps: of a round.
        pull_steps: T_p, a multiple of these.
        aggregation_steps: T_a, a multiple of these.
        num_rounds: length of the run; it ends with an aggregation, however long its last interval is.
        exchanges: whether there are pulls at all.
        pull_at_start: pull before the first step too.
    """

    steps: int
    pull_steps: int
    aggregation_steps: int
    num_rounds: int
    exchanges: bool = True
    pull_at_start: bool = True

    def __post_init__(self) -> None:
        for name, value in (("pull_steps", self.pull_steps), ("aggregation_steps", self.aggregation_steps)):
            if value % self.steps:
                raise UserError(
                    f"method.{name} must be a multiple of training.local_steps, {self.steps}, got {value}: set "
                    f"method.pull_steps = {self.pull_steps}, training.local_steps = "
                    f"{math.gcd(self.pull_steps, self.aggregation_steps)}, and federation.rounds for rounds as short as that."
                )
        if self.exchanges and self.first_pull >= self.num_rounds:
            raise UserError(
                f"method.pull_at_start = false makes the first pull after {self.pull_steps} steps, and the run has "
                f"{self.num_rounds * self.steps}: set it to true, or raise federation.rounds."
            )

    @property
    def first_pull(self) -> int:
        """The round that begins with the first pull."""
        return 0 if self.pull_at_start else self.pull_steps // self.steps

    def pulls(self, round: int) -> bool:
        """Return whether a round begins with a pull."""
        return self.exchanges and round >= self.first_pull and round * self.steps % self.pull_steps == 0

    def pull_interval_of(self, round: int) -> int:
        """Return the first round of a round's pull interval, whether there are pulls or not."""
        return round - round * self.steps % self.pull_steps // self.steps

    def interval_of(self, round: int) -> int:
        """Return the first round of a round's aggregation interval."""
        return round - round * self.steps % self.aggregation_steps // self.steps

    def ends_interval(self, round: int) -> bool:
        """Return whether networks are averaged after a round."""
        return (round + 1) * self.steps % self.aggregation_steps == 0 or round + 1 == self.num_rounds
