"""TOML to frozen, validated sections and back, with ``--set a.b=value`` on top."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from unisono.core.errors import UserError

Tree = dict[str, Any]
S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """One table of a config file: frozen, strict about types, no unknown keys.

    Subclass it with typed fields; ``pydantic.Field(default, gt=0, description=...)`` gives ranges and help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


def make_section(kind: type[S], values: Mapping[str, Any], path: str) -> S:
    """The validated section, or a UserError that names every bad field by its path.

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


def read_toml(path: Path) -> Tree:
    """The file's content, or a UserError that says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def write_toml(values: Mapping[str, Any]) -> str:
    """Nested values as TOML text; None, which TOML has no word for, is left out."""
    return tomli_w.dumps(_without_none(values))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Both trees in one; ``over`` wins, table by table."""
    merged = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both_tables else value
    return merged


def parse_overrides(assignments: Iterable[str]) -> Tree:
    """``["training.learning_rate=0.1"]`` as a tree; values are TOML, a bare word counts as a string."""
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
    """`` Did you mean 'x'?`` or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _without_none(values: Mapping[str, Any]) -> Tree:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value for key, value in values.items() if value is not None
    }


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
    message = message.removeprefix("Input should be ").removeprefix("a valid ").rstrip(".")
    return f"{field} must be {message}, got {problem['input']!r}."


def _fields_at(kind: type[Section], location: list[str]) -> list[str]:
    """The field names of a nested section."""
    for part in location:
        annotation = kind.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        kind = next(c for c in candidates if isinstance(c, type) and issubclass(c, Section))
    return list(kind.model_fields)
