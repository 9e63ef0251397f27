"""``unisono neighbors``, ``unisono duplicates`` and ``unisono outliers``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import options
from unisono.cli.samples import chosen_on_error, note_unreadable
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from unisono.report.blocks import Document
    from unisono.search import Row

MOST_SHOWN = 20
"""Lines of the table in the terminal."""

Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="Page to write, .html, with a .csv beside it; named like the command.", show_default=False
    ),
]
Folder = Annotated[Path | None, typer.Argument(metavar="[FOLDER]", hidden=True)]


def neighbors(
    run: options.Run,
    query: Annotated[Path, typer.Argument(metavar="QUERY", hidden=True)],
    folder: Folder = None,
    top: Annotated[int, typer.Option(help="Images to find for each query; default 10.", show_default=False)] = 10,
    output: Output = Path("neighbors.html"),
    on_error: options.OnError = None,
    json: options.Json = False,
) -> None:
    """Find the nearest images to an image.

    RUN is a run directory. QUERY is an image, a folder of images or a file of arrays (.npz with an array 'x', .npy, .parquet);
    each of its samples is searched for among those of FOLDER, by default among the run's own data. Samples are near if the
    cosine of their features is high. A page shows thumbnails, a .csv file lists files and cosines.

    Example: unisono neighbors runs/demo samples.npz --top 12
    """
    from unisono.loaded import load
    from unisono.search_pages import counted_queries, neighbors_page

    _check(output)
    found = load(run).neighbors(query, folder, top, on_error=chosen_on_error(on_error))
    note_unreadable(found.problems)
    table = found.table()
    _give(table, neighbors_page(found, str(run)), output, table, json, _joined(counted_queries(found), found.how))


def duplicates(
    run: options.Run,
    folder: Folder = None,
    threshold: Annotated[float | None, typer.Option(help="Least cosine; default: read off the images.")] = None,
    output: Output = Path("duplicates.html"),
    on_error: options.OnError = None,
    json: options.Json = False,
) -> None:
    """List images that are there twice, or nearly.

    RUN is a run directory. FOLDER holds images, one folder per client; it may be an .npz, .npy or .parquet file and is by
    default the run's own data. Equal files come first. Near duplicates have a high cosine of their features; the threshold is
    shown. The page keeps pairs across folders and pairs within one apart.

    Example: unisono duplicates runs/demo samples.npz
    """
    from unisono.loaded import load
    from unisono.search_pages import duplicates_page, threshold_sentence

    _check(output)
    found = load(run).duplicates(folder, threshold, on_error=chosen_on_error(on_error))
    note_unreadable(found.problems)
    table = found.table()
    across = sum(row["across"] == "yes" for row in table)
    counts = f"{len(found.exact):,} equal and {found.near.num_found:,} near pairs, {across:,} of those listed across folders"
    summary = _joined(threshold_sentence(found), counts, found.how)
    whole = {"threshold": found.threshold, "pairs": table}
    _give(table, duplicates_page(found, str(run)), output, whole, json, summary)


def outliers(
    run: options.Run,
    folder: Folder = None,
    neighbors: Annotated[int, typer.Option(help="Mean over this many nearest images; default 10.", show_default=False)] = 10,
    output: Output = Path("outliers.html"),
    on_error: options.OnError = None,
    json: options.Json = False,
) -> None:
    """Rank images by their distance from all others.

    RUN is a run directory. FOLDER holds images; it may be an .npz, .npy or .parquet file and is by default the run's own
    data. The distance of an image is the mean cosine distance of its features to those of its nearest images; the farthest
    come first.

    Example: unisono outliers runs/demo samples.npz
    """
    from unisono.loaded import load
    from unisono.search_pages import outliers_page

    _check(output)
    found = load(run).outliers(folder, neighbors, on_error=chosen_on_error(on_error))
    note_unreadable(found.problems)
    table = found.table()
    summary = _joined(f"{len(table):,} images, the farthest first", found.how)
    _give(table, outliers_page(found, str(run)), output, table, json, summary)


def _joined(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _check(output: Path) -> None:
    from unisono.core.errors import UserError
    from unisono.runs.files import check_writable

    if output.suffix != ".html":
        raise UserError(f"--output must end in .html, got {output}.")
    check_writable(output)


def _give(table: Sequence[Row], page: Document, output: Path, whole: Any, json: bool, summary: str) -> None:
    """Write page and table; print JSON, or the first lines of the table."""
    import json as json_format

    from unisono.report.html import render
    from unisono.runs.files import write_atomically

    listed = output.with_suffix(".csv")
    write_atomically(output, render(page).encode())
    _write_csv(listed, table)
    if json:
        print(json_format.dumps(whole, default=list))
        return
    console = make_console()
    if table:
        same = "query" in table[0] and table[0]["query"] == table[-1]["query"]
        heads = [head for head in table[0] if not (head == "query" and same)]
        numbers = [head for head in heads if not isinstance(table[0][head], str)]
        cells = [[_cell(row[head], 4) for head in heads] for row in table[:MOST_SHOWN]]
        console.print(make_table(heads, cells, right=numbers))
    if len(table) > MOST_SHOWN:
        console.print(f"and {len(table) - MOST_SHOWN:,} more", soft_wrap=True)
    console.print(f"{summary}\nPage in {output}, table in {listed}", soft_wrap=True)


def _write_csv(path: Path, table: Sequence[Row]) -> None:
    """Write a table row by row, under another name until it is whole."""
    import csv

    from unisono.runs.files import explained, make_directory
    from unisono.search import columns_of

    with explained(path):
        make_directory(path.parent)
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w", encoding="utf-8", newline="") as text:
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns_of(table))
            writer.writerows([_cell(value, 6) for value in row.values()] for row in table)
        temporary.replace(path)


def _cell(value: str | int | float, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
