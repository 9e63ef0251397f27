"""Report of a run, made from its directory alone, so that it can be made at any time, anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from unisono.core.config import Tree
from unisono.core.errors import UserError
from unisono.evaluation.floors import verdict
from unisono.evaluation.truth import NUMBERS, tell
from unisono.report.blocks import Block, Document, code, document, facts, link, prose, section, table
from unisono.report.clients import client_table, failure_table
from unisono.report.curves import by_name, curve_blocks, how_to_add_scores, is_accuracy, is_loss
from unisono.report.embedding_map import SPRITE, map_block, sheet_block
from unisono.report.files import ReportFiles
from unisono.report.gallery import FILE as GALLERY
from unisono.report.gallery import gallery_document
from unisono.report.html import render
from unisono.report.overview import split_chart, split_in_words, turn_chart, what_was_run
from unisono.report.privacy_section import privacy_blocks
from unisono.report.status import Status, run_status
from unisono.report.timings import timing_blocks, total_seconds
from unisono.runs.directory import RunDirectory
from unisono.runs.evaluation import PREFIX
from unisono.runs.files import write_atomically

FILE = "report.html"
MOST_NOTES = 50
TABLE_NOTE = (
    "Shares of 1, but for the rank. Views that find each other, a rank and an agreement of clusters above the floors are "
    "good; a mean cosine near 1 is a collapse; own-site is the share of neighbours from the same site."
)
Projection = Literal["auto", "tsne", "pca"]


def write_report(
    directory: RunDirectory, projection: Projection = "auto", status: Status | None = None, num_clusters: int | None = None
) -> Path:
    """Write ``report.html`` and ``gallery.html`` into the run directory and return the path of the first.

    Args:
        directory: of a run that is finished, stopped, failed or going on.
        projection: how the map is drawn.
        status: where the run stands, from whoever knows; None reads it off the directory.
        num_clusters: of the gallery, see ``gallery_document``.
    """
    path = directory.path / FILE
    gallery = gallery_document(directory, num_clusters)
    if gallery is not None:
        write_atomically(directory.path / GALLERY, render(gallery).encode())
    write_atomically(path, render(run_document(directory, projection, status)).encode())
    return path


def run_document(directory: RunDirectory, projection: Projection = "auto", status: Status | None = None) -> Document:
    """Return the report as data.

    Args:
        directory: of the run.
        projection: how the map is drawn.
        status: where the run stands, from whoever knows; None reads it off the directory.
    """
    tree, files = directory.config_tree, ReportFiles(directory)
    status = run_status(directory) if status is None else status
    logs, damaged = directory.intact_logs()
    about = files.read("about") or {}
    split, samples = files.read("split"), files.read("samples")
    client_names = about.get("client_names", [])
    seed = int(tree["run"]["seed"])
    warnings, learnt = _warnings(status, files, damaged), _against_floors(directory.floors, logs["metrics"])
    overview = what_was_run(tree, about, of_federation=directory.of_federation)
    return document(
        directory.path.resolve().name,
        _subtitle(tree, about, directory.of_federation),
        [
            section("learnt", "What was learnt", [*warnings, *learnt] if learnt else []),
            section("run", "What was run", [overview] if learnt else [*warnings, overview]),
            section("data", "Data", _data(split, about.get("classes", []), client_names)),
            section("curves", "Curves", curve_blocks(logs["metrics"]), note=how_to_add_scores(logs["metrics"])),
            section("map", "Map", [map_block(files, projection, seed), sheet_block(files), _gallery(directory)]),
            section("clients", "Clients", [client_table(logs["clients"], logs["failures"], split, client_names)]),
            section("failures", "Failures", [failure_table(logs["failures"])]),
            section("notes", "Notes", [_notes(logs["notes"])]),
            section("privacy", "Privacy", privacy_blocks(tree, about, logs["privacy"], _optional(directory, "privacy.json"))),
            section("timings", "Timings", timing_blocks(logs["timings"])),
            section("environment", "Environment", [_environment(directory)]),
            section("repeat", "Repeat it", _repeat(directory, directory.of_federation)),
        ],
        status=status.word,
        tiles=_tiles(status, tree, logs),
        assets={SPRITE: samples} if samples else None,
    )


def _data(split: Mapping[str, Any] | None, classes: Sequence[str], client_names: Sequence[str]) -> list[Block | None]:
    return [] if split is None else [split_chart(split, classes, client_names), turn_chart(split, client_names)]


def _gallery(directory: RunDirectory) -> Block | None:
    """Return a link to the gallery where there is one."""
    there = (directory.path / GALLERY).is_file()
    return link(GALLERY, "Gallery: typical and borderline samples of each cluster") if there else None


def _subtitle(tree: Tree, about: Mapping[str, Any], of_federation: bool) -> str:
    data = f"{tree['data']['dataset']}, {split_in_words(tree)}"
    place = f"a federation of {tree['partition']['num_clients']} clients" if of_federation else data
    return f"{tree['method']['name']} on {place}. {about.get('sentence', '')}"


def _warnings(status: Status, files: ReportFiles, damaged: Sequence[str]) -> list[Block | None]:
    tone = "error" if status.word == "failed" else "warning"
    problems = files.errors
    return [
        prose(status.sentence, tone=tone) if status.sentence else None,
        *(prose(f"{sentence} It is left out here.", tone="warning") for sentence in damaged),
        code("A part of this report could not be made", problems, folded=True) if problems else None,
    ]


def _against_floors(floors: Mapping[str, Mapping[str, float]], metrics: Sequence[Mapping[str, Any]]) -> list[Block | None]:
    """Return a sentence on what was learnt, and the last probes beside the floors."""
    probed = [entry for entry in metrics if any(name.startswith(PREFIX) for name in entry)]
    if not floors or not probed:
        return []
    last = {name.removeprefix(PREFIX): value for name, value in probed[-1].items() if name.startswith(PREFIX)}
    above, sentence = verdict(last, floors)
    names = [name for name in last if is_accuracy(name) and any(name in scores for scores in floors.values())]
    rows = [
        [row, *(None if name not in scores else 100 * scores[name] for name in names)]
        for row, scores in {**floors, "this run": last}.items()
    ]
    shown = table("Against the floors", ["", *(f"{name} [%]" for name in names)], rows, digits=3) if names else None
    return [*_truth(last, floors), prose(sentence, tone="" if above else "warning") if sentence else None, shown]


def _truth(last: Mapping[str, float], floors: Mapping[str, Mapping[str, float]]) -> list[Block | None]:
    """Return what was learnt by numbers that need no labels, in sentences and as a table."""
    truth = tell(last, floors)
    if not truth.sentences and not truth.warnings:
        return []
    names = [name for name in NUMBERS if name in last]
    rows = [[row, *(scores.get(name) for name in names)] for row, scores in {**floors, "this run": last}.items()]
    return [
        *(prose(warning, tone="warning") for warning in truth.warnings),
        *(prose(sentence) for sentence in truth.sentences),
        table("Without labels", ["", *names], rows, digits=3, note=TABLE_NOTE),
    ]


def _tiles(status: Status, tree: Tree, logs: Mapping[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """Return the headline numbers: the last of each kind."""
    metrics, named = logs["metrics"], by_name(logs["metrics"])
    tiles = [(f"{status.rounds_done} / {status.num_rounds}", "rounds")]
    loss = next((list(values.values())[-1] for name, values in named.items() if is_loss(name)), None)
    tiles += [(f"{loss:.4g}", "loss")] if loss is not None else []
    for name, values in named.items():
        if name.startswith(PREFIX) and is_accuracy(name.removeprefix(PREFIX)) and len(tiles) < 4:
            round, value = list(values.items())[-1]
            tiles.append((f"{value:.1%}", f"{name.removeprefix(PREFIX)} probe, round {round}"))
    moved = sum(entry["bytes_down"] + entry["bytes_up"] for entry in metrics)
    seconds = total_seconds(logs["timings"])
    tiles += [(f"{moved / 1e6:,.1f} MB", "moved"), (in_words(seconds), "time")]
    if logs["failures"]:
        tiles.append((f"{len(logs['failures']):,}", "failures"))
    return tiles


def in_words(seconds: float) -> str:
    """Return a duration such as ``42 s``, ``3 min 5 s`` or ``2 h 10 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _notes(notes: list[dict[str, Any]]) -> Block | None:
    """Return a table of the notes for the user; notes from between rounds have no round."""
    rows = [[None if entry["round"] is None else entry["round"] + 1, entry["note"]] for entry in notes[-MOST_NOTES:]]
    return table("", ["round", "note"], rows) if rows else None


def _environment(directory: RunDirectory) -> Block | None:
    found = _optional(directory, "environment.json")
    return facts("", [(name, str(text)) for name, text in found.items()]) if found else None


def _optional(directory: RunDirectory, name: str) -> dict[str, Any]:
    """Return a JSON file that a run may not have."""
    try:
        return directory.read_json(name)
    except UserError:
        return {}


def _repeat(directory: RunDirectory, of_federation: bool) -> list[Block]:
    config, name = directory.path / "config.toml", f"{directory.path.resolve().name}-again"
    command = ["deploy", "run", str(config), "--server", "federation"] if of_federation else ["run", str(config)]
    title = (
        "The command that repeats it on the same federation"
        if of_federation
        else "The command that gives bit-identical results"
    )
    return [
        code(title, shlex.join(["unisono", *command, "--name", name])),
        code("config.toml: every option, and a recipe itself", config.read_text(encoding="utf-8"), folded=True),
    ]
