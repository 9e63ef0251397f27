from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from tests.studies.conftest import SMALL
from unisono.studies.figure import draw_study
from unisono.studies.grid import make_cells
from unisono.studies.maps import draw_maps
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
