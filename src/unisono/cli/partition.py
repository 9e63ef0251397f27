"""``unisono partition``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from unisono.data.partition import Partition

FEW = 30
"""Most clients that are shown one by one; more are shown by a summary and the first rows."""
FIRST_ROWS = 10
MOST_BARS = 20
BARS = "▁▂▃▄▅▆▇█"
DIGITS = "123456789"
"""Marks for tenths, for a terminal without Unicode."""


def partition(
    reference: options.OptionalRecipe = None,
    dataset: options.Dataset = None,
    scheme: Annotated[str | None, typer.Option(help="A name from 'unisono list partitioners' (partition.scheme).")] = None,
    clients: options.NumClients = None,
    alpha: options.Alpha = None,
    seed: options.Seed = None,
    settings: options.Overrides = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the split too.")] = None,
    every_client: Annotated[bool, typer.Option("--all", help="Show every client, however many there are.")] = False,
) -> None:
    """Show who would hold which classes.

    RECIPE|METHOD is as for 'unisono run': whose data and split to take; nothing is trained.

    Example: unisono partition --dataset digits --clients 8 --plot split.png
    """
    from unisono.config import resolve
    from unisono.core.config import merge
    from unisono.data.datasets import load_dataset
    from unisono.data.partition import partition_dataset
    from unisono.data.shift import bin_counts, check_shift
    from unisono.recipes import build_tree

    flags = {"dataset": dataset, "clients": clients, "alpha": alpha, "seed": seed}
    # A config names a method; without a recipe any will do, as none runs.
    tree = build_tree(reference or "simclr", flags, settings or ())
    config = resolve(tree if scheme is None else merge(tree, {"partition": {"scheme": scheme}}))
    data = load_dataset(config.data)
    split = partition_dataset(config.partition, data, config.run.seed)
    check_shift(config.shift, data.input_shape)
    turns = bin_counts(config.shift, split, config.run.seed) if config.shift.kind == "rotation" else None

    console = make_console()
    console.print(_summary(split, data.labels, f"{data.name} by {config.partition.scheme}", turns) + "\n")
    num_rows = split.num_clients if every_client or split.num_clients <= FEW else FIRST_ROWS
    console.print(_table(split, data.labels, turns, num_rows, BARS if console.encoding.startswith("utf") else DIGITS))
    if num_rows < split.num_clients:
        console.print(f"... and {split.num_clients - num_rows:,} more clients: --all shows them.")
    for note in split.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if plot is not None:
        _draw(split, data.labels, data.class_names, plot, turns)
        console.print(f"\nDrawn in {plot}", soft_wrap=True)


def _summary(split: Partition, labels: Tensor | None, title: str, turns: Tensor | None) -> str:
    from unisono.data.partition import mean_number_held

    sizes = split.sizes
    text = (
        f"{title}: {int(sizes.sum()):,} samples of {split.num_clients:,} clients, "
        f"{int(sizes.min()):,} to {int(sizes.max()):,} each (median {int(sizes.median()):,})"
    )
    if labels is not None:
        text += f"; {mean_number_held(split.class_counts(labels)):.1f} classes per client on average"
    if turns is not None:
        text += f"; images rotated by {mean_number_held(turns):.1f} of {turns.shape[1]} bins of angles per client on average"
    return text


def _table(split: Partition, labels: Tensor | None, turns: Tensor | None, num_rows: int, bars: str) -> Table:
    """Return a row per client: samples, classes, share of its biggest class, a bar of its shares, and one of its rotations."""
    columns = ["client", "samples"]
    rows = [[str(client_id), f"{size:,}"] for client_id, size in enumerate(split.sizes.tolist()[:num_rows])]
    if labels is not None:
        counts = split.class_counts(labels)[:num_rows]
        columns += ["classes", "biggest", f"share of classes 0 to {counts.shape[1] - 1}"]
        for cells, row in zip(rows, counts, strict=True):
            share = f"{row.max() / row.sum():.0%}" if row.sum() else ""
            cells += [str(int((row > 0).sum())), share, bar(row, bars)]
    if turns is not None:
        columns.append("rotations 0 to 360°")
        for cells, row in zip(rows, turns[:num_rows], strict=True):
            cells.append(bar(row, bars))
    return make_table(columns, rows, right=columns[:4] if labels is not None else columns[:2])


def bar(counts: Tensor, bars: str) -> str:
    """Return a character per class, or per few neighbouring ones where there are many; its height is their share."""
    step = -(-len(counts) // MOST_BARS)
    shares = [float(part.sum()) / max(1, int(counts.sum())) for part in counts.split(step)]
    return "".join(" " if share == 0 else bars[min(len(bars) - 1, int(share * len(bars)))] for share in shares)


def _draw(split: Partition, labels: Tensor | None, class_names: Sequence[str], plot: Path, turns: Tensor | None) -> None:
    from unisono.core.errors import UserError
    from unisono.data.partition_plot import draw_partition
    from unisono.runs.files import explained

    try:
        with explained(plot):
            draw_partition(split, labels, class_names or None, plot, turns)
    except ValueError as error:
        raise UserError(f"--plot must name an image file such as split.png, got {plot}: {error}.") from error
