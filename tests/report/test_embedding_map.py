from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.report.embedding_map import sheet_block
from unisono.report.files import ReportFiles, Snapshot
from unisono.runs.directory import RunDirectory


def sheet(path: Path, clusters: list[int], num_clusters: int) -> dict[str, Any]:
    files, num_points = ReportFiles(RunDirectory(path)), len(clusters)
    files.write("points", {"labels": None, "clients": [0] * num_points})
    files.write("samples", {"source": ""})
    features, confidence = np.ones((num_points, 2), np.float16), np.ones(num_points, np.float32)
    files.save(1, Snapshot(features, np.array(clusters), confidence, num_clusters))
    found = sheet_block(files)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("num_held", "num_clusters", "num_rows", "words"),
    [
        (5, 5, 5, ""),
        (22, 64, 22, " 42 of 64 clusters hold none of the 100 points on the map; many empty ones are a sign of collapse."),
        (30, 30, 24, " The 24 largest of 30 clusters that hold points."),
        (
            30,
            32,
            24,
            " The 24 largest of 30 clusters that hold points. 2 of 32 clusters hold none of the 100 points on the map;"
            " many empty ones are a sign of collapse.",
        ),
    ],
)
def test_empty_clusters_are_counted(tmp_path: Path, num_held: int, num_clusters: int, num_rows: int, words: str) -> None:
    found = sheet(tmp_path, [point % num_held for point in range(100)], num_clusters)
    assert len(found["rows"]) == num_rows
    assert found["note"] == f"The samples the model is surest of come first.{words}"
