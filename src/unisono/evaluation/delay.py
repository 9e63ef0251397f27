"""Time that a run would take on slow links: a model of transmission, to which measured computation may be added.

CF-CL (Wagle et al.), section IV: "transmission rate in D2D and uplink are 1Mbits/sec with 32 bits quantization applied on the
model parameter and 8 on datapoints", so a model of 45,433 parameters takes 1.45 s and an image of 28 x 28 pixels 6.3 ms. Links
have their rate to themselves and work at the same time, so the busiest one decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from unisono.core.config import Section


class DelayConfig(Section):
    """Rates and widths of what travels."""

    uplink_rate: float = Field(1e6, gt=0, description="bits per second from a client to the server")
    neighbor_rate: float = Field(1e6, gt=0, description="bits per second from a client to each of its neighbours")
    bits_per_parameter: int = Field(32, ge=1, description="width of a model's parameter")
    bits_per_value: int = Field(8, ge=1, description="width of a pixel, or of a value of a series")


def upload_seconds(config: DelayConfig, num_parameters: int) -> float:
    """Return the seconds until the server has every client's model."""
    return num_parameters * config.bits_per_parameter / config.uplink_rate


def exchange_seconds(
    config: DelayConfig, points_per_link: Iterable[int], values_per_point: int, parameters_per_link: int = 0
) -> float:
    """Return the seconds until the busiest link has moved its points.

    Args:
        config: rates and widths.
        points_per_link: points on each directed link.
        values_per_point: numbers in one point, such as pixels times channels.
        parameters_per_link: parameters of a model that goes over each link too.
    """
    bits = max(points_per_link, default=0) * values_per_point * config.bits_per_value
    return (bits + parameters_per_link * config.bits_per_parameter) / config.neighbor_rate
