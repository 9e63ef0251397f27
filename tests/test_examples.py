"""Every script in ``examples/`` runs on its own, prints what its reader is there for, and writes what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unisono
from unisono import testing

EXAMPLES = Path(__file__).parents[1] / "examples"
METHOD_FILE = "align_uniform"
"""A method, which ``new_method.py`` runs."""


def _compare_methods(out: str, folder: Path) -> None:
    rows = re.findall(r"^(untrained weights|simclr|specloss|simclr - specloss) +(-?[\d.]+) ± [\d.]+ +(-?[\d.]+) ±", out, re.M)
    means = {name: (float(few), float(all_classes)) for name, few, all_classes in rows}
    assert len(means) == 4
    for column in (0, 1):
        difference = means["simclr"][column] - means["specloss"][column]
        assert means["simclr - specloss"][column] == pytest.approx(difference, abs=0.15)
    assert len(list(folder.glob("*/metrics.jsonl"))) == 12
    run = unisono.load(folder / "simclr-0.1-2")
    assert (run.config.run.seed, run.config.partition.alpha) == (2, 0.1)
    with Image.open(folder / "comparison.png") as plot:
        assert plot.width > 800


def _own_images(out: str, folder: Path) -> None:
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$", out, re.M)
    assert [int(row[0]) for row in rows] == list(range(8))
    assert [sum(int(row[column]) for row in rows) for column in (2, 3, 4)] == [120, 120, 120]
    assert (folder / "clusters" / "clusters" / "sheet-1.png").is_file()
    scores = re.search(r"^score: (-?[\d.]+) untrained, (-?[\d.]+) after", out, re.M)
    assert scores is not None
    assert float(scores[2]) > float(scores[1])
    new = np.load(folder / "new-features.npz")
    assert new["features"].shape == (100, 64)
    assert len((folder / "new-clusters.csv").read_text().splitlines()) == 101
    assert float(re.findall(r"differ from those of the run by (\S+) at most", out)[0]) < 1e-4
    assert (folder / "encoder.pt2").stat().st_size > 1000


def _new_method(out: str, folder: Path) -> None:
    table = {name: float(linear) for name, linear in re.findall(r"^([a-z -]+?) +([\d.]+) +[\d.]+$", out, re.M)}
    assert table["align-uniform"] > table["untrained weights"] + 5
    assert "gave bit-identical values in" in out
    assert f"{len(testing.CHECKS)} of {len(testing.CHECKS)} checks passed" in out
    run = unisono.load(folder / "align-uniform")
    assert {"alignment", "uniformity"} <= set(run.metrics[-1])
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def _privacy(out: str, folder: Path) -> None:
    assert re.search(r"^simclr +-$", out, re.M)
    assert re.search(r"^cfcl +offers: data, reserve: data$", out, re.M)
    assert "consent.allow_raw_representations = true" in out
    assert "careless was stopped: round 1, phase train" in out
    assert "group 'features' is not among those declared for this phase" in out
    assert re.search(r"k-anonymity with k = \d+", out)
    assert "-differentially private for whole clients" in out
    assert not (folder / "cfcl").exists()


def _sklearn_pipeline(out: str, folder: Path) -> None:
    rows = re.findall(r"^(pixels|untrained weights|learnt encoder) +([\d.]+) ± [\d.]+ +([\d.]+) ±", out, re.M)
    means = {name: (float(two), float(five)) for name, two, five in rows}
    assert all(learnt > random + 3 for learnt, random in zip(means["learnt encoder"], means["untrained weights"], strict=True))
    assert "predicts the same" in out
    assert (folder / "classifier.joblib").is_file()


CHECKS: dict[str, Callable[[str, Path], None]] = {
    "compare_methods": _compare_methods,
    "new_method": _new_method,
    "own_images": _own_images,
    "privacy": _privacy,
    "sklearn_pipeline": _sklearn_pipeline,
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "out")]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "it wrote beside the folder that it was given"
    CHECKS[name](finished.stdout, tmp_path / "out")
    shown = re.fullmatch(r"Look at it: (.+\.(html|png))", finished.stdout.splitlines()[-1])
    assert shown is not None, "the last line names a page or a picture"
    assert Path(shown[1]).stat().st_size > 5_000


def test_arrays_of_your_own_take_the_place_of_the_images(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (60, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "sites.npz", x=images, client=np.repeat(["north", "south"], 30))
    command = [sys.executable, str(EXAMPLES / "own_images.py"), str(tmp_path / "out"), str(tmp_path / "sites.npz")]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "site north: 24 images\nsite south: 24 images" in finished.stdout
    assert unisono.load(tmp_path / "out" / "clusters").embed(images[:, None]).shape == (60, 64)


def test_every_example_is_checked_and_listed() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {*CHECKS, METHOD_FILE}
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert all(f"{name}.py" in page for name in found)
    pages = [path for path in (EXAMPLES.parent / "docs").rglob("*.md") if path.name != "examples.md"]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    for name in CHECKS:
        assert any(f"[`examples/{name}.py`](examples.md)" in text for text in texts), f"no page leads to {name}.py"


@pytest.mark.parametrize("name", CHECKS)
def test_the_example_opens_as_a_notebook(name: str) -> None:
    """Percent format: the first cell is its title, every line belongs to a cell, and text cells hold comments only."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    cells = re.split(r"^# %%", text, flags=re.M)
    assert cells[0] == ""
    assert cells[1].startswith(" [markdown]\n# # ")
    for cell in cells[1:]:
        head, _, body = cell.partition("\n")
        assert head in ("", " [markdown]")
        if head:
            assert all(line.startswith("#") for line in body.splitlines() if line)
