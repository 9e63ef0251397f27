from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.studies.test_history import write_run
from unisono.config import resolve
from unisono.core.config import merge, write_toml
from unisono.core.errors import UserError
from unisono.studies.comparison import compare
from unisono.studies.comparison_report import comparison_report
from unisono.studies.tables import latex_text


def make_run(path: Path, seed: int, value: float | None, over: dict[str, Any] | None = None) -> Path:
    tree = merge({"method": {"name": "simclr"}, "run": {"seed": seed}}, over or {})
    write_run(path, [None if value is None else value - 0.1, value])
    (path / "config.toml").write_text(write_toml(resolve(tree).as_tree()))
    (path / "status.json").write_text('{"status": "finished"}')
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two methods with three seeds each, BYOL always a little better."""
    simclr = [make_run(tmp_path / f"s{seed}", seed, 0.6 + 0.01 * seed) for seed in range(3)]
    byol = [make_run(tmp_path / f"b{seed}", seed, 0.65 + 0.012 * seed, {"method": {"name": "byol"}}) for seed in range(3)]
    return [*simclr, *byol]


def test_groups_and_differences(runs: list[Path]) -> None:
    comparison = compare(runs)
    assert [group.label for group in comparison.groups] == ["simclr", "byol"]
    assert comparison.metrics == ["linear"]
    assert comparison.table().rows == [["simclr", "3", "61.0 ± 1.0"], ["byol", "3", "66.2 ± 1.2"]]
    ((group, difference, corrected),) = comparison.differences("linear")
    assert (group.label, difference.num_pairs) == ("byol", 3)
    assert difference.mean == pytest.approx(0.052)
    assert difference.t_test is not None
    assert difference.t_test < 0.01
    assert corrected == difference.t_test
    # Differences 5.0, 5.2 and 5.4 points: deviation 0.2, t(2) = 4.303, half width 4.303 x 0.2 / sqrt(3); 3.26 x 0.2 is seen.
    assert comparison.difference_table().rows[0][:5] == ["byol", "linear", "+5.2", "3", "+4.7 to +5.7"]
    assert comparison.difference_table().rows[0][-1] == "higher"
    assert "the t interval at 95%" in comparison.explanation()
    assert "chance of 80%" in comparison.explanation()


def test_verdicts_are_those_of_the_rule_of_claims(tmp_path: Path) -> None:
    values = {"simclr": (0.60, 0.61, 0.62), "byol": (0.58, 0.62, 0.63), "simsiam": (0.50, 0.512, 0.521)}
    for name, by_seed in values.items():
        for seed, value in enumerate(by_seed):
            make_run(tmp_path / f"{name}{seed}", seed, value, {"method": {"name": name}})
    paths = [tmp_path / f"{name}{seed}" for name in values for seed in range(3)]

    def verdicts(margin: float | None) -> list[str]:
        return [row[-1] for row in compare(paths, margin=margin).difference_table().rows]

    # Differences -2, 1, 1: deviation 1.73; 4.6 deviations of three seeds are seen after Holm for two groups.
    unsure, lower = verdicts(None)
    assert (unsure, lower) == ("undecided (could see 8.0)", "lower")
    assert verdicts(12.0) == ["equal", "equal"]
    assert verdicts(5.0) == ["equal", "not equal"]
    assert verdicts(1.0) == ["undecided (a margin of 4.6)", "not equal"]
    assert "within the margin of 5" in compare(paths, margin=5.0).explanation()
    with pytest.raises(UserError, match="The margin must be a number above 0, got -1"):
        compare(paths, margin=-1.0)


def test_a_directory_of_runs_stands_for_them(runs: list[Path]) -> None:
    comparison = compare([runs[0].parent])
    assert [group.label for group in comparison.groups] == ["byol", "simclr"]


def test_groups_of_one_method_are_told_apart_by_their_options(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", 0, 0.6)
    second = make_run(tmp_path / "b", 0, 0.7, {"partition": {"alpha": 10.0}, "training": {"local_epochs": 3}})
    comparison = compare([first, second])
    assert [group.label for group in comparison.groups] == [
        "simclr, alpha 0.1, local_epochs 1",
        "simclr, alpha 10, local_epochs 3",
    ]
    assert comparison.difference_table().heads == ["", "metric", "difference", "pairs"]
    assert "cannot be said where there are fewer than 3 seeds in common" in comparison.explanation()


def test_a_group_without_a_p_value_is_not_corrected_for(runs: list[Path], tmp_path: Path) -> None:
    lone = make_run(tmp_path / "lone", 0, 0.9, {"partition": {"alpha": 10.0}})
    (seen,) = [row["could_see"] for row in compare(runs).as_json()["differences"]]
    assert [row["could_see"] for row in compare([*runs, lone]).as_json()["differences"]] == [seen, None]


def test_upkeep_and_probes_do_not_tell_groups_apart(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", 0, 0.6)
    second = make_run(tmp_path / "b", 1, 0.7, {"engine": {"workers": 1}, "evaluation": {"probe_every": 1}})
    (group,) = compare([first, second]).groups
    assert [run.seed for run in group.runs] == [0, 1]


def test_metrics(runs: list[Path], tmp_path: Path) -> None:
    assert compare(runs, ["loss", "rounds to linear 0.65"]).table().heads == ["", "seeds", "loss", "rounds to linear 0.65"]
    with pytest.raises(UserError, match=r"None of the runs has a metric 'lnear'\. Known: .*probe\.linear"):
        compare(runs, ["lnear"])
    unprobed = make_run(tmp_path / "u", 0, None)
    with pytest.raises(UserError, match="--metric loss"):
        compare([unprobed])


def test_mistakes(runs: list[Path], tmp_path: Path) -> None:
    source = make_run(tmp_path / "source", 0, 0.6)
    with pytest.raises(UserError, match="the same settings and the same seed, 0"):
        compare([*runs, source])
    with pytest.raises(UserError, match="There is no run directory"):
        compare([tmp_path / "nowhere"])


def unfinish(path: Path, values: list[float | None]) -> None:
    """Makes it a run that stands at a round before its end."""
    write_run(path, values)
    (path / "status.json").unlink()


def blocks_of(page: str, section: str) -> list[dict[str, Any]]:
    document = json.loads(page.partition('id="document">')[2].partition("</script>")[0])
    return next(list(part["blocks"]) for part in document["sections"] if part["id"] == section)


def test_unfinished_runs_are_named_with_their_round(runs: list[Path]) -> None:
    assert "inished" not in compare(runs).as_markdown()
    unfinish(runs[4], [0.4, None, None])
    comparison = compare(runs)
    num_rounds = comparison.groups[1].runs[1].num_rounds
    assert comparison.table().rows[0][1] == "3"
    assert comparison.table().rows[1][1] == "2 of 3 finished"
    sentence = f"Not finished, and counted with the latest values so far: byol, seed 1 at round 3 of {num_rounds}."
    for text in (comparison.as_markdown(), comparison.as_latex(), comparison.note()):
        assert sentence in text
    assert "Runs that are not finished are among them." in comparison.explanation()
    rows = list(csv.DictReader(io.StringIO(comparison.number_table().as_csv())))
    assert [(row["runs"], row["finished"]) for row in rows] == [("3", "3"), ("3", "2")]
    assert [row["unfinished"] for row in rows] == ["", f"seed 1 at round 3 of {num_rounds}"]
    group = comparison.as_json()["groups"][1]
    assert (group["finished"], group["unfinished"]) == (False, [{"seed": 1, "round": 3, "rounds": num_rounds}])
    assert f"round 3 of {num_rounds}" in [row[2] for row in blocks_of(comparison_report(comparison), "runs")[0]["rows"]]


def test_numbers_for_other_programs(runs: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(compare(runs, ["linear", "rounds to linear 0.66"]).number_table().as_csv())))
    assert [(row["group"], row["metric"]) for row in rows[::2]] == [("simclr", "linear"), ("simclr", "rounds to linear 0.66")]
    first, second = rows[:2]
    assert float(first["mean"]) == pytest.approx(0.61)
    assert float(first["deviation"]) == pytest.approx(0.01)
    assert (first["seeds"], first["difference"], first["t-test"]) == ("3", "", "")
    assert float(second["difference"]) == pytest.approx(0.052)
    assert float(second["difference deviation"]) == pytest.approx(0.002)
    assert second["pairs"] == "3"
    assert 0 < float(second["t-test"]) == float(second["corrected"]) < 0.01
    half = 4.30265 * 0.002 / 3**0.5
    assert [float(second[name]) for name in ("low", "high")] == pytest.approx([0.052 - half, 0.052 + half], rel=1e-4)
    assert float(second["could see"]) == pytest.approx(3.264 * 0.002, rel=1e-3)
    assert (rows[2]["mean"], rows[2]["seeds"], rows[3]["mean"], rows[3]["seeds"]) == ("", "0", "2.0", "2")


def test_texts_have_everything_that_the_terminal_shows(runs: list[Path]) -> None:
    comparison = compare(runs)
    markdown, latex = comparison.as_markdown(), comparison.as_latex()
    assert "| byol | linear | +5.2 | 3 | +4.7 to +5.7 | 4.9e-04 | higher |" in markdown
    assert r"byol & linear & +5.2 & 3 & +4.7 to +5.7 & 4.9e-04 & higher" in latex
    assert latex.count(r"\end{tabular}") == 2
    for text in (markdown, latex):
        assert "Accuracies in percent." in text
    assert comparison.explanation() in markdown
    assert latex_text(comparison.explanation()) in latex


def test_curves_join_what_belongs_to_the_same_round(tmp_path: Path) -> None:
    """Seed 0 is probed after every round, seed 1 after every third: they meet after the third and the sixth."""
    runs = [make_run(tmp_path / f"s{seed}", seed, 0.6) for seed in (0, 1)]
    write_run(runs[0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    write_run(runs[1], [None, None, 0.5, None, None, 0.8])
    page = comparison_report(compare(runs))
    assert "2 runs in 1 group" in page
    assert "1 run in 1 group" in comparison_report(compare(runs[:1]))
    (series,) = blocks_of(page, "curves")[0]["series"]
    assert series["x"] == [3, 6]
    assert series["y"] == pytest.approx([0.4, 0.7])
    assert series["high"] == pytest.approx([0.4 + 0.2 / 2**0.5, 0.7 + 0.2 / 2**0.5])
    (series,) = blocks_of(page, "communication")[0]["series"]
    assert series["x"] == [9, 18]


def test_the_page_has_percent_in_both_tables(runs: list[Path]) -> None:
    page = comparison_report(compare(runs, ["linear", "loss"]))
    (table,) = blocks_of(page, "runs")
    assert table["heads"] == ["group", "seed", "state", "linear [%]", "loss", "run"]
    assert table["rows"][0][2:5] == ["finished", pytest.approx(60), 4.0]


def test_page(runs: list[Path]) -> None:
    page = comparison_report(compare(runs), "unisono compare a b")
    assert "Differences to simclr" in page
    assert "Over communication" in page
    assert "unisono compare a b" in page


def test_floors_stand_above_the_groups_and_apart_where_groups_differ(runs: list[Path]) -> None:
    for number, path in enumerate(runs):
        floors = {"raw pixels": {"linear": 0.855, "knn": 0.7}, "untrained weights": {"linear": 0.5 + 0.01 * number}}
        (path / "floors.json").write_text(json.dumps(floors))
    comparison = compare(runs)
    assert comparison.table().rows == [
        ["raw pixels", "", "85.5"],
        ["untrained weights, simclr", "", "51.0"],
        ["untrained weights, byol", "", "54.0"],
        ["simclr", "3", "61.0 ± 1.0 (void)"],
        ["byol", "3", "66.2 ± 1.2 (void)"],
    ]
    assert [row["verdict"] for row in comparison.as_json()["differences"]] == ["void"]
    assert "no claim rests on it" in comparison.note()
    assert comparison.as_json()["floors"]["raw pixels"] == {"linear": 0.855}
    assert next(row[:3] for row in comparison.number_table().rows) == ["raw pixels", "linear", "0.855"]
    (runs[0] / "floors.json").unlink()
    assert comparison.floors["untrained weights, simclr"]["linear"] == pytest.approx(0.515), "the mean of those that have it"
