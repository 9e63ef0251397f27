"""The door of the project: README, site, version, extras and public API say what is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _links(page: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text):
        if not re.match(r"[a-z]+:", "".join(link)):
            target, _, anchor = "".join(link).partition("#")
            yield target, anchor


def _anchors(page: Path) -> set[str]:
    """Anchors of headings, as GitHub and myst make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = [re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.M)]
    return set(heads)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{target} does not exist"
        assert not anchor or anchor in _anchors(file), f"{target} has no heading {anchor}"


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n:caption: (\w+)\n(.*?)```", index, re.DOTALL)
    assert [caption for caption, _ in trees] == ["Start", "Learn", "Federate", "Research", "Extend", "Reference"]
    entries = [
        line.rpartition("<")[2].rstrip(">") for _, tree in trees for line in tree.splitlines() if line and line[0] != ":"
    ]
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert sorted(entries) == sorted(pages - {"index"})


def test_the_readme_has_what_a_stranger_looks_for() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r'<img src="([^"]+)"[^>]* alt="[^"]+">', text)
    assert (ROOT / picture).stat().st_size < 200_000
    for wanted in (
        "pip install",
        "unisono demo",
        "make demo",
        "make test",
        "CITATION.cff",
        "| floor: ",
        "Who sees what",
        "does not do",
    ):
        assert wanted in text, wanted
    for box in ("**On one machine**", "**Your images**", "**A real federation**", "**Your own method**"):
        cell = text.partition(box)[2].partition("</td>")[0]
        assert re.match(r" \(\[[^\]]+\]\(docs/[^)]+\)\): .{15,40}\.<br>\n(`unisono [^`]+`(<br>)?\n){3}\n$", cell), box
    assert len(re.findall(r" \*[^*]+\*", text.partition("CITATION.cff")[2])) == 4


def test_versions_agree() -> None:
    version = PROJECT["version"]
    assert unisono.__version__ == version
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0] == version


def test_extras_say_what_they_bring() -> None:
    page = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z]+)` \| .{10,}\|$", page, re.M)
    assert listed == [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]


def test_the_public_api_is_listed_and_there() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in unisono.__all__:
        thing = getattr(unisono, name)
        assert name == "__version__" or re.search(rf":: unisono\.{name}$", page, re.M), f"docs/api.md lacks {name}"
        assert name == "__version__" or thing.__doc__
    assert sorted(unisono.__all__) == dir(unisono)
    assert (Path(unisono.__file__).parent / "py.typed").is_file()


def test_the_quick_tests_cover_every_package() -> None:
    """``make test-fast`` names files that are there, some of every package."""
    command = subprocess.run(["make", "-n", "test-fast"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / word for word in command.split() if word.startswith("tests/")]
    assert all(file.exists() for file in files)
    packages = {path.parent.name for path in (ROOT / "src" / "unisono").glob("*/__init__.py")} - {"testing", "recipes"}
    assert packages <= {file.relative_to(ROOT / "tests").parts[0] for file in files}
