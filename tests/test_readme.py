"""The README, drawn as GitHub draws it: one screen and a half, with nothing cut off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.conftest import Browser

ROOT = Path(__file__).parents[1]
SCREEN = 900
STYLE = """
body { margin: 0 auto } body > :first-child { margin-top: 0 } body > :last-child { margin-bottom: 0 }
body { font: 16px/1.5 "Liberation Sans", Arial, sans-serif }
p, ul, table, pre { margin: 0 0 16px } li + li { margin-top: .25em }
h1 { margin: 24px 0 16px; line-height: 1.25; font-size: 2em; padding-bottom: .3em; border-bottom: 1px solid }
ul { padding-left: 2em }
table { border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: auto }
th, td { padding: 6px 13px; border: 1px solid } td > :last-child { margin-bottom: 0 }
img { max-width: 100% } img[align=left] { padding-right: 20px }
pre { padding: 16px; overflow: auto; font-size: 85%; line-height: 1.45 } pre, code { font-family: "Liberation Mono", monospace }
code { padding: .2em .4em; font-size: 85% } pre code { padding: 0; font-size: 100% }
"""
"""What GitHub's style says about sizes."""
MEASURE = """
<script>addEventListener("load", () => {
  const cut = [...document.querySelectorAll("table")].filter(table => table.scrollWidth > table.clientWidth + 1);
  document.title = document.body.scrollHeight + " " + cut.length;
})</script>
"""


@pytest.mark.parametrize(("width", "screens"), [(1012, 1.55), (832, 1.9)])
def test_the_readme_is_short_and_nothing_is_cut_off(width: int, screens: float, browser: Browser, tmp_path: Path) -> None:
    """1012 pixels are a page of its own, 832 the front page of a repository in a window of 1280."""
    text = MarkdownIt("commonmark", {"html": True}).enable("table").render((ROOT / "README.md").read_text(encoding="utf-8"))
    page = tmp_path / "readme.html"
    head = f'<!doctype html><meta charset="utf-8"><base href="{ROOT.as_uri()}/"><title></title><style>{STYLE}</style>{MEASURE}'
    page.write_text(f'{head}<body style="width: {width}px">{text}', encoding="utf-8")
    found = re.search(r"<title>(\d+) (\d+)</title>", browser(page.as_uri()).dom)
    assert found
    assert int(found[2]) == 0, "a table is wider than the page"
    assert 0.8 * SCREEN < int(found[1]) < screens * SCREEN
