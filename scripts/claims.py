"""Keep the results of studies beside the documentation, and write the page of claims from them.

python scripts/claims.py collect runs    # adds the numbers of every study below runs/ to those in docs/results/
python scripts/claims.py page            # writes docs/claims.md, and tables and figures into the other pages about results
python scripts/claims.py check           # names kept results whose study has other options or defaults now
python scripts/claims.py plan            # prints the runs that claims still lack, those that decide most first
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.core.errors import UserError
from unisono.studies.claims import WHOLE, cells_of_claim, read_papers
from unisono.studies.claims_page import PRIORITIES, claims_page
from unisono.studies.findings import fill_page
from unisono.studies.kept_defaults import add_defaults, changed_defaults
from unisono.studies.kept_results import keep, read_kept, stale_cells
from unisono.studies.numbers import Numbers, read_numbers
from unisono.studies.study import list_studies, slug

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> int:
    """Run one of the commands; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("directory", type=Path, help="of runs, or of one study")
    collecting.add_argument("--replace", action="store_true", help="take the new numbers of a seed that is kept with others")
    commands.add_parser("page")
    commands.add_parser("check")
    planning = commands.add_parser("plan")
    planning.add_argument("--seeds", type=int, default=3, help="that every claim should have")
    planning.add_argument("--scale", action="append", help="of the claims, repeatable; default: all but paper")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the directory of the documentation")
    arguments = parser.parse_args()
    try:
        if arguments.command == "collect":
            return collect(arguments.directory, arguments.docs / "results", arguments.replace)
        if arguments.command == "check":
            return check(arguments.docs / "results")
        if arguments.command == "plan":
            plan(arguments.docs / "results", arguments.seeds, arguments.scale or ["mini", "small", "long"])
            return 0
        write_pages(arguments.docs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def collect(directory: Path, results: Path, replace: bool = False) -> int:
    """Add the numbers of all studies below a directory; leave out what was run with other options than the study has."""
    files = [directory / "results.json"] if (directory / "results.json").is_file() else sorted(directory.glob("*/results.json"))
    if not files:
        raise UserError(f"There is no results.json in {directory} or one level below: run 'unisono study' first.")
    status = 0
    for path in files:
        numbers = read_numbers(path)
        if numbers.study not in list_studies():
            print(f"{path}: left out, {numbers.study} is no study of the package")
        elif problems := stale_cells(numbers):
            status = 1
            print(f"{path}: left out.", *problems.values(), sep="\n  ")
        elif not numbers.cells:
            print(f"{path}: left out, no run is finished")
        else:
            kept = keep(numbers, results, replace)
            runs = sum(len(cell.seeds) for cell in kept.numbers.cells.values())
            print(f"{kept.path}: {runs} runs in {len(kept.numbers.cells)} cells, {kept.path.stat().st_size:,} bytes")
            print(*(f"  {note}\n" for note in kept.notes), sep="", end="")
    add_defaults(results, read_kept(results))
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


def plan(results: Path, num_seeds: int, scales: Sequence[str]) -> None:
    """Print a command for each claim that lacks runs: headline claims first, then by the number of runs."""
    kept = {(one.study, one.scale): one for one in read_kept(results)}
    lines = []
    for claim in (claim for paper in read_papers() for claim in paper.claims if not claim.lacks and claim.scale in scales):
        for study, cells in cells_of_claim(claim).items():
            numbers = kept.get((study, claim.scale))
            lacking = {place: missing_seeds(numbers, place, num_seeds) for place in cells}
            seeds = sorted({seed for found in lacking.values() for seed in found})
            names = dict.fromkeys(slug(name) for place, found in lacking.items() if found for name in place if name != WHOLE)
            only = "".join(f" --only {name}" for name in names)
            if seeds:
                command = f"{study} --scale {claim.scale} --seeds {','.join(map(str, seeds))}{only}"
                lines.append((PRIORITIES.index(claim.priority), sum(map(len, lacking.values())), command, claim))
    for _, number, command, claim in sorted(lines, key=lambda line: line[:3]):
        print(f"{claim.priority:8} {number:3} runs  {claim.id}\n  unisono study {command}")


def missing_seeds(numbers: Numbers | None, place: tuple[str, str], num_seeds: int) -> list[int]:
    """Return the seeds, of the first few, that a cell has no run of."""
    cell = None if numbers is None else numbers.cells.get(place)
    return sorted(set(range(num_seeds)) - set(cell.seeds if cell else ()))


def check(results: Path) -> int:
    """Print what was run with other options than its study has now, and which defaults have changed since."""
    problems = [problem for numbers in read_kept(results) for problem in stale_cells(numbers).values()]
    problems += changed_defaults(results)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
