"""All measurements, one after the other: ``make bench``; or parts of them: ``python -m benchmarks views precision``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from benchmarks.page import save
from benchmarks.tables import Table


def _tables(module: str, function: str, *arguments: str) -> Callable[[], list[Table]]:
    """Return what imports a module and calls its function, when it is asked to."""
    return lambda: list(getattr(import_module(f"benchmarks.{module}"), function)(*arguments))


PARTS: dict[str, Callable[[], list[Table]]] = {
    "cnn": _tables("frameworks", "tables", "cfcl-cnn"),
    "resnet": _tables("frameworks", "tables", "resnet18"),
    "engine": _tables("engine", "tables"),
    "precision": _tables("precision", "tables"),
    "steps": _tables("precision", "step_tables"),
    "views": _tables("views", "tables"),
    "clients": _tables("clients", "tables"),
    "startup": _tables("startup", "tables"),
}
"""The parts of the page docs/benchmarks.md."""
OTHERS = ("cfcl", "micro_batch", "orchestra", "search", "secure_sum")
"""Modules that print tables of their own."""


def main(names: list[str]) -> None:
    """Measure these parts, all of the page where none is named; print their tables and write them to the page."""
    unknown = [name for name in names if name not in PARTS and name not in OTHERS]
    if unknown:
        sys.exit(f"There is no part {unknown[0]!r}. Known: {', '.join((*PARTS, *OTHERS))}.")
    for name in names or PARTS:
        if name in OTHERS:
            import_module(f"benchmarks.{name}").report()
            continue
        tables = PARTS[name]()
        print("\n\n".join(table.as_text() for table in tables), end="\n\n", flush=True)
        save(name, tables, PARTS)


if __name__ == "__main__":
    main(sys.argv[1:])
