from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command
from unisono import load
from unisono.data.datasets import load_dataset
from unisono.report.files import ReportFiles
from unisono.report.gallery import gallery_document

RUN = (
    "run", "federated-kmeans", "--dataset", "digits", "--clients", "4", "--rounds", "2", "--workers", "0", "--name", "clusters",
    "--quiet", "--set", "data.limit=160", "--set", "data.test_limit=50",
)  # fmt: skip


@pytest.fixture
def pixels(tmp_path: Path) -> np.ndarray:
    """Three grey images, in a folder and in an .npz file."""
    values = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for index, image in enumerate(values):
        Image.fromarray(image).save(tmp_path / "images" / f"{index}.png")
    np.savez(tmp_path / "samples.npz", x=values)
    return values


def test_clusters_of_files_folders_and_arrays(unisono: Command, pixels: np.ndarray) -> None:
    assert unisono(*RUN).code == 0
    clusters, confidences = load("runs/clusters").cluster(pixels[:, None])
    result = unisono("cluster", "runs/clusters", "images", "images/1.png", "samples.npz", "--json")
    assert (result.code, result.err) == (0, "")
    rows = json.loads(result.out)
    names = [*(f"images/{i}.png" for i in range(3)), "images/1.png", *(f"samples.npz#{i}" for i in range(3))]
    assert [row["file"] for row in rows] == names
    assert [row["cluster"] for row in rows] == [clusters[i] for i in (0, 1, 2, 1, 0, 1, 2)]
    np.testing.assert_allclose([row["confidence"] for row in rows[:3]], confidences, rtol=1e-4)
    assert all(0 < row["confidence"] <= 1 for row in rows)

    result = unisono("cluster", "runs/clusters", "samples.npz")
    assert result.out.split()[:3] == ["file", "cluster", "confidence"]
    assert ["samples.npz#0", str(clusters[0]), f"{confidences[0]:.3f}"] in [line.split() for line in result.out.splitlines()]

    result = unisono("cluster", "runs/clusters", "samples.npz", "--output", "out/clusters.csv")
    assert result.out == f"3 samples in {len(set(clusters.tolist()))} clusters in out/clusters.csv\n"
    with Path("out/clusters.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(row["cluster"]) for row in table] == clusters.tolist()
    assert "There is no file or folder nowhere" in unisono("cluster", "runs/clusters", "nowhere").sentence


def test_a_method_without_clusters_gets_those_of_its_gallery(unisono: Command, demo: Path, pixels: np.ndarray) -> None:
    run = load(demo)
    snapshot = ReportFiles(run.directory).load(ReportFiles(run.directory).rounds()[-1])
    page = gallery_document(run.directory)
    assert page is not None
    own = load_dataset(run.config.data).samples
    found, confidence = run.cluster(own)
    sizes = {section["id"]: section["note"].split()[0] for section in page["sections"]}
    assert len(own) == len(snapshot.features)  # the map shows all samples
    assert sizes == {f"cluster-{number}": str(count) for number, count in Counter(found.tolist()).items()}
    assert ((confidence > 0) & (confidence <= 1)).all()
    assert set(run.cluster(own, num_clusters=3)[0].tolist()) == {0, 1, 2}
    result = unisono("cluster", demo, "samples.npz", "--clusters", 2, "--json")
    assert {row["cluster"] for row in json.loads(result.out)} <= {0, 1}


def test_mistakes_are_explained(unisono: Command, demo: Path, pixels: np.ndarray) -> None:
    without = Path("without")
    shutil.copytree(demo, without, ignore=shutil.ignore_patterns("report"))
    assert "kept no features to find some" in unisono("cluster", without, "samples.npz").sentence
    assert "--output must end in .csv" in unisono("cluster", demo, "samples.npz", "--output", "a.npz").sentence
