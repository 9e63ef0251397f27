"""Results, tables, figures and pages of a study whose runs are written by hand."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL
from tests.studies.test_history import write_run
from unisono.studies.correlation import correlation, correlations, pairs_of
from unisono.studies.figure import draw_study, moved, paper_value
from unisono.studies.grid import make_cells
from unisono.studies.mean_curve import mean_curve
from unisono.studies.output import as_markdown, small_print, write_numbers, write_pictures
from unisono.studies.results import Results, Summary, collect, mean_and_deviation, number
from unisono.studies.study import UNTRAINED, read_study
from unisono.studies.study_report import study_report
from unisono.studies.tables import TextTable, latex_text, run_table, study_table

STUDY = SMALL.replace('"knn", "rounds to knn 0.01", "rounds to knn 2"', '"linear", "rounds to linear 0.65", "loss"').replace(
    "[paper.knn]", "[paper.linear]"
)
VALUES = {("SimCLR", 0): [0.5, 0.6], ("SimCLR", 1): [0.6, 0.7], ("Orchestra", 0): [0.7, 0.8]}


def make(tmp_path: Path, text: str = STUDY) -> Results:
    """SimCLR has two seeds under alpha 0.1, Orchestra one, the rest is missing."""
    (tmp_path / "hand.toml").write_text(text)
    study = read_study(tmp_path / "hand.toml")
    cells = make_cells(study, tmp_path / "runs")
    for cell in cells:
        values = VALUES.get((cell.variant, cell.seed))
        if values is not None and cell.setting == "alpha 0.1":
            write_run(cell.path, list(values))
            (cell.path / "config.toml").write_text("")
            (cell.path / "status.json").write_text('{"status": "finished"}')
    failed = next(cell for cell in cells if (cell.variant, cell.seed, cell.setting) == ("Orchestra", 1, "alpha 0.1"))
    return collect(study, cells, {failed: "it broke"})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return make(tmp_path)


def test_a_share_of_the_way_is_that_of_the_same_recipe_setting_and_seed(tmp_path: Path) -> None:
    """Of seed 0 SimCLR has 0.5, 0.6 and Orchestra 0.7, 0.8: half of the way from the mean of their first to the best is 0.7."""
    metric = "steps to 50% of linear"
    results = make(tmp_path, STUDY.replace('"rounds to linear 0.65"', f'"{metric}"'))
    assert results.summary(metric, "Orchestra", "alpha 0.1").values == [10.0]
    simclr = results.summary(metric, "SimCLR", "alpha 0.1")
    assert simclr.num_runs == 2
    assert simclr.values == pytest.approx([15.0]), "seed 1 alone has 0.6, 0.7, and 0.65 in their middle; seed 0 never has 0.7"
    assert "not reached" not in study_table(results, metric).as_markdown()


def test_summaries(results: Results) -> None:
    summary = results.summary("linear", "SimCLR", "alpha 0.1")
    assert summary.mean == pytest.approx(0.65)
    assert summary.deviation == pytest.approx(math.sqrt(2) * 0.05)
    assert results.summary("linear", "Orchestra", "alpha 0.1").deviation is None
    assert results.summary("linear", "SimCLR", "alpha 10") == Summary([], 0)
    reached = results.summary("rounds to linear 0.65", "SimCLR", "alpha 0.1")
    assert (reached.values, reached.num_runs) == ([2.0], 2)


def test_standard_errors_where_the_study_asks_for_them(tmp_path: Path) -> None:
    """The deviation of 0.6 and 0.7 over the root of 2 is 0.05: in the table, its explanation and the page."""
    found = make(tmp_path, STUDY.replace("[study]", '[study]\nspread = "standard error"', 1))
    assert found.summary("linear", "SimCLR", "alpha 0.1").spread == pytest.approx(0.05)
    assert "65.0 ± 5.0" in study_table(found, "linear").as_markdown()
    assert "Mean ± standard error over seeds" in as_markdown(found)
    assert "Mean ± standard error over seeds" in study_report(found)


def test_numbers_as_people_read_them() -> None:
    assert number(0.7123, "linear") == "71.2"
    assert number(0.7123, "loss") == "0.7123"
    assert number(12345.6, "megabytes") == "12,346"
    assert number("70 ± 1", "linear") == "70 ± 1"
    assert mean_and_deviation(Summary([0.5, 0.7], 2), "linear") == "60.0 ± 14.1"
    assert mean_and_deviation(Summary([3.80, 3.85], 2), "delta") == "3.825 ± 0.035"
    assert mean_and_deviation(Summary([600, 3000], 2), "rounds") == "1,800 ± 1,697"
    assert mean_and_deviation(Summary([10, 10], 2), "rounds") == "10 ± 0"
    assert mean_and_deviation(Summary([0.25], 1), "delta") == "0.25"
    assert mean_and_deviation(Summary([0.5], 3), "linear") == "50.0 (1 of 3)"
    assert mean_and_deviation(Summary([], 3), "rounds to linear 0.9") == "not reached"
    assert mean_and_deviation(Summary([], 0), "linear") == ""


def test_the_table_has_the_papers_shape_and_numbers(results: Results) -> None:
    table = study_table(results, "linear")
    assert table.heads == ["", "alpha 0.1", "alpha 10"]
    assert table.rows == [["SimCLR", "65.0 ± 7.1 [64.3]", "- [70.1 ± 0.3]"], ["Orchestra", "80.0", ""]]
    assert study_table(results, "linear", paper=False).rows[0] == ["SimCLR", "65.0 ± 7.1", ""]
    assert study_table(results, "rounds to linear 0.65").rows == [["SimCLR", "2 (1 of 2)", ""], ["Orchestra", "1", ""]]


def test_settings_may_be_the_rows(tmp_path: Path) -> None:
    results = make(tmp_path, STUDY.replace("[study]", '[study]\nrows = "settings"'))
    table = study_table(results, "linear")
    assert table.heads == ["", UNTRAINED, "SimCLR", "Orchestra"]
    assert table.rows[0] == ["alpha 0.1", "", "65.0 ± 7.1 [64.3]", "80.0"]


def test_every_run_is_in_the_csv(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(run_table(results).as_csv())))
    assert len(rows) == 12
    first = next(row for row in rows if (row["variant"], row["setting"], row["seed"]) == ("SimCLR", "alpha 0.1", "1"))
    assert (first["status"], float(first["linear"]), first["rounds to linear 0.65"]) == ("finished", 0.7, "2.0")
    broken = next(row for row in rows if (row["variant"], row["setting"], row["seed"]) == ("Orchestra", "alpha 0.1", "1"))
    assert (broken["status"], broken["linear"]) == ("failed", "")


def test_text_formats() -> None:
    table = TextTable(["", "a|b"], [["x_1", "50% ± 1"]])
    assert table.as_markdown() == "|  | a\\|b |\n| --- | ---: |\n| x_1 | 50% ± 1 |\n"
    assert r"x\_1 & 50\% $\pm$ 1 \\" in table.as_latex()
    assert table.as_latex().startswith(r"\begin{tabular}{lr}")
    assert table.as_csv() == ",a|b\nx_1,50% ± 1\n"
    assert latex_text(r"{a}^b~\c") == r"\{a\}\textasciicircum{}b\textasciitilde{}\textbackslash{}c"


def test_mean_curves(results: Results) -> None:
    curve = mean_curve(results, "linear", "SimCLR", "alpha 0.1", "megabytes")
    assert [point[0] for point in curve] == pytest.approx([3, 6])
    assert [point[1] for point in curve] == pytest.approx([0.55, 0.65])
    assert [point[2] for point in curve] == pytest.approx([math.sqrt(2) * 0.05] * 2)
    assert mean_curve(results, "linear", "SimCLR", "alpha 10", "rounds") == []
    other = results.finished("SimCLR", "alpha 0.1")[1].history
    assert other is not None
    del other.records[0]
    ((place, mean, _),) = mean_curve(results, "linear", "SimCLR", "alpha 0.1", "rounds")
    assert (place, mean) == pytest.approx((2, 0.65)), "values of different rounds do not meet"


def test_the_papers_numbers(results: Results) -> None:
    assert paper_value(results, "linear", "SimCLR", "alpha 0.1") == 64.3
    assert paper_value(results, "linear", "SimCLR", "alpha 10") == 70.1
    assert paper_value(results, "linear", "Orchestra", "alpha 10") is None


def test_correlation(results: Results) -> None:
    pairs = pairs_of(results, "linear", "loss", results.study.row_names)
    assert sorted(pairs) == [(0.6, 4.0), (0.7, 4.0), (0.8, 4.0)]
    assert correlation(pairs) is None, "the loss does not vary"
    assert correlation([(0, 0), (1, 2), (2, 4)]) == pytest.approx(1)
    assert correlation([(0, 0), (1, -2), (2, -4)]) == pytest.approx(-1)
    assert correlation([(0, 0), (1, 2)]) is None


def test_correlations_in_words(results: Results) -> None:
    words = correlations(results, "linear", "loss")
    assert words == "Correlation R of linear and loss: over all runs unknown, SimCLR unknown, Orchestra unknown."
    assert "over all runs 1.00" in correlations(results, "linear", "linear")


@pytest.mark.parametrize("plot", ["bars", "line", "curves", "scatter"])
def test_figures_and_pages_of_every_plot(tmp_path: Path, plot: str) -> None:
    results = make(tmp_path, STUDY.replace('plot = "line"', f'plot = "{plot}"'))
    files = draw_study(results)
    assert files["png"].startswith(b"\x89PNG")
    assert b"SimCLR" in files["svg"] or b"<svg" in files["svg"]
    page = study_report(results, "unisono study hand.toml", files["svg"])
    document = json.loads(page.partition('id="document">')[2].partition("</script>")[0].replace("\\u003c", "<"))
    titles = [section["title"] for section in document["sections"]]
    assert {"What it asks", "Results", "Over the course of runs", "Runs", "Repeat it"} <= set(titles)
    assert ("Figure" in titles) == (plot != "curves"), "curves are drawn on the page itself"
    (runs,) = next(section["blocks"] for section in document["sections"] if section["id"] == "runs")
    assert runs["heads"][4:] == ["linear [%]", "rounds to linear 0.65", "loss", "time [s]"]
    assert max(row[4] or 0 for row in runs["rows"]) == 80
    assert document["status"] == "failed"
    assert any("it broke" in block.get("text", "") for block in document["sections"][0]["blocks"])


def test_curves_over_a_second_axis(tmp_path: Path) -> None:
    text = STUDY.replace('plot = "line"', 'plot = "curves"\naxis = "steps"')
    with_second = text.replace('axis = "steps"', 'axis = "steps"\nsecond_axis = "delay"')
    once, twice = make(tmp_path, text), make(tmp_path, with_second)
    heights = [float(re.findall(rb'height="([0-9.]+)pt"', draw_study(results)["svg"])[0]) for results in (once, twice)]
    assert heights[1] == 2 * heights[0], "a row of panels for each axis"
    assert ["modelled time [s]" in study_report(results, "") for results in (once, twice)] == [False, True]


def test_lines_of_two_panels(tmp_path: Path) -> None:
    """Settings of a panel have an axis of their own: as many rows again, with names that do not repeat the panel's."""
    once, twice = make(tmp_path, STUDY), make(tmp_path, STUDY.replace("value = ", 'panel = "CIFAR-100"\nvalue = ', 1))
    heights = [float(re.findall(rb'height="([0-9.]+)pt"', draw_study(results)["svg"])[0]) for results in (once, twice)]
    assert heights[1] == 2 * heights[0]


@pytest.mark.parametrize("plot", ["scatter", "line"])
def test_the_figure_is_inside_the_page(tmp_path: Path, plot: str) -> None:
    text = re.sub("(?m)^value = .*$", "", STUDY).replace('plot = "line"', f'plot = "{plot}"')
    write_pictures(make(tmp_path, text), tmp_path)
    page = (tmp_path / "report.html").read_text()
    document = json.loads(page.partition('id="document">')[2].partition("</script>")[0])
    (block,) = next(section["blocks"] for section in document["sections"] if section["id"] == "picture")
    kind, _, content = block["source"].partition(",")
    assert block["kind"] == "picture"
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(content) == (tmp_path / "figure.svg").read_bytes()


def test_nothing_finished_yet(tmp_path: Path) -> None:
    (tmp_path / "hand.toml").write_text(STUDY)
    study = read_study(tmp_path / "hand.toml")
    results = collect(study, make_cells(study, tmp_path / "runs"))
    assert draw_study(results) == {}
    write_numbers(results, tmp_path / "out")
    write_pictures(results, tmp_path / "out")
    assert "not run" in (tmp_path / "out" / "results.md").read_text()


def test_the_same_results_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    write_numbers(results, tmp_path / "a")
    write_numbers(results, tmp_path / "b")
    for name in ("results.json", "results.csv", "results.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_markdown_names_what_is_missing(results: Results) -> None:
    text = as_markdown(results)
    assert "Claim: They learn." in text
    assert "- Orchestra, alpha 0.1, seed 1: it broke" in text
    assert "- SimCLR, alpha 10, seed 0: not run" in text
    assert "| SimCLR | 65.0 ± 7.1 [64.3] |" in text


def test_marks_of_two_variants_stand_side_by_side() -> None:
    assert moved([0, 5, 10], 0.1) == [1, 6, 11]
    assert moved([1, 10, 1e5], 0.2, log=True) == pytest.approx([10, 100, 1e6])
    assert moved([3], 0.1) == [3]


@pytest.mark.parametrize("rows", ["variants", "settings"])
def test_floors_are_part_of_the_table(tmp_path: Path, rows: str) -> None:
    text = STUDY.replace("[study]\n", f'[study]\nrows = "{rows}"\n', 1)
    first = next(cell for cell in make(tmp_path, text).by_place["SimCLR", "alpha 0.1"])
    floors = {"raw pixels": {"linear": 0.855}, "untrained weights": {"linear": 0.4}}
    (first.cell.path / "floors.json").write_text(json.dumps(floors))
    results = make(tmp_path, text)
    assert results.floors("linear")["raw pixels"] == {"alpha 0.1": 0.855}
    assert results.as_json()["floors"]["linear"]["raw pixels"] == {"alpha 0.1": 0.855}
    table = study_table(results, "linear")
    if rows == "variants":
        assert ["raw pixels", "85.5", ""] in table.rows
        (simclr,) = [row for row in table.rows if row[0] == "SimCLR"]
        assert simclr[1].startswith("65.0 ± 7.1 (void)"), "it is not above raw pixels"
        assert "no claim rests on it" in small_print(results)
    else:
        assert "raw pixels" in table.heads
        assert next(row for row in table.rows if row[0] == "alpha 0.1")[table.heads.index("raw pixels")] == "85.5"
