"""``unisono cluster``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.samples import chosen_on_error, note_unreadable
from unisono.cli.tables import make_console, make_table

Row = tuple[str, int, float]
"""Name, cluster and confidence of a sample."""


def cluster(
    run: options.Run,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", hidden=True)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a .csv file instead of a table.")] = None,
    clusters: Annotated[
        int | None, typer.Option(help="How many, where the method learns none; default: as the gallery has.")
    ] = None,
    on_error: options.OnError = None,
    json: options.Json = False,
) -> None:
    """Find the clusters of images or series.

    RUN is a run directory; a method that learns no clusters gets those of k-means that its gallery shows. FILES are images,
    folders of images, or files of arrays (.npz with an array 'x', .npy, .parquet). For each there is the number of its cluster
    and how sure the model is of it, from 0 to 1; row 7 of a.npz is called a.npz#7.

    Example: unisono cluster runs/clusters samples.npz --output clusters.csv
    """
    import json as json_format

    from unisono.core.errors import UserError
    from unisono.loaded import load
    from unisono.runs.files import check_writable, write_atomically

    if output is not None and output.suffix != ".csv":
        raise UserError(f"--output must end in .csv, got {output}.")
    if clusters is not None and clusters < 1:
        raise UserError(f"--clusters must be at least 1, got {clusters}.")
    if output is not None:
        check_writable(output)
    loaded = load(run)
    rows: list[Row] = []
    chosen = chosen_on_error(on_error)
    parts = [loaded.clustered(file, clusters, on_error=chosen) for file in files]
    note_unreadable([problem for part in parts for problem in part.problems])
    for part in parts:
        confidences, found = part.features.max(dim=1)
        rows += zip(part.samples.names, found.tolist(), confidences.tolist(), strict=True)
    if output is not None:
        write_atomically(output, _csv(rows).encode())
    if json:
        print(json_format.dumps([{"file": name, "cluster": number, "confidence": sure} for name, number, sure in rows]))
    elif output is not None:
        number = len({number for _, number, _ in rows})
        make_console().print(f"{len(rows):,} samples in {number} clusters in {output}", soft_wrap=True)
    else:
        cells = [[name, str(number), f"{sure:.3f}"] for name, number, sure in rows]
        make_console().print(make_table(["file", "cluster", "confidence"], cells, right=["cluster", "confidence"]))


def _csv(rows: Sequence[Row]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "cluster", "confidence"])
    writer.writerows((name, number, f"{sure:.6f}") for name, number, sure in rows)
    return text.getvalue()
