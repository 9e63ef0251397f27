"""What clients agree on is what all their samples together would say."""

from __future__ import annotations

import pytest
import torch

from unisono import __version__
from unisono.core.errors import UserError
from unisono.data.sources.statistics import channel_statistics
from unisono.deploy.negotiation import capped_weights, negotiate, version_note
from unisono.federation.aggregate import AggregationConfig


def describe(samples: torch.Tensor) -> dict[str, object]:
    mean, std = channel_statistics(samples)
    return {"shape": list(samples.shape[1:]), "samples": len(samples), "mean": list(mean), "std": list(std)}


def test_mean_and_deviation_are_those_of_all_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(0, 200 + 20 * n, (5 + n, 3, 4, 4), dtype=torch.uint8, generator=generator) for n in range(3)]
    agreed = negotiate({client: describe(part) for client, part in enumerate(parts)})
    mean, std = channel_statistics(torch.cat(parts))
    assert agreed.shape == (3, 4, 4)
    assert agreed.mean == pytest.approx(mean, abs=1e-9)
    assert agreed.std == pytest.approx(std, abs=1e-9)


def test_most_clients_decide_about_the_shape_and_the_others_are_told() -> None:
    small, large, series = torch.zeros(2, 1, 8, 8).byte(), torch.zeros(2, 1, 9, 9).byte(), torch.zeros(2, 6, 50)
    descriptions = {0: describe(large), 1: describe(small), 2: describe(small), 3: describe(series)}
    agreed = negotiate(descriptions)
    assert agreed.shape == (1, 8, 8)
    assert [client for client, told in descriptions.items() if agreed.rejection_reason(told) is None] == [1, 2]
    assert "images of shape (1, 9, 9), and this federation learns on (1, 8, 8)" in str(agreed.rejection_reason(descriptions[0]))
    assert "series of shape (6, 50)" in str(agreed.rejection_reason(descriptions[3]))


def test_of_two_equally_frequent_shapes_the_first_client_has_it() -> None:
    small, large = torch.zeros(2, 1, 8, 8).byte(), torch.zeros(2, 1, 9, 9).byte()
    assert negotiate({1: describe(small), 0: describe(large)}).shape == (1, 9, 9)


def test_nobody_agrees_on_nothing() -> None:
    with pytest.raises(UserError, match="No client"):
        negotiate({})


def test_a_client_of_another_version_is_named() -> None:
    assert version_note({"version": __version__}) is None
    assert (
        version_note({"version": "0.0.1"}) == f"runs unisono 0.0.1, and this server {__version__}: all machines need the same"
    )
    for odd in ({}, {"version": 3}, {"version": "x" * 100}, {"version": "\x1b[2J"}):
        assert str(version_note(odd)).startswith("runs unisono of an unknown version, and this server")


def test_whoever_counts_for_less_than_its_samples_is_named() -> None:
    half = AggregationConfig(max_weight_share=0.5)
    assert capped_weights({0: 100, 1: 9900}, float, half) == (
        "client 1 brings 99% of all samples and counts for 50%: no client counts for more than 10 times the median, or than "
        "aggregation.max_weight_share of a mean"
    )
    assert capped_weights({0: 100, 1: 100}, float, half) is None
    assert capped_weights({0: 100, 1: 9900}, float, AggregationConfig()) is None
    assert capped_weights({0: 100, 1: 9900}, float, AggregationConfig(max_weight_share=0.5, weighting="uniform")) is None
    assert capped_weights({0: 9900}, float, half) is None
    assert capped_weights({0: 10, 1: 10, 2: 9980}, float, AggregationConfig()) == (
        "client 2 brings 100% of all samples and counts for 83%: no client counts for more than 10 times the median"
    )
