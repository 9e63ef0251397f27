"""Studies that come with the package."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from unisono.config import Config
from unisono.core.method import RunInfo, methods
from unisono.evaluation.config import ProbeName
from unisono.models.backbones import backbones
from unisono.models.nets import build_seeded
from unisono.studies.figure import paper_value
from unisono.studies.grid import check_cells, make_cells
from unisono.studies.history import logged_name
from unisono.studies.results import Results
from unisono.studies.study import Study, list_studies, read_study, scales_of

SCALES = [(name, scale) for name, path in list_studies().items() for scale in scales_of(path)]
NAMES = [
    *(f"orchestra-table-{number}" for number in (1, 2, 4, 6, 7)),
    *(f"orchestra-figure-{number}" for number in range(4, 13)),
    *(f"fedmcc-table-{number}" for number in range(1, 10)),
    *(f"fedmcc-figure-{number}" for number in range(4, 7)),
    *(f"uv-table-{number}" for number in range(1, 8)),
    *(f"uv-figure-3{letter}" for letter in "abc"),
    "uv-scale",
    *(f"cfcl-figure-3{letter}" for letter in "abcdefg"),
    "cfcl-received",
]
INPUT_SHAPE = (1, 28, 28)


@cache
def read(name: str, scale: str) -> Study:
    return read_study(name, scale)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_has_the_papers_scale_and_a_cheaper_one(name: str) -> None:
    *cheaper, last = scales_of(list_studies()[name])
    assert last == "paper"
    assert cheaper


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_all_cells_resolve(name: str, scale: str) -> None:
    study = read(name, scale)
    cells = make_cells(study, Path("runs"), seeds=[0])
    check_cells(cells, scale)
    configs = [cell.config() for cell in cells]
    assert {config.model.backbone for config in configs} <= set(backbones)
    seen = {str({**config.as_tree(), "run": None, "recipe": None}) for config in configs}
    untrained = len(study.setting_names) if study.config.untrained else 0
    assert len(seen) >= len(configs) - untrained, "two cells of the grid are the same experiment"


@pytest.mark.parametrize("name", list(list_studies()))
def test_no_list_of_settings_sets_a_key_twice(name: str) -> None:
    lists = re.findall(r"(?ms)^(?:\w+\.)?set = \[(.*?)\]$", list_studies()[name].read_text())
    for settings in lists:
        keys = re.findall(r'"([\w.]+)=', settings)
        assert len(keys) == len(set(keys)), settings


OF_SOME_ROWS = (("fedmcc-table-1", "kmeans-accuracy"), ("fedmcc-table-2", "kmeans-accuracy"))
"""Metrics that not every row has: the features of FedMCC beside its cluster head."""


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_it_says_what_it_is(name: str, scale: str) -> None:
    config = read(name, scale).config
    assert config.claim.endswith(".")
    assert config.cost
    assert config.source
    assert config.title
    if scale != "paper":
        assert len(config.seeds) >= 3 or config.plot == "scatter" or config.metrics == ("seconds",)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_metrics_are_probed(name: str, scale: str) -> None:
    """Every metric of the table comes from a probe that the run makes, or is no probe."""
    study = read(name, scale)
    aliases = {variant.name: variant.metrics for variant in study.variants}
    probed = set()
    for cell in make_cells(study, Path("runs"), seeds=[0]):
        config = cell.config()
        for metric in study.config.metrics:
            wanted = logged_name(aliases.get(cell.variant, {}).get(metric, metric))
            has = _probe_of(wanted) in (None, *_probes(config))
            assert has or (name, metric) in OF_SOME_ROWS, (cell.title, wanted)
            probed |= {metric} if has else set()
    assert probed == set(study.config.metrics)


@pytest.mark.parametrize(("name", "scale"), [pair for pair in SCALES if pair[1] != "paper"])
def test_methods_of_cheap_scales_can_be_built(name: str, scale: str) -> None:
    built = set()
    for cell in make_cells(read(name, scale), Path("runs"), seeds=[0]):
        config = cell.config()
        key = (config.method_name, str(config.method), str(config.model))
        if key not in built and config.model.pretrained is None:
            build_seeded(_method(config).build_networks, 0)
        built.add(key)


@pytest.mark.parametrize("name", [name for name in list_studies() if "paper" in scales_of(list_studies()[name])])
def test_the_papers_numbers_can_be_read(name: str) -> None:
    study = read(name, "paper")
    results = Results(study, [])
    for metric, by_variant in study.paper.items():
        for variant, by_setting in by_variant.items():
            for setting in by_setting:
                value = paper_value(results, metric, variant, setting)
                assert value is not None
                assert value > 0


def _method(config: Config) -> object:
    info = RunInfo(INPUT_SHAPE, (0.5,), (0.25,), 10, 10, config.federation.rounds, config.method_sections)
    return methods[config.method_name](config.method, info)


def _probes(config: Config) -> tuple[str, ...]:
    return config.evaluation.probes or ("linear", "knn", "clusters")


def _probe_of(metric: str) -> str | None:
    if metric in ("cluster-accuracy", "nmi", "ari"):
        return "clusters"
    if metric.startswith("kmeans-"):
        return "kmeans"
    if metric in ("score", "align", "uniformity"):
        return "alignment"
    return metric if metric in get_args(ProbeName) else None
