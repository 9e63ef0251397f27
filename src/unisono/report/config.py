"""The table ``[report]``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unisono.core.config import Section


class ReportConfig(Section):
    """Contents of a run's report: the table ``[report]``."""

    enabled: bool = Field(True, description="write report.html at the end of the run")
    points: int = Field(600, ge=0, le=2000, description="training samples on the map of embeddings; 0 draws no map")
    rounds: int = Field(4, ge=1, le=12, description="rounds on the map's slider: the untrained state, the last, evenly between")
    projection: Literal["auto", "tsne", "pca"] = Field("auto", description="auto: t-SNE from 500 points on, else PCA")
    samples: bool = Field(True, description="show the samples themselves, small; false where nobody may see them")


def shown_rounds(num_rounds: int, count: int) -> set[int]:
    """Return the numbers of rounds done after which the map is drawn: the last, 0, and evenly between.

    Args:
        num_rounds: length of the run.
        count: at most this many.
    """
    return {round(num_rounds * (1 - step / max(1, count - 1))) for step in range(count)}
