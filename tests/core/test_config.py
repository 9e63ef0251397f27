"""Sections are strict, messages name the path, overrides win, and what is written is read back."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from unisono.core.config import Section, Tree, make_section, merge, parse_overrides, read_toml, write_toml
from unisono.core.errors import UserError


class Inner(Section):
    rate: float = Field(0.1, gt=0, le=1)
    steps: int | None = Field(None, ge=1)


class Outer(Section):
    name: str = "x"
    size: int = Field(4, ge=1)
    weight: float = 1.0
    fast: bool = False
    kind: Literal["plain", "fancy"] = "plain"
    shape: tuple[int, ...] = Field((1,), min_length=1)
    inner: Inner = Inner()
    maybe: Inner | None = None
    several: list[Inner] = []
    named: dict[str, Inner] = {}

    @model_validator(mode="after")
    def _fancy_is_big(self) -> "Outer":
        if self.kind == "fancy" and self.size < 2:
            raise ValueError("a fancy one needs size >= 2")
        return self


class Strict(Section):
    needed: int


def problem(values: dict[str, Any], kind: type[Section] = Outer) -> str:
    with pytest.raises(UserError) as caught:
        make_section(kind, values, "table")
    return str(caught.value)


def test_values_of_the_right_type_are_taken() -> None:
    section = make_section(Outer, {"size": 2, "weight": 3, "shape": [1, 2], "inner": {"rate": 1, "steps": 5}}, "table")
    assert section == Outer(size=2, weight=3.0, shape=(1, 2), inner=Inner(rate=1.0, steps=5))
    assert isinstance(section.weight, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": "4"}, "table.size must be a whole number, got '4'."),
        ({"size": 4.0}, "table.size must be a whole number, got 4.0."),
        ({"size": True}, "table.size must be a whole number, got True."),
        ({"size": None}, "table.size must be a whole number, got None."),
        ({"size": 0}, "table.size must be greater than or equal to 1, got 0."),
        ({"weight": "1"}, "table.weight must be a number, got '1'."),
        ({"weight": float("inf")}, "table.weight must be finite, got inf."),
        ({"weight": float("nan")}, "table.weight must be finite, got nan."),
        ({"fast": 1}, "table.fast must be true or false, got 1."),
        ({"name": 1}, "table.name must be a string, got 1."),
        ({"kind": "odd"}, "table.kind must be 'plain' or 'fancy', got 'odd'."),
        ({"shape": 3}, "table.shape must be a list, got 3."),
        ({"shape": [1, 2.5]}, "table.shape.1 must be a whole number, got 2.5."),
        ({"inner": 3}, "table.inner must be a table, got 3."),
        ({"inner": {"rate": 0}}, "table.inner.rate must be greater than 0, got 0."),
        ({"maybe": {"rate": 2}}, "table.maybe.rate must be less than or equal to 1, got 2."),
        ({"kind": "fancy", "size": 1}, "table: a fancy one needs size >= 2."),
    ],
)
def test_messages_name_field_value_and_remedy(values: dict[str, Any], message: str) -> None:
    assert problem(values) == message


def test_a_list_that_is_too_short_is_explained() -> None:
    assert problem({"shape": []}).startswith("table.shape: Tuple should have at least 1 item")


@pytest.mark.parametrize("prefix", [[], ["inner"], ["maybe"], ["several", 0], ["named", "a"]])
def test_misspelt_keys_are_named_by_path_with_a_suggestion(prefix: list[str | int]) -> None:
    values: Any = {"ratte": 1} if prefix else {"siize": 1}
    for part in reversed(prefix):
        values = [values] if part == 0 else {part: values}
    path = ".".join(["table", *map(str, prefix)])
    if prefix:
        expected = f"{path}.ratte is not a known option. Did you mean 'rate'? Known: rate, steps."
    else:
        known = "fast, inner, kind, maybe, name, named, several, shape, size, weight"
        expected = f"table.siize is not a known option. Did you mean 'size'? Known: {known}."
    assert problem(values) == expected


def test_every_bad_field_is_told_at_once() -> None:
    assert problem({"size": 0, "name": 3}) == (
        "table.name must be a string, got 3. table.size must be greater than or equal to 1, got 0."
    )


def test_a_missing_field_is_told() -> None:
    assert problem({}, Strict) == "table.needed is required."


def test_values_that_json_does_not_know_are_refused() -> None:
    assert problem({"name": date(2024, 1, 1)}).startswith("table holds a value that is neither a number")


def test_sections_are_frozen_and_their_defaults_checked() -> None:
    with pytest.raises(ValidationError):
        Inner().rate = 0.5

    class Wrong(Section):
        size: int = Field(0, ge=1)

    with pytest.raises(UserError, match=r"table\.size must be greater than or equal to 1"):
        make_section(Wrong, {}, "table")


KEYS = st.text(min_size=1, max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TREES = st.dictionaries(KEYS, VALUES, max_size=3)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value if item is not None] if isinstance(value, list) else value


@given(TREES)
def test_toml_round_trip_leaves_out_none_alone(tree: Tree) -> None:
    assert tomllib.loads(write_toml(tree)) == without_none(tree)


@given(
    st.builds(Inner, rate=st.floats(1e-300, 1), steps=st.none() | st.integers(1, 10**6)), st.floats(-1e300, 1e300), st.text()
)
def test_a_section_survives_being_written_and_read(inner: Inner, weight: float, name: str) -> None:
    section = Outer(name=name, weight=weight, inner=inner, maybe=inner, several=[inner, inner], named={"ä.b": inner})
    assert make_section(Outer, tomllib.loads(write_toml(section.model_dump(mode="json"))), "table") == section


def test_merge_goes_table_by_table_and_copies() -> None:
    base: Tree = {"a": {"x": 1, "y": {"z": 2}}, "b": 3}
    assert merge(base, {"a": {"y": {"w": 4}}, "b": {"c": 5}}) == {"a": {"x": 1, "y": {"z": 2, "w": 4}}, "b": {"c": 5}}
    assert merge(base, {"a": None}) == {"a": None, "b": 3}
    assert base == {"a": {"x": 1, "y": {"z": 2}}, "b": 3}


@given(TREES, TREES)
def test_merge_keeps_every_key_and_the_second_wins(base: Tree, over: Tree) -> None:
    merged = merge(base, over)
    assert merged.keys() == base.keys() | over.keys()
    assert merge(merged, over) == merged
    assert merge({}, over) == over == merge(over, {})


@pytest.mark.parametrize(
    ("assignments", "tree"),
    [
        (["a.b=1", "a.c = 2.5"], {"a": {"b": 1, "c": 2.5}}),
        (["a.b=1", "a.b=2"], {"a": {"b": 2}}),
        (["a.b=word", "c=two words"], {"a": {"b": "word"}, "c": "two words"}),
        (["a='1'", 'b="x=y"', "c=x=y"], {"a": "1", "b": "x=y", "c": "x=y"}),
        (["a=true", "b=[1, 2]", "c={d = 1}", "e="], {"a": True, "b": [1, 2], "c": {"d": 1}, "e": ""}),
        (["a.b.c=1", "a.b.d=-3"], {"a": {"b": {"c": 1, "d": -3}}}),
        ([], {}),
    ],
)
def test_overrides(assignments: list[str], tree: Tree) -> None:
    assert parse_overrides(assignments) == tree


@pytest.mark.parametrize("assignment", ["a.b", "=1", " = 1", ""])
def test_overrides_need_a_key_and_a_value(assignment: str) -> None:
    with pytest.raises(UserError, match=r"--set takes section\.key=value"):
        parse_overrides([assignment])


def test_reading_a_file_that_is_absent_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*absent\.toml"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)
    bad = tmp_path / "bad.toml"
    bad.write_text("a = \n")
    with pytest.raises(UserError, match=r"bad\.toml is not valid TOML: .*line 1"):
        read_toml(bad)
    bad.write_bytes(b"a = '\xff'")
    with pytest.raises(UserError, match="is not valid TOML"):
        read_toml(bad)
    bad.write_text("[a]\nb = 'ä'", encoding="utf-8")
    assert read_toml(bad) == {"a": {"b": "ä"}}
