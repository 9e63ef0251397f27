from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.studies.conftest import SMALL
from unisono.core.errors import UserError
from unisono.data.datasets import load_dataset
from unisono.evaluation.features import assign
from unisono.loaded import load
from unisono.studies.figure import draw_study
from unisono.studies.grid import make_cells
from unisono.studies.maps import _points, draw_maps
from unisono.studies.output import write_pictures
from unisono.studies.results import collect
from unisono.studies.runner import run_cells
from unisono.studies.study import read_study


def test_a_panel_for_every_cell_and_a_point_for_every_test_sample(tmp_path: Path) -> None:
    text = SMALL.replace('plot = "line"', 'plot = "embeddings"').replace("federation.rounds=2", "federation.rounds=1")
    (tmp_path / "maps.toml").write_text(text)
    study = read_study(tmp_path / "maps.toml")
    cells = [cell for cell in make_cells(study, tmp_path / "runs", seeds=[0]) if cell.setting == "alpha 10"]
    run_cells(cells[:2])
    results = collect(study, cells, {})
    figure = Figure(layout="constrained")
    draw_maps(figure, results)
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.partition("\n")[0] for title in titles] == ["untrained weights, alpha 10", "SimCLR, alpha 10"]
    assert all("knn " in title for title in titles)
    for axes in figure.axes:
        assert sum(len(part.get_offsets()) for part in axes.collections) == 40  # type: ignore[arg-type]
        assert len(axes.collections) == 10, "one colour for every class"
    assert draw_study(results)["png"].startswith(b"\x89PNG")
    assert draw_study(results)["svg"] == draw_study(results)["svg"]
    write_pictures(results, tmp_path / "out")
    assert "data:image/svg+xml;base64" in (tmp_path / "out" / "report.html").read_text()


CLUSTERS = """
format = 1

[study]
title = "A map of clusters"
claim = "They are there."
source = "Nobody 2000, Figure 1"
recipe = "digits-smoke"
set = [
  "engine.workers=0", "data.limit=120", "data.test_limit=40", "federation.rounds=1", "evaluation.probe_every=0",
  "evaluation.probes=['clusters']", "cohort.size=2", "model.backbone=cfcl-cnn", "method.num_clusters=4",
]
seeds = [0]
metrics = ["nmi"]
plot = "embeddings"
map_points = "clusters"
map_colours = "clusters"
untrained = true

[[variant]]
name = "MCC"
method = "mcc"
"""


def test_points_may_be_assignments_and_colours_clusters(tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(CLUSTERS)
    study = read_study(tmp_path / "clusters.toml")
    cells = make_cells(study, tmp_path / "runs")
    run_cells(cells)
    results = collect(study, cells, {})
    points, colours, names = _points(cells[1], study.config)
    assert points.shape == (40, 4)
    np.testing.assert_allclose(points.sum(axis=1), 1.0)
    assert np.array_equal(colours, points.argmax(axis=1))
    assert names == ("cluster 0", "cluster 1", "cluster 2", "cluster 3")
    run = load(cells[1].path)
    expected, _ = assign(run.method.cluster_model(run.server), load_dataset(cells[1].config().data).test_samples)
    assert np.array_equal(colours, expected.numpy())
    features, classes, _ = _points(cells[1], study.config.model_copy(update={"map_points": "features"}))
    assert features.shape[1] == 64
    assert np.array_equal(classes, colours)
    figure = Figure(layout="constrained")
    draw_maps(figure, results)
    assert all("\nnmi " in axes.get_title() for axes in figure.axes)
    assert len(figure.axes) == 2


def test_a_method_without_clusters_has_no_such_map(tmp_path: Path) -> None:
    (tmp_path / "clusters.toml").write_text(
        CLUSTERS.replace('"mcc"', '"simclr"').replace(', "method.num_clusters=4"', "").replace("['clusters']", "['knn']")
    )
    study = read_study(tmp_path / "clusters.toml")
    cell = make_cells(study, tmp_path / "runs")[0]
    with pytest.raises(UserError, match="has no clusters to draw"):
        _points(cell, study.config)
