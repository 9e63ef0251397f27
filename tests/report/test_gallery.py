from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unisono.report.files import ReportFiles, Snapshot
from unisono.report.gallery import gallery_document
from unisono.runs.directory import RunDirectory


def write_run(path: Path, clusters: list[int], num_clusters: int, features: np.ndarray, labels: list[int] | None = None) -> Any:
    directory = RunDirectory(path)
    directory.save_config({"run": {"seed": 0}})
    files = ReportFiles(directory)
    files.write("about", {"client_names": ["north", "south"], "classes": ["a", "b", "c"] if labels is not None else []})
    files.write("points", {"labels": labels, "clients": [point % 2 for point in range(len(clusters))]})
    files.write("samples", {"source": ""})
    confidence = np.linspace(0, 1, len(clusters), dtype=np.float32)
    files.save(1, Snapshot(features.astype(np.float16), np.array(clusters), confidence, num_clusters))
    return directory


def test_typical_samples_are_the_surest_and_borderline_ones_the_least_sure(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [0] * 12 + [1] * 6, 3, np.ones((18, 2)))
    page = gallery_document(directory)
    assert page is not None
    first, second = page["sections"]
    assert first["title"] == "Cluster 0"
    assert first["note"] == "12 of 18 samples. From north (50%), south (50%)."
    typical, borderline = first["blocks"][0]["rows"]
    assert typical["members"] == [11, 10, 9, 8, 7, 6, 5, 4]
    assert borderline["members"] == [0, 1, 2, 3]
    assert borderline["titles"] == ["north", "south", "north", "south"]
    assert second["blocks"][0]["rows"][0]["members"] == [17, 16, 15, 14]


def test_a_method_without_clusters_gets_those_of_kmeans(tmp_path: Path) -> None:
    centres = np.eye(3).repeat(8, axis=0)
    features = np.concatenate([centres, centres[:1] + centres[8:9] * 0.9])  # the last sample lies between two clusters
    labels = [0] * 8 + [1] * 8 + [2] * 8 + [0]
    page = gallery_document(write_run(tmp_path, [-1] * 25, 0, features, labels))
    assert page is not None
    assert "3 of k-means" in page["subtitle"]
    assert [len(part["blocks"][0]["rows"]) for part in page["sections"]] == [2, 2, 2]
    assert any(part["blocks"][0]["rows"][1]["members"][0] == 24 for part in page["sections"])
    given = gallery_document(RunDirectory(tmp_path), num_clusters=5)
    assert given is not None
    assert "5 of k-means" in given["subtitle"]


def test_without_samples_there_is_no_gallery(tmp_path: Path) -> None:
    assert gallery_document(RunDirectory(tmp_path)) is None
