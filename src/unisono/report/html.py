"""A document as one HTML file without dependencies: no network, no other file, no library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from unisono.report.blocks import Document
from unisono.report.palette import DARK, LIGHT, SCALE_DARK, SCALE_LIGHT

SCRIPTS = ("elements", "axes", "lines", "columns", "table", "words", "map", "sheets", "main")
"""Files of ``assets/`` in the order in which they are read; they share one scope."""


def render(document: Document, *, live: bool = False) -> str:
    """Return the page as HTML.

    Args:
        document: what ``blocks.document`` made.
        live: whether the page asks its server for news, see ``live.py``.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_policy(live)}">
<title>{escape(document["title"])}</title>
<link rel="icon" href="data:,">
<style>
{_asset("page.css")}
{_palette()}
</style>
</head>
<body{' data-live="data.json"' if live else ""}>
<noscript>This page draws its figures with a script; allow scripts to see them.</noscript>
<main id="page"></main>
<script type="application/json" id="document">{inline_json(document)}</script>
<script>
(() => {{
"use strict";
{_scripts()}
}})();
</script>
</body>
</html>
"""


def inline_json(document: Document) -> str:
    """Return JSON that may stand inside a script element: no ``<`` can end it."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(live: bool) -> str:
    """Return what the browser may load: images inside the file, and updates from the same server while a run goes on."""
    connect = "'self'" if live else "'none'"
    inside = "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {inside}; connect-src {connect}"


def _palette() -> str:
    light = _variables("c", LIGHT) + _variables("s", SCALE_LIGHT)
    dark = _variables("c", DARK) + _variables("s", SCALE_DARK)
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}"
    )


def _variables(letter: str, colours: Sequence[str]) -> str:
    return "".join(f"--{letter}{number}:{colour};" for number, colour in enumerate(colours))


@cache
def _asset(name: str) -> str:
    return (resources.files("unisono.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _scripts() -> str:
    return "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
