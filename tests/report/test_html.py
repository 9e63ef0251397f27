"""The page as a file: it parses, needs nothing else, and cannot be broken out of."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.conftest import Browser
from unisono.report.blocks import Series, code, columns, document, facts, lines, prose, section, table
from unisono.report.html import render
from unisono.report.palette import LIGHT

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>\u2028"


class Outline(HTMLParser):
    """Text of every script by its id, and everything that an element wants to load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.loaded: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loaded += [value for name, value in values.items() if name in ("src", "href") and value]
        self._inside = (values.get("id") or "code") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._inside = None


def all_kinds() -> dict[str, object]:
    chart = lines(
        EVIL, "round", "loss", [Series("a", [1, 2], [3, 4], [2, 3], [4, 5]), Series(EVIL, [1], [1])], references=[(EVIL, 2)]
    )
    bars = columns("Split", "client", "samples", ["0", EVIL], ["a", "b"], [[1, 2], [3, None]], shares=True)
    words = [facts("", [("a", EVIL)]), code("c", EVIL), code("folded", EVIL, folded=True), prose(EVIL, tone="warning")]
    return document(EVIL, EVIL, [section("all", "All", [chart, bars, table("", ["a", EVIL], [[EVIL, 1.5]]), *words])])


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    return found


def test_the_document_inside_is_the_document_given() -> None:
    found = outline(render(all_kinds()))
    assert json.loads(found.scripts["document"]) == all_kinds()
    assert set(found.scripts) == {"document", "code"}


def test_nothing_is_loaded_from_elsewhere() -> None:
    for live in (False, True):
        html = render(document("t", "", []), live=live)
        assert outline(html).loaded == ["data:,"]
        assert set(re.findall(r"https?://[^\s\"'`]+", html)) == {"http://www.w3.org/2000/svg"}
        assert "default-src 'none'" in html
        assert ("connect-src 'self'" in html) == live == ("data-live" in html)


def test_a_browser_draws_every_kind_of_block(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render(all_kinds()), encoding="utf-8")
    seen = browser((tmp_path / "page.html").as_uri())
    assert seen.console == []
    assert "<title>broken" not in seen.dom
    shown = seen.dom.partition("<main")[2].partition("</main>")[0]
    assert len(re.findall(r'class="block[ "]', shown)) == 7
    assert shown.count("<svg") >= 2
    assert "<img" not in shown


def evaluated(browser: Browser, path: Path, expression: str) -> Any:
    """What an expression gives among the scripts of a page; figures are drawn later, when the browser finds time for it."""
    inside = render(document("t", "", [])).replace("})();\n", f"root.dataset.found = JSON.stringify({expression});\n}})();\n")
    path.write_text(inside, encoding="utf-8")
    seen = browser(path.as_uri())
    assert seen.console == []
    return json.loads(unescape(seen.dom.partition('data-found="')[2].partition('"')[0]))


def test_no_two_numbers_of_an_axis_read_alike(browser: Browser, tmp_path: Path) -> None:
    axes = {
        (0.99961, 0.99973, False): ["0.99965", "0.99970"],
        (0.5231, 0.5234, True): ["52.31%", "52.32%", "52.33%", "52.34%"],
        (12345.1, 12345.9, False): ["12.3452k", "12.3454k", "12.3456k", "12.3458k"],
        (1.2e-5, 1.9e-5, False): ["1.2e-5", "1.4e-5", "1.6e-5", "1.8e-5"],
        (0, 0.4, False): ["0", "0.1", "0.2", "0.3", "0.4"],
        (0, 3e6, False): ["0", "1M", "2M", "3M"],
        (-20, 90, False): ["-20", "0", "20", "40", "60", "80"],
    }
    expression = f"{json.dumps(list(axes))}.map(([low, high, share]) => labels(ticks(low, high, 4), share))"
    assert evaluated(browser, tmp_path / "page.html", expression) == list(axes.values())


def test_many_things_lie_on_a_scale(browser: Browser, tmp_path: Path) -> None:
    found = evaluated(browser, tmp_path / "page.html", "[0, 1, 16].map((index) => [colour(index, 17), plainColour(index, 17)])")
    assert found == [
        ["color-mix(in srgb, var(--s0), var(--s1) 0.0%)", "rgb(68 1 84)"],
        ["color-mix(in srgb, var(--s0), var(--s1) 50.0%)", "rgb(70 21 102)"],
        ["color-mix(in srgb, var(--s7), var(--s8) 100.0%)", "rgb(189 223 38)"],
    ]
    assert evaluated(browser, tmp_path / "page.html", "plainColour(9, 10)") == LIGHT[9]


def test_the_example_of_the_docs_is_a_page() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    names: dict[str, str] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    assert json.loads(outline(names["html"]).scripts["document"])["title"] == "My page"
