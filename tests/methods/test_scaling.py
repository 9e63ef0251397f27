"""The scaling rules of Orchestra's paper (C.4), for any method."""

from __future__ import annotations

import math
from typing import Any

import pytest

from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.methods.training_loop import TrainingConfig


def training(cohort: dict[str, Any], clients: int, **options: Any) -> TrainingConfig:
    tree = {
        "method": {"name": "simclr"},
        "partition": {"num_clients": clients},
        "cohort": cohort,
        "training": {"local_epochs": 10, "learning_rate": 0.004, **options},
    }
    config = resolve(tree)
    used = next(section for section in config.method_sections if isinstance(section, TrainingConfig))
    assert config.training.local_epochs == 10, "the config itself is never rescaled"
    assert config.training.learning_rate == 0.004
    return used


@pytest.mark.parametrize(("clients", "epochs"), [(100, 10), (200, 20), (50, 5), (10, 1), (1, 1), (149, 15)])
def test_epochs_grow_linearly_with_the_number_of_clients(clients: int, epochs: int) -> None:
    """L_new = L K_new / K, at least one epoch."""
    used = training({}, clients, epochs_tuned_for_clients=100)
    assert used.local_epochs == epochs
    assert used.learning_rate == 0.004


@pytest.mark.parametrize("cohort", [{"participation": 0.125}, {"size": 5}])
def test_learning_rate_grows_with_the_root_of_participation(cohort: dict[str, Any]) -> None:
    """eta_new = eta sqrt(R_new / R)."""
    used = training(cohort, 40, lr_tuned_for_participation=0.5)
    assert used.learning_rate == pytest.approx(0.004 * math.sqrt(0.125 / 0.5))
    assert used.local_epochs == 10
    assert training({}, 40, lr_tuned_for_participation=0.25).learning_rate == pytest.approx(0.008)


def test_nothing_changes_where_no_reference_is_given() -> None:
    assert training({"participation": 0.1}, 7) == TrainingConfig(local_epochs=10, learning_rate=0.004)


def test_steps_do_not_scale() -> None:
    with pytest.raises(UserError, match="remove one of the two"):
        training({}, 10, epochs_tuned_for_clients=100, local_steps=5)


def test_a_number_of_clients_that_the_data_decides_cannot_scale() -> None:
    tree = {"method": {"name": "simclr"}, "partition": {"scheme": "natural"}, "training": {"epochs_tuned_for_clients": 10}}
    with pytest.raises(UserError, match=r"training\.epochs_tuned_for_clients needs a number of clients"):
        _ = resolve(tree).method_sections
    tree = {
        "method": {"name": "simclr"},
        "partition": {"scheme": "natural"},
        "cohort": {"size": 3},
        "training": {"lr_tuned_for_participation": 0.5},
    }
    with pytest.raises(UserError, match=r"training\.lr_tuned_for_participation needs cohort\.participation"):
        _ = resolve(tree).method_sections
