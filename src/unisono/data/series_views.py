"""Random views of batches of time series: time crop, segment permutation, noise, scaling, channel dropout.

The transformations are those of Um et al. 2017 ("Data Augmentation of Wearable Sensor Data") and, for the unequal pair of
branches, of Eldele et al. 2021 (TS-TCC): a weak view (noise and scaling) and a strong one (permutation and noise).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[float, float]


@dataclass(frozen=True)
class SeriesSettings:
    """The numbers of one view; the default changes nothing.

    Args:
        crop_scale: range of the share of time that is kept and stretched to full length; (1, 1) switches it off.
        noise: standard deviation of the noise, in standard deviations of each channel of each sample.
        scaling: standard deviation of each channel's random factor around 1.
        channel_dropout: probability that a channel is set to 0; one channel at least stays.
        permute: probability that segments change places.
        num_segments: number of segments.
    """

    crop_scale: Pair = (1.0, 1.0)
    noise: float = 0.0
    scaling: float = 0.0
    channel_dropout: float = 0.0
    permute: float = 0.0
    num_segments: int = 5


@dataclass(frozen=True)
class SeriesAugmentation:
    """Series to random views of them.

    Args:
        first: what to do, and how often, to make first views.
        second: the crop and the permutation of second views; the rest is that of first views.
    """

    first: SeriesSettings
    second: SeriesSettings

    @torch.no_grad()
    def __call__(self, x: Tensor, num_first: int, generator: torch.Generator) -> Tensor:
        """Return views, shape of x.

        Args:
            x: series, shape (batch, channels, length).
            num_first: this many samples become first views, the rest second views.
            generator: on the device of x.
        """
        settings, both = self.first, (self.first, self.second)
        counts = torch.tensor([num_first, len(x) - num_first], device=x.device)
        views = x.clone()
        if any(view.crop_scale != (1.0, 1.0) for view in both):
            scale = x.new_tensor([view.crop_scale for view in both]).repeat_interleave(counts, dim=0)
            views = crop_time(views, *_draw_spans(scale, x, generator))
        if any(view.permute for view in both):
            keys = _uniform(x, settings.num_segments + 1, generator)
            chances = keys.new_tensor([view.permute for view in both]).repeat_interleave(counts)
            views = permute_segments(views, keys[:, 1:], keys[:, 0] < chances)
        if settings.noise:
            views = views + settings.noise * views.std(dim=2, keepdim=True, correction=0) * _normal(x, x.shape[2], generator)
        if settings.scaling:
            views = views * (1 + settings.scaling * _normal(x, 1, generator))
        if settings.channel_dropout:
            views = drop_channels(views, _uniform(x, x.shape[1], generator), settings.channel_dropout)
        return views


def crop_time(x: Tensor, start: Tensor, duration: Tensor) -> Tensor:
    """Return a part of each series stretched to full length by linear interpolation, shape of x.

    Args:
        x: series, shape (batch, channels, length).
        start: first time of the part, shape (batch,).
        duration: number of times in the part, at least 1, shape (batch,).
    """
    length = x.shape[2]
    centres = (torch.arange(length, device=x.device, dtype=x.dtype) + 0.5) / length
    inside = torch.clamp(centres * duration[:, None] - 0.5, torch.zeros_like(duration)[:, None], duration[:, None] - 1)
    times = start[:, None] + inside
    before = times.floor().clamp_max_(length - 1)
    after = (before + 1).clamp_max_(length - 1)
    low, high = (x.gather(2, index.long()[:, None].expand_as(x)) for index in (before, after))
    return torch.lerp(low, high, (times - before)[:, None].expand_as(x))


def permute_segments(x: Tensor, keys: Tensor, chosen: Tensor) -> Tensor:
    """Return series whose segments of near-equal length stand in the order of their keys, shape of x.

    Args:
        x: series, shape (batch, channels, length).
        keys: one number per segment, shape (batch, num_segments).
        chosen: false where a series stays as it is, shape (batch,).
    """
    length, num_segments = x.shape[2], keys.shape[1]
    segment = torch.arange(length, device=x.device) * num_segments // length
    in_place = torch.arange(num_segments, device=x.device, dtype=keys.dtype)
    order = torch.where(chosen[:, None], keys, in_place)[:, segment].argsort(dim=1, stable=True)
    return x.gather(2, order[:, None].expand_as(x))


def drop_channels(x: Tensor, draws: Tensor, probability: float) -> Tensor:
    """Return series with some channels set to 0, shape of x; the channel with the highest draw always stays.

    Args:
        x: series, shape (batch, channels, length).
        draws: numbers in [0, 1), shape (batch, channels).
        probability: channels with a lower draw are dropped.
    """
    kept = (draws >= probability) | (draws == draws.amax(dim=1, keepdim=True))
    return x * kept[:, :, None].to(x.dtype)


def _draw_spans(scale: Tensor, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return start and duration of random parts; ``scale`` has the range of their share for each sample, shape (batch, 2)."""
    share, place = _uniform(x, 2, generator).unbind(dim=1)
    duration = ((scale[:, 0] + share * (scale[:, 1] - scale[:, 0])) * x.shape[2]).round_().clamp_min_(1)
    return (place * (x.shape[2] - duration)).round_(), duration


def _uniform(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(len(x), count, generator=generator, device=x.device, dtype=x.dtype)


def _normal(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(len(x), x.shape[1], count, generator=generator, device=x.device, dtype=x.dtype)
