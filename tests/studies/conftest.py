"""A study small enough for tests, and one finished run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

SMALL = """
format = 1

[study]
title = "Two methods"
claim = "They learn."
source = "Nobody 2000, Table 1"
recipe = "digits-smoke"
set = [
  "engine.workers=0", "data.limit=120", "data.test_limit=40", "federation.rounds=2", "evaluation.probe_every=1",
  "evaluation.probes=['knn']", "cohort.size=2", "model.backbone=cfcl-cnn",
]
seeds = [0, 1]
metrics = ["knn", "rounds to knn 0.01", "rounds to knn 2"]
untrained = true
plot = "line"
axis_label = "alpha"
log_axis = true

[[variant]]
name = "SimCLR"

[[variant]]
name = "Orchestra"
method = "orchestra"
set = ["method.projection_dim=16", "method.num_global_clusters=8", "training.learning_rate=0.01"]

[[setting]]
name = "alpha 0.1"
value = 0.1
set = ["partition.alpha=0.1"]

[[setting]]
name = "alpha 10"
value = 10
set = ["partition.alpha=10.0"]

[[override]]
variants = ["Orchestra"]
settings = ["alpha 10"]
set = ["training.learning_rate=0.02"]

[paper.knn]
"SimCLR" = { "alpha 0.1" = 64.3, "alpha 10" = "70.1 ± 0.3" }
"""


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(autouse=True, scope="module")
def quick(few_prototype_steps: None) -> None:
    """Runs of Orchestra take a tenth of a second, as those of SimCLR."""
