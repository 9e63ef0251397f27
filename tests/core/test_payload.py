"""Payload: what it accepts, and that nothing is lost between flat and nested names."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.core.payload import Payload

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
TREES = st.dictionaries(
    NAMES, st.dictionaries(st.text(max_size=8), st.integers(0, 100).map(torch.tensor), max_size=4), max_size=4
)


@given(TREES)
def test_unflatten_undoes_flatten(groups: dict[str, dict[str, torch.Tensor]]) -> None:
    payload = Payload(groups, {"epoch": 3})
    back = Payload.unflatten(payload.flatten(), payload.scalars, groups)
    assert [(group, list(members)) for group, members in back.groups.items()] == [
        (group, list(members)) for group, members in groups.items()
    ]
    assert all(back.groups[group][name] is groups[group][name] for group in groups for name in groups[group])
    assert back.scalars == {"epoch": 3}


def test_unflatten_splits_at_the_first_slash_and_drops_empty_groups_unless_named() -> None:
    tensor = torch.zeros(1)
    assert Payload.unflatten({"a/b/c": tensor}).groups == {"a": {"b/c": tensor}}
    assert Payload.unflatten({"a/b": tensor}, None, ["empty", "a"]).groups == {"empty": {}, "a": {"b": tensor}}


def test_unflatten_refuses_a_name_without_a_group() -> None:
    with pytest.raises(ValueError, match=r"group/name, got 'weight'"):
        Payload.unflatten({"weight": torch.zeros(1)})


@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_bad_group_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="without '/'"):
        Payload({name: {}})
    with pytest.raises(ValueError, match="without '/'"):
        Payload().with_groups(**{name: {}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_scalars_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="scalar loss must be finite"):
        Payload(scalars={"loss": value})


@pytest.mark.parametrize("value", [None, torch.tensor(1.0), np.float32(1), [1], b"x"])
def test_scalars_must_be_json(value: object) -> None:
    with pytest.raises(ValueError, match="scalar x must be a number, a string or a boolean"):
        Payload(scalars={"x": value})  # type: ignore[dict-item]


def test_num_bytes_counts_tensors_and_scalars() -> None:
    tensors = {"w": torch.zeros(3, 2), "mask": torch.zeros(5, dtype=torch.bool), "h": torch.zeros(4, dtype=torch.bfloat16)}
    assert Payload({"net": tensors}).num_bytes == 3 * 2 * 4 + 5 + 4 * 2
    assert Payload(scalars={"a": 1}).num_bytes == len('{"a": 1}')
    assert Payload().num_bytes == 0


def test_num_bytes_of_a_view_is_what_crosses_the_wire() -> None:
    assert Payload({"a": {"row": torch.zeros(100, 7)[3]}}).num_bytes == 28


def test_merge_and_copies_leave_the_original_alone() -> None:
    one, two = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    payload = Payload({"a": one, "b": one}, {"n": 1})
    other = payload.merge(Payload({"b": two}, {"n": 2, "m": 3}))
    assert other.groups == {"a": one, "b": two}
    assert other.scalars == {"n": 2, "m": 3}
    assert payload.with_scalars(n=5).scalars == {"n": 5}
    assert payload.with_groups(c=two).groups == {"a": one, "b": one, "c": two}
    assert payload.groups == {"a": one, "b": one}
    assert payload.scalars == {"n": 1}


def test_payloads_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Payload().groups = {}  # type: ignore[misc]
