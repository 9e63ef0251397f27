"""Conversion between TOML and frozen, validated sections, with ``--set a.b=value`` on top."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from unisono.core.errors import UserError

Tree = dict[str, Any]
_PLAIN_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "finite",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """One table of a config file: frozen, strict about types, no unknown keys.

    Subclass it with typed fields; ``pydantic.Field(default, gt=0, description=...)`` gives ranges and help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


def make_section(kind: type[S], values: Mapping[str, Any], path: str) -> S:
    """Return the validated section; raise a UserError that names every bad field by its path.

    Args:
        kind: the section's class.
        values: plain values, as TOML gives them.
        path: where the section stands in the file, such as ``method``.
    """
    try:
        return kind.model_validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        raise UserError(" ".join(_sentence(kind, path, problem) for problem in error.errors())) from error
    except TypeError as error:
        raise UserError(f"{path} holds a value that is neither a number, a string, a boolean nor a list: {error}.") from error


def check_options(kind: type[Section], values: Any, path: str) -> None:
    """Raise a UserError for an unknown or impossible option in a part of a table; what else the table needs is not asked.

    Args:
        kind: the section's class.
        values: some of its options.
        path: where they stand.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{path} must be a table, got {values!r}.")
    try:
        kind.model_validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        problems = [problem for problem in error.errors() if problem["loc"] and problem["loc"][0] in values]
        if problems:
            raise UserError(" ".join(_sentence(kind, path, problem) for problem in problems)) from error
    except TypeError as error:
        raise UserError(f"{path} holds a value that is neither a number, a string, a boolean nor a list: {error}.") from error


def read_toml(path: Path) -> Tree:
    """Return the file's content; raise a UserError that says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds; raise a ValueError if it is none, or is nested deeper than a reader can follow."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_toml(values: Mapping[str, Any]) -> str:
    """Return nested values as TOML text; None, which TOML has no word for, is left out."""
    return tomli_w.dumps({key: _without_none(value) for key, value in values.items() if value is not None})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Return both trees in one; ``over`` wins, table by table."""
    merged = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both_tables else value
    return merged


def parse_overrides(assignments: Iterable[str]) -> Tree:
    """Return ``["training.learning_rate=0.1"]`` as a tree; values are TOML, a bare word counts as a string."""
    tree: Tree = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise UserError(f"--set takes section.key=value, got {assignment!r}.")
        node: Tree = {}
        leaf = node
        *tables, key = path.strip().split(".")
        for table in tables:
            leaf = leaf.setdefault(table, {})
        leaf[key] = _toml_value(text.strip())
        tree = merge(tree, node)
    return tree


def closest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value if item is not None]
    return value


def _sentence(kind: type[Section], path: str, problem: Mapping[str, Any]) -> str:
    location = [str(part) for part in problem["loc"]]
    field = ".".join([path, *location])
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(kind, location[:-1])
        return f"{field} is not a known option.{closest(location[-1], fields)} Known: {', '.join(sorted(fields))}."
    if problem["type"] == "missing":
        return f"{field} is required."
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] in ("value_error", "assertion_error") and not location:
        return f"{path}: {message}."
    must_be = _PLAIN_WORDS.get(problem["type"]) or message.removeprefix("Input should be ").rstrip(".")
    if " should " in must_be:
        return f"{field}: {must_be}, got {problem['input']!r}."
    return f"{field} must be {must_be}, got {problem['input']!r}."


def _fields_at(kind: type[Section], location: list[str]) -> list[str]:
    """Return the fields of a nested section; indices of a list and keys of a dictionary stand between its name and theirs."""
    for part in location:
        if part in kind.model_fields:
            kind = next(_sections_in(kind.model_fields[part].annotation), kind)
    return list(kind.model_fields)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)
