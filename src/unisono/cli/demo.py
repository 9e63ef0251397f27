"""``unisono demo``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from unisono.cli import options
from unisono.cli.error_output import stopping
from unisono.cli.tables import floor_table, make_console

METHODS = ("simclr", "orchestra")
"""Methods that are compared; the recipe ``demo`` has their numbers."""
SHOWN = ("linear", "knn", "labels-10", "cluster-accuracy")
CLUSTERING = "orchestra"
"""The method whose page shows clusters; it comes last."""


def demo(
    settings: options.Overrides = None,
    directory: Annotated[str, typer.Option(help="Where the run directories go; default runs.", show_default=False)] = "runs",
) -> None:
    """Compare Orchestra, SimCLR, raw pixels and untrained weights.

    Learns without labels on images inside the package; both methods get the same clients, rounds and samples. No download;
    minutes on two cores.

    Example: unisono demo --set federation.rounds=1 --set data.limit=200
    """
    import time

    from unisono.cli.progress import Progress, headline
    from unisono.cli.run_progress import probes_of
    from unisono.config import resolve
    from unisono.evaluation.floors import verdict
    from unisono.experiment import Experiment, run_path
    from unisono.recipes import build_tree
    from unisono.running import start

    stamp = time.strftime("%Y%m%d-%H%M%S")
    console = make_console()
    rows: dict[str, dict[str, float]] = {}
    paths: dict[str, Path] = {}
    console.print(f"{' and '.join(METHODS)} learn without labels from images of many clients; minutes on two cores.\n")
    for method in METHODS:
        own = [f"run.directory={directory}", f"run.name=demo-{stamp}-{method}"]
        config = resolve(build_tree("demo", {"method": method}, [*own, *(settings or ())]))
        console.print(headline(config))
        experiment = Experiment.prepare(config)
        paths[method] = run_path(config)
        with stopping(paths[method]), Progress(config, console) as progress:
            finished = start(experiment, paths[method], callbacks=[progress])
        for name, scores in (*finished.directory.floors.items(), (method, probes_of(finished.metrics[-1]))):
            rows.setdefault(name, {}).update(_shown(scores))  # only a method with clusters has floors of clusters
        console.print()
    console.print(floor_table(rows))
    console.print(
        "\nAccuracy of probes on frozen features; the encoders have seen no label. labels-10 learns from ten labels per class; "
        "cluster-accuracy matches clusters and classes one to one: Orchestra's own, of which there are more than classes, and "
        "elsewhere those of k-means.",
    )
    floors = {name: scores for name, scores in rows.items() if name not in METHODS}
    for method in METHODS:
        above, sentence = verdict(rows[method], floors)
        if sentence:
            console.print(f"{method}: {sentence if above else f'warning: {sentence}'}", soft_wrap=True)
    console.print()
    for method, path in paths.items():
        # Where the report is switched off, or could not be drawn, there is the run itself.
        page = path / "report.html"
        console.print(f"Report of {method}: {page if page.is_file() else path}", soft_wrap=True)
    gallery = paths[CLUSTERING] / "gallery.html"
    if gallery.is_file():
        console.print(f"Clusters and their images: {gallery}", soft_wrap=True)


def _shown(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the accuracies that the table has; those of k-means where a method learns no clusters."""
    from unisono.evaluation.floors import CLUSTER_SCORES

    named = {own: scores[name] for name, own in CLUSTER_SCORES.items() if name in scores} | dict(scores)
    return {name: named[name] for name in SHOWN if name in named}
