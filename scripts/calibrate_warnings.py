"""Short runs that have learnt, have not, or have collapsed, and what is said of each: the tables of docs/evaluation.md.

``python scripts/calibrate_warnings.py digits --images 300 --passes 20`` prints a line of JSON per run: the share of right
neighbours and the accuracy of k-means by the hidden file names, the numbers without labels, and the sentences.
``--case untrained`` runs one of them; ``--views`` compares presets of views on grey images instead.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F

from unisono import LoadedRun, run
from unisono.cli.run_progress import probes_of
from unisono.core.context import Context
from unisono.data import example_sites
from unisono.data.datasets import DataConfig, load_dataset
from unisono.evaluation.clusters import clustering_accuracy
from unisono.evaluation.features import embed
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.search import nearest_rows
from unisono.evaluation.truth import tell

ROUNDS = 4
LUMA = np.array([0.299, 0.587, 0.114])
GREY = {**example_sites.STYLES, "west": lambda image, draw: 0.6 * image + 60}
"""The styles of sites without colours."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "trained": {},
    "one pass": {"training.local_epochs": 1, "federation.rounds": 1},
    "untrained": {"training.local_epochs": 1, "federation.rounds": 1, "training.learning_rate": 1e-9},
    "rate 10,000 times too high": {"training.learning_rate": 100.0},
    "crops and flips alone": {"views.preset": "orchestra-supervised"},
    "Orchestra": {"method.name": "orchestra"},
}


def write(folder: Path, name: str, number: int, grey: bool) -> None:
    """Write images of a data set as three sites."""
    data = load_dataset(DataConfig(dataset=name, limit=number))
    assert data.labels is not None
    images = data.samples.permute(0, 2, 3, 1).numpy()
    if images.shape[3] == 3 and grey:
        images = (images @ LUMA).round().astype(np.uint8)
    images = images.squeeze(3) if images.ndim == 4 and images.shape[3] == 1 else images
    names = [data.class_names[label] for label in data.labels.tolist()]
    with patch.object(example_sites, "STYLES", GREY if grey else example_sites.STYLES):
        example_sites.write_sites(folder, np.ascontiguousarray(images), names)


def learn(folder: Path, name: str, passes: int, grey: bool, options: Mapping[str, Any]) -> LoadedRun:
    """Return a run on the images."""
    chosen: dict[str, Any] = {
        "method.name": "simclr",
        "data.dataset": "folder",
        "data.path": str(folder),
        "data.test_fraction": 0.0,
        "data.channels": 1 if grey else 3,
        "partition.scheme": "natural",
        "cohort.size": 3,
        "model.backbone": "convnet",
        "training.batch_size": 64,
        "training.learning_rate": 0.01,
        "training.local_epochs": max(1, passes // ROUNDS),
        "federation.rounds": ROUNDS,
        "evaluation.probe_every": 0,
        "evaluation.probes": ["unlabelled"],
        "report.enabled": False,
        "engine.workers": 0,
        "run.name": name,
        **options,
    }
    if chosen["method.name"] == "simclr":
        chosen.setdefault("views.preset", "clothing" if grey else "orchestra")
    recipe: dict[str, Any] = {"format": 1}
    for option, value in chosen.items():
        table, _, key = option.partition(".")
        recipe.setdefault(table, {})[key] = value
    return run(recipe, progress=False)


def judge(found: LoadedRun) -> dict[str, tuple[float, float]]:
    """Return the share of right neighbours and the accuracy of k-means, of the run, of untrained weights and of pixels."""
    samples = found.embedded()
    images = torch.cat([values for values, _, _ in samples.samples.batches()])
    kinds = [Path(name).stem.partition("-")[2] for name in samples.samples.names]
    truth = torch.tensor([sorted(set(kinds)).index(kind) for kind in kinds])
    untrained = embed(found.method.encoder(found.method.init_server(Context(0))), images)
    scores = {}
    for name, features in {"run": samples.features, "untrained": untrained, "pixels": images.flatten(1).float()}.items():
        rows, _ = nearest_rows(features, features, 10, torch.arange(len(features)))
        directions = F.normalize(features, dim=1)
        clusters = kmeans_clusters(directions, directions, len(set(kinds)), torch.Generator().manual_seed(0))
        right = float((truth[rows] == truth[:, None]).float().mean())
        scores[name] = (round(right, 3), round(clustering_accuracy(truth, clusters), 3))
    return scores


def main() -> None:
    """Print a line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--views", nargs="*", help="presets, such as clothing, orchestra and digits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    grey = options.views is not None
    cases = {preset: {"views.preset": preset} for preset in options.views or ()} if grey else dict(CASES)
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        write(Path("images"), options.dataset, options.images, grey)
        for case in [options.case] if options.case else cases:
            found = learn(Path("images").absolute(), f"run-{len(os.listdir())}", options.passes, grey, cases[case])
            probes = next(results for entry in reversed(found.metrics) if (results := probes_of(entry)))
            told = tell(probes, found.directory.floors)
            judged = {"neighbours and clusters": judge(found), "probes": probes, "floors": found.directory.floors}
            print(json.dumps({"case": case, **judged, "said": [*told.sentences, *told.warnings]}), flush=True)


if __name__ == "__main__":
    main()
