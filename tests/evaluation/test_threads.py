"""Probes wait for no threads: those that learn in small steps take one, and the rest a few."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from unisono.core.context import Context
from unisono.core.threads import threads
from unisono.data.image_cache import _decoded
from unisono.evaluation import probes as probes_module
from unisono.evaluation.config import EvaluationConfig
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.linear import linear_probe
from unisono.evaluation.probe_data import ProbeData
from unisono.evaluation.probes import run_probes
from unisono.report.projection import project


class Watched(nn.Module):
    """Network that notes with how many threads it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)
        self.seen: dict[str, set[int]] = {"learning": set(), "embedding": set()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched:
        copied = Watched()
        copied.seen = self.seen
        return copied

    def forward(self, x: Tensor) -> Tensor:
        self.seen["learning" if self.training else "embedding"].add(torch.get_num_threads())
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


def data() -> ProbeData:
    images = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 2
    return ProbeData(images[:40], labels[:40], images[40:], labels[40:])


def test_probes_take_few_threads_and_fine_tuning_takes_one() -> None:
    network = Watched()
    config = EvaluationConfig(probes=("linear", "knn", "finetune-10"), finetune_epochs=1)
    with threads(probes_module.MOST_THREADS + 3):
        run_probes(config, network, None, data(), Context(0), None)
        assert torch.get_num_threads() == probes_module.MOST_THREADS + 3
    assert network.seen["learning"] == {1}
    assert max(network.seen["embedding"]) == probes_module.MOST_THREADS
    with threads(1):
        run_probes(config, network, None, data(), Context(0), None)
    assert min(network.seen["embedding"]) == 1


def test_a_layer_learns_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    entropy = nn.functional.cross_entropy

    def watched(*values: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return entropy(*values)

    monkeypatch.setattr("torch.nn.functional.cross_entropy", watched)
    config = EvaluationConfig(probes=("linear-sgd", "linear-adam"), sgd_steps=2)
    with threads(3):
        run_probes(config, Watched(), None, data(), Context(0), None)
    assert seen == [1] * 4


def _limits() -> set[int]:
    return {library["num_threads"] for library in threadpool_info()}


@pytest.mark.parametrize("work", ["linear", "kmeans", "tsne"])
def test_libraries_are_capped(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []

    def watching(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            seen.append(_limits() if work != "kmeans" else _openmp())
            return function(*arguments, **options)

        return watched

    def _openmp() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"}

    import scipy.optimize
    from sklearn.cluster import KMeans
    from sklearn.manifold import TSNE

    features, labels = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    monkeypatch.setattr(scipy.optimize, "minimize", watching(scipy.optimize.minimize))
    monkeypatch.setattr(KMeans, "fit", watching(KMeans.fit))
    monkeypatch.setattr(TSNE, "fit_transform", watching(TSNE.fit_transform))
    with threads(3):
        if work == "linear":
            linear_probe(features, labels, features, labels)
        elif work == "kmeans":
            kmeans_clusters(features, features, 2, torch.Generator())
        else:
            project([features.double().numpy()], "tsne", 0)
    assert seen == [{1}]


def _threads_of(job: object) -> int:
    return torch.get_num_threads()


def test_processes_that_decode_images_have_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.data.image_cache._decode", _threads_of)
    with threads(3):
        assert list(_decoded([None, None], 2)) == [1, 1]


def test_threads_of_the_program_sleep_while_they_wait() -> None:
    script = "import os\nfrom unisono.cli.main import main\ntry: main(['--version'])\nfinally: print(os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "'OMP_WAIT_POLICY': 'passive'" in result.stdout
