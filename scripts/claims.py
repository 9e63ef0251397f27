"""Keep the results of studies beside the documentation, and write the page of claims from them.

python scripts/claims.py collect runs    # copies the numbers of every study below runs/ to docs/results/
python scripts/claims.py page            # writes docs/claims.md, and tables and figures into the other pages about results
python scripts/claims.py check           # names kept results whose study has other options now
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from unisono.core.errors import UserError
from unisono.studies.claims import read_papers
from unisono.studies.claims_page import claims_page
from unisono.studies.findings import fill_page
from unisono.studies.kept_results import keep, other_settings, read_kept
from unisono.studies.numbers import read_numbers
from unisono.studies.study import list_studies

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> int:
    """Run one of the commands; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("collect").add_argument("directory", type=Path, help="of runs, or of one study")
    commands.add_parser("page")
    commands.add_parser("check")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the directory of the documentation")
    arguments = parser.parse_args()
    try:
        if arguments.command == "collect":
            return collect(arguments.directory, arguments.docs / "results")
        if arguments.command == "check":
            return check(arguments.docs / "results")
        write_pages(arguments.docs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def collect(directory: Path, results: Path) -> int:
    """Copy the numbers of all studies below a directory; leave out what was run with other options than the study has."""
    files = [directory / "results.json"] if (directory / "results.json").is_file() else sorted(directory.glob("*/results.json"))
    if not files:
        raise UserError(f"There is no results.json in {directory} or one level below: run 'unisono study' first.")
    status = 0
    for path in files:
        numbers = read_numbers(path)
        if numbers.study not in list_studies():
            print(f"{path}: left out, {numbers.study} is no study of the package")
        elif problems := other_settings(numbers):
            status = 1
            print(f"{path}: left out.", *problems, sep="\n  ")
        elif not numbers.cells:
            print(f"{path}: left out, no run is finished")
        else:
            kept = keep(numbers, results)
            print(f"{kept}: {len(numbers.cells)} cells, {kept.stat().st_size:,} bytes")
    return status


def write_pages(docs: Path) -> None:
    """Write the page of claims, and fill the blocks of the pages of prose."""
    papers, numbers = read_papers(), read_kept(docs / "results")
    (docs / "claims.md").write_text(claims_page(papers, numbers), encoding="utf-8")
    for page in (*docs.glob("findings/*.md"), *docs.glob("choosing-a-method.md")):
        figures = "figures" if page.parent == docs else "../figures"
        filled = fill_page(page.read_text(encoding="utf-8"), papers, numbers, figures)
        page.write_text(filled.text, encoding="utf-8")
        for name, svg in filled.figures.items():
            (docs / "figures" / name).write_bytes(svg)


def check(results: Path) -> int:
    """Print what was run with other options than its study has now."""
    problems = [problem for numbers in read_kept(results) for problem in other_settings(numbers)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
