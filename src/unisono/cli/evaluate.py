"""``unisono evaluate``."""

from __future__ import annotations

import json as json_format
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import options
from unisono.cli.tables import decimal, make_console, make_table

if TYPE_CHECKING:
    from rich.table import Table

BESIDE_THE_RESULT = ("recipe", "run", "engine", "evaluation", "report", "track")
"""Tables that may differ between runs of the same settings."""


@dataclass(frozen=True)
class Evaluated:
    """The probes of one run's last state.

    Args:
        path: the run directory.
        settings: all that decides about the run besides its seed, for comparison.
        seed: the run's.
        round: how many rounds the state has seen.
        probes: results by name.
        floors: of the same data, by the same probes.
        note: what the user should know about the scores.
    """

    path: Path
    settings: str
    seed: int
    round: int
    probes: Mapping[str, float]
    floors: Mapping[str, Mapping[str, float]]
    note: str


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", hidden=True)],
    probes: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            help="linear, knn, labels-10, finetune-1, finetune-10, clusters, kmeans, alignment, or the probe of a public code "
            "such as linear-orchestra; repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="An option of the table evaluation, or method.evaluate where a method has two encoders; repeatable.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Probe the last state of finished or stopped runs.

    RUN is a run directory. Probes look at all test samples. Runs that differ in their seeds alone are shown as mean and
    standard deviation.

    Example: unisono evaluate runs/demo --probe linear --probe knn
    """
    changes = _changes(probes, settings or ())
    results = [_evaluate(path, changes) for path in runs]
    groups: dict[str, list[Evaluated]] = {}
    for result in results:
        groups.setdefault(result.settings, []).append(result)
    if json:
        print(json_format.dumps({"runs": list(map(_as_json, results)), "groups": list(map(_group_as_json, groups.values()))}))
    else:
        _print(groups.values())


def _changes(probes: Sequence[str] | None, settings: Sequence[str]) -> dict[str, Any]:
    """Return the options that differ from those of the run."""
    from unisono.core.config import merge, parse_overrides
    from unisono.core.errors import UserError

    found = parse_overrides(settings)
    for assignment in settings:
        name = assignment.partition("=")[0].strip()
        if not name.startswith("evaluation.") and name != "method.evaluate":
            raise UserError(
                f"--set {name} cannot change a trained run: use an option of the table evaluation, or method.evaluate."
            )
    return merge(found, {"evaluation": {"probes": list(probes)}}) if probes else found


def _evaluate(path: Path, changes: Mapping[str, Any]) -> Evaluated:
    from unisono.config import resolve
    from unisono.core.config import merge
    from unisono.data.fingerprint import fingerprint
    from unisono.experiment import Experiment
    from unisono.loaded import load

    loaded = load(path)
    tree = loaded.directory.config_tree
    experiment = Experiment.prepare(resolve(merge(tree, changes)))
    evaluator = experiment.evaluator()
    others = loaded.directory.other_data(fingerprint(experiment.dataset))
    notes = [evaluator.space_note(loaded.server), f"{others}: the scores are those of other samples." if others else ""]
    values = evaluator(loaded.server, loaded.round)
    same = {table: content for table, content in tree.items() if table not in BESIDE_THE_RESULT}
    return Evaluated(
        path,
        json_format.dumps(same, sort_keys=True),
        loaded.config.run.seed,
        loaded.round,
        values,
        evaluator.floors(),
        " ".join(filter(None, notes)),
    )


def _print(groups: Collection[Sequence[Evaluated]]) -> None:
    """Print a table, floors first, and a sentence on each group against its floors."""
    from unisono.evaluation.floors import floor_rows, mean_floors, verdict

    console = make_console()
    found = {_label(group): mean_floors([result.floors for result in group]) for group in groups}
    floors = floor_rows(found)
    measured = {name for group in groups for name in group[0].probes}
    cells = {name: {p: decimal(value) for p, value in scores.items() if p in measured} for name, scores in floors.items()}
    console.print(_table(cells | {_label(group): _cells(group) for group in groups}))
    for note in dict.fromkeys(group[0].note for group in groups if group[0].note):
        console.print(f"\nnote: {note}", soft_wrap=True)
    for group in groups:
        means = {name: statistics.mean(values) for name, values in _columns(group).items()}
        above, sentence = verdict(means, found[_label(group)])
        if sentence:
            console.print(f"\n{_label(group)}: {sentence if above else f'warning: {sentence}'}", soft_wrap=True)


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation over seeds, as of a sample; None for a single one."""
    return statistics.stdev(values) if len(values) > 1 else None


def _columns(group: Sequence[Evaluated]) -> dict[str, list[float]]:
    """Return the values of every probe over the runs of a group."""
    return {name: [result.probes[name] for result in group] for name in group[0].probes}


def _label(group: Sequence[Evaluated]) -> str:
    name = group[0].path.resolve().name
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more"


def _cells(group: Sequence[Evaluated]) -> dict[str, str]:
    cells = {}
    for name, values in _columns(group).items():
        deviation = spread(values)
        cells[name] = decimal(statistics.mean(values)) + ("" if deviation is None else f" ± {decimal(deviation)}")
    return cells


def _table(cells: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table with runs down and probes across, or the other way round where there are more probes than runs."""
    labels = list(cells)
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    if len(labels) >= len(names):
        rows = [[label, *(cells[label].get(name, "") for name in names)] for label in labels]
        return make_table(["run", *names], rows, right=names)
    rows = [[name, *(cells[label].get(name, "") for label in labels)] for name in names]
    return make_table(["probe", *labels], rows, right=labels)


def _as_json(result: Evaluated) -> dict[str, Any]:
    return {
        "run": str(result.path),
        "seed": result.seed,
        "rounds": result.round,
        "probes": dict(result.probes),
        "floors": dict(result.floors),
    }


def _group_as_json(group: Sequence[Evaluated]) -> dict[str, Any]:
    columns = _columns(group)
    return {
        "runs": [str(result.path) for result in group],
        "seeds": [result.seed for result in group],
        "mean": {name: statistics.mean(values) for name, values in columns.items()},
        "std": {name: spread(values) for name, values in columns.items()},
    }
