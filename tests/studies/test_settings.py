"""Every number of a paper's setting stands in one place: recipes and studies cannot disagree about it.

Each cell of each study is resolved at each scale and held against its recipe with the same method.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from unisono.config import Config, resolve
from unisono.core.config import parse_overrides
from unisono.recipes import build_tree, list_recipes, load_recipe
from unisono.studies.grid import ALL_SAMPLES, NO_REPORT, Cell, make_cells
from unisono.studies.runner import comparable
from unisono.studies.study import list_studies, read_study, scales_of

BRANCH = "FedU's learning rate falls as in the whole run, of which these runs are branches"
SHORT = "minutes on two cores"
LONG = "the headline claim needs a long run"
PAPER_START = "the long run has the paper's start only"
JOINT = "the figure has joint shift, the recipe is the table's column of label skew"
SHORT_ROUNDS = dict.fromkeys(
    ["training.local_steps", "method.pull_steps", "federation.rounds"],
    "rounds of 5 steps divide the pull interval of 10 and every aggregation interval",
)
DEPARTURES: dict[tuple[str, str], dict[str, str]] = {
    ("cfcl-figure-3f", "mini"): SHORT_ROUNDS,
    ("cfcl-figure-3f", "paper"): SHORT_ROUNDS,
    ("fedmcc-figure-5", "paper"): dict.fromkeys(
        ["data.dataset", "data.unlabelled", "views.preset"], "the figure is of STL-10, the recipe of CIFAR-10"
    ),
    ("fedmcc-figure-6", "small"): {"training.schedule_rounds": BRANCH},
    ("fedmcc-figure-6", "paper"): {"training.schedule_rounds": BRANCH},
    ("fedmcc-table-1", "long"): {"data.limit": LONG, "method.cluster_start": PAPER_START},
    ("fedmcc-table-2", "long"): {
        "data.limit": LONG,
        "method.cluster_start": PAPER_START,
        "partition.scheme": "the table is of uneven data",
    },
    ("fedmcc-table-2", "small"): {"partition.scheme": "the table is of uneven data"},
    ("fedmcc-table-2", "paper"): {"partition.scheme": "the table is of uneven data"},
    ("fedmcc-table-3", "paper"): {"model.backbone": "the table is of ResNet-50"},
    ("fedmcc-table-5", "small"): {"method.divergence_scale": "the table has FedEMA with lambda 1 only"},
    ("fedmcc-table-5", "paper"): {
        "method.divergence_scale": "the table has FedEMA with lambda 1 only",
        "data.held_out_labels": "fine-tuning learns from labels of samples that training did not see",
        "model.backbone": "FedSimCLR and FedCA are quoted with ResNet-50 only",
    },
    ("fedmcc-table-7", "small"): {"method.ema": "a target of fewer steps per round forgets as much as in the paper"},
    ("fedmcc-table-8", "long"): {"data.limit": LONG},
    ("orchestra-figure-4", "mini"): {"training.local_epochs": SHORT},
    ("orchestra-figure-4", "paper"): {"federation.rounds": "20 in tuning, says C.4"},
    ("orchestra-figure-7", "mini"): {
        "federation.rounds": SHORT,
        "training.local_epochs": SHORT,
        "training.lr_tuned_for_participation": "learning rates scale with the share",
    },
    ("orchestra-figure-7", "paper"): {"training.lr_tuned_for_participation": "learning rates scale with the share"},
    ("orchestra-figure-7", "small"): {"training.lr_tuned_for_participation": "learning rates scale with the share"},
    ("orchestra-figure-9", "long"): {
        "federation.rounds": LONG,
        "method.ema": "a target of more steps follows more slowly",
    },
    ("orchestra-figure-9", "mini"): {"training.local_epochs": SHORT},
    ("orchestra-figure-10", "mini"): {"training.local_epochs": SHORT},
    ("orchestra-figure-11", "mini"): {"federation.rounds": "only time is measured", "training.local_epochs": SHORT},
    ("orchestra-figure-11", "paper"): {"federation.rounds": "only time is measured"},
    ("orchestra-table-1", "long"): {
        "federation.rounds": LONG,
        "method.ema": "a target of more steps follows more slowly",
    },
    ("orchestra-table-2", "mini"): {"cohort.size": "two centroids for each global cluster", "federation.rounds": SHORT},
    ("orchestra-table-4", "paper"): {"model.backbone": "nothing is trained"},
    ("uv-figure-3b", "mini"): {"shift.kind": JOINT},
    ("uv-figure-3b", "paper"): {"shift.kind": JOINT},
    ("uv-figure-3c", "mini"): {
        "shift.kind": JOINT,
        "labels.fraction": "supervised training sees all labels",
        "data.probe_fraction": "the figure's probe learns from a fixed set that no client has",
    },
    ("uv-table-1", "long"): dict.fromkeys(["data.limit", "federation.rounds"], LONG),
    ("uv-table-6", "mini"): {"partition.num_clients": "many clients stand for the paper's 500"},
}
"""What a study sets in all its runs of a method although the recipe says something else, and why."""
DEPARTURES["uv-figure-3c", "paper"] = DEPARTURES["uv-figure-3c", "mini"]
NOT_THE_PAPERS = ("cfcl/fashion-mnist-ours", "cfcl/fashion-mini-ours", "cfcl/received")
"""Recipes that depart from their paper, beside one that does not."""
DIFFERENT = {("fedmcc/cifar10", "fedmcc/cifar10-features"): "Tables III to V quote rows at 32 px, and end with stage 1"}
"""Recipes of the same data and clients that are two settings."""
UPKEEP = ("evaluation", "report", "run", "engine", "track")
"""Tables that are no part of a paper's setting."""
pytestmark = pytest.mark.xdist_group("studies")  # one process resolves all cells, once


@dataclass(frozen=True)
class Resolved:
    """A cell with its options and those of its recipe with the same method."""

    study: str
    scale: str
    cell: Cell
    config: Config
    options: Mapping[str, Any]
    recipe: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.options["method.name"])

    @property
    def assigned(self) -> set[str]:
        """The options that the study sets here."""
        tree = parse_overrides(text for text in self.cell.assignments if text not in (NO_REPORT, *ALL_SAMPLES))
        return {f"{table}.{key}" for table, values in tree.items() for key in values}


@cache
def every_cell() -> tuple[Resolved, ...]:
    return tuple(_resolved())


def _resolved() -> Iterator[Resolved]:
    for name, path in list_studies().items():
        for scale in scales_of(path):
            study = read_study(name, scale)
            for cell in make_cells(study, Path("runs"), seeds=[0]):
                config, recipe = cell.config(), options_of(cell.reference, cell.method)
                yield Resolved(name, scale, cell, config, comparable(config.as_tree()), recipe)


@cache
def options_of(reference: str, method: str | None = None) -> dict[str, Any]:
    return comparable(resolve(build_tree(reference, {"method": method})).as_tree())


def by_study() -> dict[tuple[str, str], list[Resolved]]:
    found: dict[tuple[str, str], list[Resolved]] = defaultdict(list)
    for cell in every_cell():
        found[cell.study, cell.scale].append(cell)
    return found


def describe(cell: Resolved, option: str) -> str:
    return f"{cell.study} ({cell.scale}), {cell.cell.title}: {option} is {cell.options[option]!r}"


def test_a_cell_is_its_recipe_but_for_what_the_study_sets() -> None:
    for cell in every_cell():
        ours = {option for option in cell.options if cell.options[option] != cell.recipe.get(option)}
        assert ours <= cell.assigned, (cell.study, cell.scale, cell.cell.title, ours - cell.assigned)


def repeated(cells: list[Resolved]) -> Iterator[str]:
    """A line for every option that a study sets at a scale and that is nowhere different from the recipe."""
    for option in sorted({option for cell in cells for option in cell.assigned}):
        setting = [cell for cell in cells if option in cell.assigned]
        if all(cell.options[option] == cell.recipe.get(option) for cell in setting):
            yield f"{describe(setting[0], option)}, as {setting[0].cell.reference} says already"


def test_no_study_repeats_a_number_of_its_recipe() -> None:
    assert [line for cells in by_study().values() for line in repeated(cells)] == []


def departures(cells: list[Resolved]) -> dict[str, str]:
    """The options that a study changes in all runs of a method, so that it does not vary them."""
    found = {}
    for method in {cell.method for cell in cells}:
        own = [cell for cell in cells if cell.method == method]
        for option in set.intersection(*(cell.assigned for cell in own)):
            if option.split(".")[0] in UPKEEP:
                continue
            if len({str(cell.options[option]) for cell in own}) == 1 and own[0].options[option] != own[0].recipe.get(option):
                found[option] = describe(own[0], option)
    return found


def test_a_study_sets_only_what_it_varies() -> None:
    found = {key: set(departures(cells)) for key, cells in by_study().items()}
    assert {key: options for key, options in found.items() if options} == {key: set(why) for key, why in DEPARTURES.items()}


def settings_of_recipes() -> dict[tuple[str, ...], list[str]]:
    """Recipes by what makes a setting: paper, scale, data, partition and labels."""
    found = defaultdict(list)
    for name in set(list_recipes()) - set(NOT_THE_PAPERS):
        options = options_of(name)
        facts = ("data.dataset", "data.limit", "partition.num_clients", "labels.fraction")
        key = (name.partition("/")[0], load_recipe(name).about["scale"], *(str(options[fact]) for fact in facts))
        found[key].append(name)
    return found


def test_two_recipes_of_one_setting_agree_about_every_method() -> None:
    for names in settings_of_recipes().values():
        for first, second in combinations(sorted(names), 2):
            if (first, second) in DIFFERENT:
                continue
            for method in {*load_recipe(first).own_methods, *load_recipe(second).own_methods}:
                ours, theirs = options_of(first, method), options_of(second, method)
                other = {option for option in ours if ours[option] != theirs[option] and option.split(".")[0] not in UPKEEP}
                assert not other, f"{first} and {second} are the same setting and disagree for {method}: {other}"


def test_user_verification_at_mini_scale_has_the_clients_and_rounds_that_a_verdict_needs() -> None:
    for cell in every_cell():
        if cell.study.startswith("uv") and cell.scale == "mini":
            options = cell.options
            assert options["cohort.size"] == 10
            assert options["partition.num_clients"] >= 100
            assert options["federation.rounds"] * options["training.local_epochs"] >= 1000
            if options.get("method.uv_weight") and "method.uv_scale" not in cell.assigned:
                assert options["method.uv_scale"] == 3
