"""Sphinx configuration: Markdown pages, the API from docstrings."""

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
