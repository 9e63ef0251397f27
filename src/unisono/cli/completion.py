"""Names for the completion of a shell, read from files: importing what they name takes a second for each press of a key."""

from __future__ import annotations

import re
from pathlib import Path

from typer import _completion_shared

PACKAGE = Path(__file__).parents[1]
REGISTERED = re.compile(r'register\("([a-z0-9-]+)"\)')

AT_ONCE = '[[ $zsh_eval_context[-1] == loadautofunc ]] && %(complete_func)s "$@"'
"""Typer's script for zsh defines its function at the first press of the tab key; with this line that press completes too."""


def mend_zsh() -> None:
    """Let the script for zsh complete at the first press."""
    scripts = getattr(_completion_shared, "_completion_scripts", {})
    if "zsh" in scripts and AT_ONCE not in scripts["zsh"]:
        scripts["zsh"] = f"{scripts['zsh'].rstrip()}\n\n{AT_ONCE}\n"


def complete_methods(incomplete: str) -> list[str]:
    """Return methods of the package that begin so."""
    return _begin(incomplete, _registered("methods"))


def complete_datasets(incomplete: str) -> list[str]:
    """Return data sets of the package that begin so."""
    return _begin(incomplete, _registered("data/sources"))


def complete_studies(incomplete: str) -> list[str]:
    """Return studies of the package that begin so."""
    return _begin(incomplete, [path.stem for path in (PACKAGE / "studies" / "files").glob("*.toml")])


def complete_recipes(incomplete: str) -> list[str]:
    """Return recipes and methods of the package that begin so."""
    root = PACKAGE / "recipes"
    files = [path for path in root.rglob("*.toml") if "fragment = true" not in path.read_text(encoding="utf-8")]
    recipes = [path.relative_to(root).with_suffix("").as_posix() for path in files]
    return _begin(incomplete, [*recipes, *_registered("methods")])


def _registered(folder: str) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in (PACKAGE / folder).rglob("*.py")]
    return [name for text in texts for name in REGISTERED.findall(text)]


def _begin(incomplete: str, names: list[str]) -> list[str]:
    return sorted(name for name in set(names) if name.startswith(incomplete))
