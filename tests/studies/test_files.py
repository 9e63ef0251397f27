"""Studies that come with the package."""

from __future__ import annotations

import re
from functools import cache
from typing import get_args

import pytest

from tests.studies.test_settings import by_study, every_cell
from unisono.config import Config
from unisono.core.method import RunInfo, methods
from unisono.evaluation.config import ProbeName
from unisono.models.backbones import backbones
from unisono.models.nets import build_seeded
from unisono.studies.figure import paper_value
from unisono.studies.grid import check_cells
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
pytestmark = pytest.mark.xdist_group("studies")


@cache
def read(name: str, scale: str) -> Study:
    return read_study(name, scale)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_has_the_papers_scale_and_a_cheaper_one(name: str) -> None:
    *cheaper, last = scales_of(list_studies()[name])
    assert last == "paper"
    assert cheaper


def test_all_cells_fit_and_differ() -> None:
    assert list(by_study()) == SCALES
    for (name, scale), cells in by_study().items():
        study = read(name, scale)
        check_cells([cell.cell for cell in cells], scale)
        assert {cell.config.model.backbone for cell in cells} <= set(backbones), name
        seen = {str({**cell.config.as_tree(), "run": None, "recipe": None}) for cell in cells}
        untrained = len(study.setting_names) if study.config.untrained else 0
        assert len(seen) >= len(cells) - untrained, f"two cells of {name}, {scale} are the same experiment"


def test_no_list_of_settings_sets_a_key_twice() -> None:
    for name, path in list_studies().items():
        for settings in re.findall(r"(?ms)^(?:\w+\.)?set = \[(.*?)\]$", path.read_text()):
            keys = re.findall(r'"([\w.]+)=', settings)
            assert len(keys) == len(set(keys)), (name, settings)


OF_SOME_ROWS = (("fedmcc-table-1", "kmeans-accuracy"), ("fedmcc-table-2", "kmeans-accuracy"))
"""Metrics that not every row has: the features of FedMCC beside its cluster head."""


def test_it_says_what_it_is() -> None:
    for name, scale in SCALES:
        config = read(name, scale).config
        assert config.claim.endswith("."), name
        assert config.cost, name
        assert config.source, name
        assert config.title, name
        if scale != "paper":
            assert len(config.seeds) >= 3 or config.plot == "scatter" or config.metrics == ("seconds",), (name, scale)


def test_metrics_are_probed() -> None:
    """Every metric of a table comes from a probe that its runs make, or is no probe."""
    for (name, scale), cells in by_study().items():
        study = read(name, scale)
        aliases = {variant.name: variant.metrics for variant in study.variants}
        probed = set()
        for cell in cells:
            for metric in study.config.metrics:
                wanted = logged_name(aliases.get(cell.cell.variant, {}).get(metric, metric))
                has = _probe_of(wanted) in (None, *_probes(cell.config))
                assert has or (name, metric) in OF_SOME_ROWS, (name, scale, cell.cell.title, wanted)
                probed |= {metric} if has else set()
        assert probed == set(study.config.metrics), (name, scale)


def test_methods_of_cheap_scales_can_be_built() -> None:
    configs = [cell.config for cell in every_cell() if cell.scale != "paper" and cell.config.model.pretrained is None]
    for config in {(config.method_name, str(config.method), str(config.model)): config for config in configs}.values():
        build_seeded(_method(config).build_networks, 0)


def test_the_papers_numbers_can_be_read() -> None:
    for name in [name for name, scale in SCALES if scale == "paper"]:
        study = read(name, "paper")
        results = Results(study, [])
        for metric, by_variant in study.paper.items():
            for variant, by_setting in by_variant.items():
                for setting in by_setting:
                    value = paper_value(results, metric, variant, setting)
                    assert value is not None, (name, metric, variant, setting)
                    assert value > 0, (name, metric, variant, setting)


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
