"""Pages about methods: every method has one, with every option and its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unisono.core.method import methods

ROOT = Path(__file__).parents[1]
PARTS = ("**Idea.**", "**When to use it.**", "**Formula.**", "**What leaves a client.**", "| option", "reference/options.md#")
METHOD_PAGES = {
    "baselines": ("simclr", "simsiam", "byol", "specloss", "rotpred", "supervised"),
    "cfcl": ("cfcl",),
    "fedmcc": ("cc", "mcc", "fedmcc"),
    "fedu": ("fedu", "fedema", "fedca"),
    "kmeans": ("federated-kmeans",),
    "orchestra": ("orchestra",),
    "user-verification": ("semifed", "cbafed", "featarc", "simclr", "simsiam", "specloss"),
}
ON_ANOTHER_PAGE = {
    "baselines": {"uv_weight", "uv_scale", "uv_hidden_dim", "uv_dim", "label_weight", "uv_labelled"},
    "user-verification": {"temperature", "projection_dim", "bottleneck_dim", "mu", "divergence_threshold"},
}


def test_every_method_has_a_page() -> None:
    assert set(METHOD_PAGES) == {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(methods) >= {method for names in METHOD_PAGES.values() for method in names}
    built_in = {name for name in methods if methods[name].__module__.startswith("unisono.")}
    assert built_in <= {method for names in METHOD_PAGES.values() for method in names}


@pytest.mark.parametrize("page", METHOD_PAGES)
def test_a_method_page_has_every_option_with_its_default(page: str) -> None:
    name = f"docs/methods/{page}.md"
    named = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", _read(name), flags=re.DOTALL)))
    fields = {option: field for method in METHOD_PAGES[page] for option, field in methods[method].Config.model_fields.items()}
    missing = set(fields) - named - ON_ANOTHER_PAGE.get(page, set())
    assert not missing, f"{name} does not name {sorted(missing)}"
    for options, methods_named, default in _defaults(name):
        owners = [methods[method] for method in methods_named or METHOD_PAGES[page]]
        for option, value in zip(options, default, strict=True):
            known = [owner.Config.model_fields for owner in owners if option in owner.Config.model_fields]
            found = {_shown(owner_options[option].default) for owner_options in known}
            assert found == {_shown(value)}, f"{name}: {option} {methods_named} is {found}, the page says {value!r}"


def _defaults(name: str) -> Iterator[tuple[list[str], list[str], list[Any]]]:
    """Options, methods in brackets and defaults of the rows of tables ``option of [method] | default | ...``."""
    inside = False
    for line in _read(name).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[:2] in (["option", "default"], ["option of `[method]`", "default"]):
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(line) <= set("|- ") and "." not in cells[0]:
            options, _, brackets = cells[0].partition("(")
            values = [value.strip().strip("`") for value in cells[1].split(", ")]
            yield re.findall(r"`([a-z_]+)`", options), re.findall(r"[a-z-]+", brackets), values


def _shown(value: Any) -> str:
    """A default as the pages write it."""
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "true", False: "false"}[value]
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_method_page_has_all_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for part in PARTS:
        assert part in text, f"{page.name} has no {part}"
    assert "$$" in text
    assert re.search(r"\*\*(Against the papers?|Papers?, public code and this package)", text)
    assert f"](../figures/method-{page.stem}.svg)" in text
    figure = (ROOT / "docs" / "figures" / f"method-{page.stem}.svg").read_text(encoding="utf-8")
    assert "<svg" in figure
    assert len(figure) < 10_000
