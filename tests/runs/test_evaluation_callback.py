from __future__ import annotations

from pathlib import Path
from typing import Any

from unisono import load
from unisono.running import resume, run

SETTINGS = [
    "data.limit=120", "data.test_limit=40", "federation.rounds=4", "evaluation.probe_every=2", "engine.workers=0",
    "partition.num_clients=3", 'evaluation.probes=["clusters"]', "run.keep_checkpoints=9",
]  # fmt: skip


def test_stability_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """The round before a probe may have been in another process: the state it ended with is in the checkpoint."""
    settings = [f"run.directory={tmp_path}", *SETTINGS]
    whole = run("federated-kmeans", dataset="digits", name="whole", set=settings)
    expected: list[dict[str, Any]] = whole.metrics
    assert [entry["round"] for entry in expected if "probe.stability" in entry] == [1, 3]
    checkpoints = tmp_path / "whole" / "checkpoints"
    (checkpoints / "round-000004").rename(tmp_path / "later")
    resume(tmp_path / "whole")
    assert load(tmp_path / "whole").metrics == expected
    assert (tmp_path / "whole" / "clusters" / "sheet-1.png").is_file()


def test_caps_of_probes_are_said_in_the_report_at_the_end(tmp_path: Path) -> None:
    caps = ["evaluation.max_train_samples=50", "evaluation.max_test_samples=30", 'evaluation.probes=["knn"]']
    settings = [f"run.directory={tmp_path}", *SETTINGS, *caps]
    done = run("simclr", dataset="digits", name="capped", set=settings)
    sentence = (
        "Probes and floors look at 50 of 120 training samples (evaluation.max_train_samples) and 30 of 40 test samples "
        "(evaluation.max_test_samples), drawn from the seed."
    )
    assert sentence in (done.path / "report.html").read_text(encoding="utf-8")
