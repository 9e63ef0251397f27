"""Numbers that leave beside an update: the listed ones, no more exact than the owner allows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.deploy.test_client import SIMPLE
from unisono.config import resolve
from unisono.core.method import RunInfo
from unisono.core.payload import Payload, Update
from unisono.deploy.negotiation import told_number
from unisono.deploy.policy_tables import Policy
from unisono.deploy.release import told_numbers


def told(**tables: Any) -> Update:
    """The numbers beside the update of a client with 1297 samples."""
    config = resolve(SIMPLE)
    info = RunInfo((1, 8, 8), (0.5,), (0.25,), None, 3, 2, config.method_sections)
    method = config.method_class(config.method, info)
    update = Update(0, 1297.0, Payload(), metrics={"loss": 1.23456, "secret": 0.98765})
    return told_numbers(update, Policy.model_validate(tables), method)


@pytest.mark.parametrize(("statistics", "weight"), [("rounded", 1200.0), ("exact", 1297.0), ("none", 1.0)])
def test_a_weight_tells_no_more_than_the_number_of_samples(statistics: str, weight: float) -> None:
    assert told(require={"statistics": statistics}).weight == weight
    owner: Any = Policy.model_validate({"require": {"statistics": statistics}})
    assert told_number(1297, owner) == weight, "the description says the same"


@pytest.mark.parametrize(
    ("tables", "metrics"),
    [
        ({}, {"loss": 1.23}),
        ({"allow": {"metrics": ("secret",)}}, {"secret": 0.988}),
        ({"allow": {"metrics": ("all",)}}, {"loss": 1.23456, "secret": 0.98765}),
        ({"allow": {"metrics": ("all",)}, "budget": {"max_epsilon": 1.0}}, {}),
    ],
)
def test_metrics_that_are_not_listed_stay(tables: dict[str, Any], metrics: dict[str, float]) -> None:
    assert told(**tables).metrics == metrics
