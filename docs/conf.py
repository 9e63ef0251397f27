"""Sphinx configuration: Markdown pages, the API from docstrings, formulas as MathML, so that pages need no network."""

import re
from typing import Any

from latex2mathml.converter import convert

project = "unisono"
author = "The unisono developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "unisono"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_preserve_defaults = True
smartquotes_action = "qe"  # quotes and dots; two hyphens stay an option's
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]


def escape_formulas(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """``|x - y|`` and ``(batch, *input_shape)`` in docstrings are formulas, not markup."""
    lines[:] = [re.sub(r"(?<![*`\w])\*(?=[a-z])|\|", r"\\\g<0>", line) for line in lines]


def inline_formula(translator: Any, node: Any) -> None:
    """Write a formula of a line; what follows it on the line stays in place."""
    translator.body.append(convert(node.astext()))
    raise_skip()


def formula(translator: Any, node: Any) -> None:
    """Write a formula that stands alone."""
    translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>\n')
    raise_skip()


def raise_skip() -> None:
    """Tell Sphinx that the node is written."""
    from docutils.nodes import SkipNode

    raise SkipNode


def break_names(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let lines break within names: behind a dot and behind an underscore, but not behind the hyphens of an option."""
    code = r'(?<=<code class="docutils literal notranslate">).*?(?=</code>)'
    parts = re.compile(r"(?<=[a-z])([._])(?=[a-z])")
    if "body" in context:
        body = re.sub(code, lambda found: parts.sub(r"\1<wbr>", found[0]), context["body"], flags=re.DOTALL)
        context["body"] = body.replace('<span class="pre">--', '<span class="pre option">--')


def setup(app: Any) -> None:
    """Before napoleon, which comes at 500."""
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)
    app.connect("html-page-context", break_names)
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
