from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.report.conftest import small_run
from unisono import load, resume
from unisono.config import resolve
from unisono.core.method import Method
from unisono.experiment import Experiment
from unisono.methods.simclr import SimCLR
from unisono.report.collector import ReportCollector, method_sentence
from unisono.report.files import ReportFiles
from unisono.report.status import run_status
from unisono.runs.directory import RunDirectory


def files_of(path: Path) -> ReportFiles:
    return ReportFiles(RunDirectory(path))


def test_a_run_leaves_who_holds_what(clustered: Path) -> None:
    experiment = Experiment.prepare(resolve(RunDirectory(clustered).config_tree))
    files, labels = files_of(clustered), experiment.dataset.labels
    assert labels is not None
    split, points, about = files.read("split"), files.read("points"), files.read("about")
    assert split == {
        "sizes": experiment.partition.sizes.tolist(),
        "counts": experiment.partition.class_counts(labels).tolist(),
    }
    assert points is not None
    assert about is not None
    # All 120 samples are on the map, in order, so every point's client can be looked up.
    for client, rows in enumerate(experiment.partition.indices):
        assert [points["clients"][row] for row in rows.tolist()] == [client] * len(rows)
    assert points["labels"] == labels.tolist()
    assert about["sentence"].startswith("Orchestra: globally consistent clustering")
    assert ["local_centroids", "STACK", "STATISTICS"] in about["shares"]


def test_snapshots_are_the_models_own_features_and_clusters(clustered: Path) -> None:
    files, run = files_of(clustered), load(clustered)
    assert files.rounds() == [0, 1, 2, 3]
    assert (files.load(0).clusters == -1).all(), "before the first round there are no centroids"
    samples = Experiment.prepare(run.config).clients.samples
    snapshot = files.load(3)
    np.testing.assert_allclose(snapshot.features, run.embed(samples), atol=1e-2, rtol=1e-2)
    clusters, confidence = run.cluster(samples)
    np.testing.assert_array_equal(snapshot.clusters, clusters)
    np.testing.assert_allclose(snapshot.confidence, confidence, rtol=1e-5)
    assert snapshot.num_clusters == 8


def test_a_page_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    with_page, without = (small_run(tmp_path / word, f"report.enabled={word}") for word in ("true", "false"))
    for name in ("metrics.jsonl", "clients.jsonl", "model/encoder.safetensors"):
        assert (with_page / name).read_bytes() == (without / name).read_bytes()
    assert (with_page / "report.html").is_file()
    assert not (without / "report.html").exists()
    assert not (without / "report").exists()


def test_nobody_need_see_the_samples(tmp_path: Path) -> None:
    path = small_run(tmp_path, "report.samples=false", "report.points=20", "report.rounds=1")
    files = files_of(path)
    assert files.read("samples") is None
    assert files.rounds() == [3]
    assert len(files.load(3).clusters) == 20
    assert "data:image" not in (path / "report.html").read_text()


def test_no_points_no_map(tmp_path: Path) -> None:
    path = small_run(tmp_path, "report.points=0")
    assert files_of(path).rounds() == []
    assert (path / "report.html").is_file()


def test_a_problem_with_the_page_never_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(ReportCollector, "snapshot", fail)
    path = small_run(tmp_path)
    assert "RuntimeError: no ink" in files_of(path).errors
    page = (path / "report.html").read_text()
    assert "A part of this report could not be made" in page
    assert "no ink" in page


def test_a_method_in_a_sentence() -> None:
    assert method_sentence(SimCLR).startswith("Federated SimCLR: a contrastive loss")
    assert method_sentence(type("Plain", (Method,), {"__doc__": "Learns.\n\nMore.", "__module__": "nowhere"})) == "Learns."
    wrapped = "Learns as in Li et al. 2021, on\n    2.5 times the data. It\n    forgets.\n\nMore."
    method = type("Wrapped", (Method,), {"__doc__": wrapped, "__module__": "nowhere"})
    assert method_sentence(method) == "Learns as in Li et al. 2021, on 2.5 times the data."


def test_an_earlier_failure_is_forgotten_by_a_run_that_goes_on(failed: Path, tmp_path: Path) -> None:
    shutil.copytree(failed, tmp_path / "x")
    config = tmp_path / "x" / "config.toml"
    config.write_text(config.read_text().replace("1e+30", "0.01"))
    (tmp_path / "x" / "manifest.json").unlink()  # it would refuse the edit
    run = resume(tmp_path / "x")
    assert run_status(RunDirectory(run.path)).word == "finished"
    assert '"status":"finished"' in (run.path / "report.html").read_text()


def test_a_problem_that_cannot_even_be_written_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file where the folder should be")
    with files_of(tmp_path).errors_logged():
        raise RuntimeError("no ink")
