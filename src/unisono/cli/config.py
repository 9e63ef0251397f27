"""``unisono config``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import options

if TYPE_CHECKING:
    from unisono.recipes import LayeredConfig

COLUMN = 44
"""Column at which sources begin, unless an option is longer."""
WIDTH = 120
"""A source that would end beyond it stands above its option."""


def config(
    reference: options.Recipe,
    method: options.Method = None,
    settings: options.Overrides = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print the options alone, without their sources.")] = False,
) -> None:
    """Show all options of a recipe and where each comes from.

    RECIPE|METHOD is as for 'unisono run'. The text is a recipe itself: save it, change it, run it.

    Example: unisono config orchestra/cifar10-silo --method byol
    """
    from unisono.core.config import parse_overrides
    from unisono.recipes import Layer, assemble, flag_layers

    over = [*flag_layers({"method": method}), Layer("--set", parse_overrides(settings or ()))]
    print(render(assemble(reference, over), plain=plain), end="")


def render(layered: LayeredConfig, *, plain: bool = False) -> str:
    """Return the resolved config as TOML, each option with the source that set it as a comment.

    Args:
        layered: the options of a run.
        plain: leave sources and notes out.
    """
    from unisono.config import resolve

    resolved = resolve(layered.tree)
    defaults = resolved.method_class.defaults
    lines = [] if plain else [f"# note: {note}" for note in layered.notes]
    for table, values in resolved.as_tree().items():
        if not isinstance(values, Mapping):
            lines.append(f"{table} = {_toml(values)}")
            continue
        lines += ["", f"[{table}]"]
        for path, value in _leaves(values):
            source = layered.source((table, *path)) or ("method default" if path[0] in defaults.get(table, {}) else "default")
            lines += _line(".".join(path), value, None if plain else source)
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, source: str | None) -> list[str]:
    text = f"{name} = {_toml(value)}"
    if source is None:
        return [text]
    whole = f"{text:<{COLUMN}}  # {source}"
    return [whole] if len(whole) <= WIDTH else [f"# {source}", text]


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Options with their path; those without a value, which TOML has no word for, are left out."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        elif value is not None:
            yield (*path, key), value


def _toml(value: Any) -> str:
    """A value as TOML in one line."""
    import tomli_w

    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
