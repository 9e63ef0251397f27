"""Sphinx configuration: Markdown pages, the API from docstrings."""

import re
from typing import Any

project = "unisono"
author = "The unisono developers"
extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "unisono"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_mock_imports: list[str] = []
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]


def escape_formulas(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """``|x - y|`` and ``(batch, *input_shape)`` in docstrings are formulas, not markup."""
    lines[:] = [re.sub(r"(?<![*`\w])\*(?=[a-z])|\|", r"\\\g<0>", line) for line in lines]


def setup(app: Any) -> None:
    """Before napoleon, which comes at 500."""
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)
