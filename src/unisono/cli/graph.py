"""``unisono graph``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from rich.table import Table

    from unisono.data.datasets import Dataset
    from unisono.data.graph import ClientGraph
    from unisono.data.partition import Partition


def graph(
    reference: options.OptionalRecipe = None,
    topology: Annotated[str | None, typer.Option(help="geometric, ring, complete or edges (graph.topology).")] = None,
    mean_degree: Annotated[float | None, typer.Option(help="Neighbours per client (graph.mean_degree).")] = None,
    clients: options.NumClients = None,
    seed: options.Seed = None,
    settings: options.Overrides = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw clients, links and classes too.")] = None,
) -> None:
    """Show which clients exchange data.

    RECIPE|METHOD is as for 'unisono run': whose clients to take, those of cfcl by default; nothing is trained.

    Example: unisono graph --clients 10 --plot graph.png
    """
    from unisono.config import resolve
    from unisono.core.config import merge
    from unisono.data.datasets import load_dataset
    from unisono.data.graph import make_graph
    from unisono.data.partition import partition_dataset
    from unisono.recipes import build_tree

    tree = build_tree(reference or "cfcl", {"clients": clients, "seed": seed}, settings or ())
    given = {"topology": topology, "mean_degree": mean_degree}
    config = resolve(merge(tree, {"graph": {name: value for name, value in given.items() if value is not None}}))
    # Natural owners decide how many clients there are; otherwise the data is read for the picture alone.
    reads_data = plot is not None or config.partition.scheme == "natural"
    data = load_dataset(config.data) if reads_data else None
    split = None if data is None else partition_dataset(config.partition, data, config.run.seed)
    num_clients = config.partition.num_clients if split is None else split.num_clients
    links = make_graph(config.graph, num_clients, config.run.seed)
    console = make_console()
    console.print(_summary(links, config.graph.topology) + "\n")
    console.print(_table(links))
    if plot is not None and data is not None and split is not None:
        _draw(links, split, data, plot)
        console.print(f"\nDrawn in {plot}", soft_wrap=True)


def _summary(links: ClientGraph, topology: str) -> str:
    parts = links.num_parts
    connected = "connected" if parts == 1 else f"in {parts} separate parts"
    degree = f"{links.mean_degree:.1f} neighbours each"
    return f"{topology}: {links.num_clients} clients, {len(links.edges)} links, {degree}, {connected}"


def _table(links: ClientGraph) -> Table:
    rows = []
    for client in range(links.num_clients):
        neighbors = links.neighbors(client)
        rows.append([str(client), str(len(neighbors)), ", ".join(map(str, neighbors))])
    return make_table(["client", "links", "neighbours"], rows, right=["client", "links"])


def _draw(links: ClientGraph, split: Partition, data: Dataset, plot: Path) -> None:
    from unisono.core.errors import UserError
    from unisono.data.graph_plot import draw_graph
    from unisono.runs.files import explained

    try:
        with explained(plot):
            class_counts = None if data.labels is None else split.class_counts(data.labels)
            draw_graph(links, class_counts, data.class_names, plot)
    except ValueError as error:
        raise UserError(f"--plot must name an image file such as graph.png, got {plot}: {error}.") from error
