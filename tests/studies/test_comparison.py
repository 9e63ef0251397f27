from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.studies.test_history import write_run
from unisono.config import resolve
from unisono.core.config import merge, write_toml
from unisono.core.errors import UserError
from unisono.studies.compare_page import compare_page
from unisono.studies.comparison import compare


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
    assert comparison.difference_table().rows[0][:4] == ["byol", "linear", "+5.2 ± 0.2", "3"]
    assert "Wilcoxon's test needs six seeds" in comparison.explanation()


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
    twin = make_run(tmp_path / "twin", 0, 0.6)
    with pytest.raises(UserError, match="the same settings and the same seed, 0"):
        compare([*runs, twin])
    with pytest.raises(UserError, match="There is no run directory"):
        compare([tmp_path / "nowhere"])


def test_page(runs: list[Path]) -> None:
    page = compare_page(compare(runs), "unisono compare a b")
    assert "Differences to simclr" in page
    assert "Over communication" in page
    assert "unisono compare a b" in page
