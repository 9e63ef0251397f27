"""Every cell at the papers' scale beside the numbers of the papers, or of the code that they build on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.studies.test_settings import Resolved, describe, every_cell

ORCHESTRA_RATES = {
    "simclr": (0.003, 0.03),
    "simsiam": (0.01, 0.03),
    "specloss": (0.003, 0.03),
    "byol": (0.01, 0.03),
    "orchestra": (0.003, 0.01),
    "supervised": (0.01, 0.01),
}
"""C.4 of the paper, across devices and across silos; supervised is our choice from the powers of ten of Charles et al. 2021."""

ORCHESTRA_VIEWS = {
    "simclr": "orchestra-simclr",
    "simsiam": "orchestra-simclr",
    "specloss": "orchestra-specloss",
    "byol": "orchestra-byol",
    "orchestra": "orchestra",
    "rotpred": "none",
    "supervised": "orchestra-supervised",
}
"""Presets by method, as the public code has them."""
ORCHESTRA_HEADS: dict[str, dict[str, Any]] = {
    "simclr": {"method.last_norm": True},
    "simsiam": {"method.hidden_dim": 256, "method.bottleneck_dim": 512, "method.projection_dim": 512},
    "specloss": {"method.last_norm": True},
    "byol": {"method.hidden_dim": 1024, "method.projection_dim": 512},
    "orchestra": {
        "method.last_norm": True,
        "method.evaluate": "online",
        "method.target_view": "augmented",
        "method.global_clustering": "prototypes",
    },
    "rotpred": {"method.last_norm": True},
    "supervised": {},
}
"""Heads and options by method, as the public code has them."""


SGD = {"training.optimizer": "sgd", "training.momentum": 0.9}
EASYFL = SGD | {"training.learning_rate": 0.032, "training.schedule": "cosine", "training.weight_decay": 5e-4}
CC = {
    "training.optimizer": "adam",
    "training.learning_rate": 3e-4,
    "training.schedule": "constant",
    "training.weight_decay": 0.0,
    "method.instance_dim": 128,
    "method.instance_temperature": 0.5,
    "method.cluster_temperature": 1.0,
}
CC_VIEWS = {"stl10": "cc-stl", "folder": "cc-imagenet"}


def orchestra_numbers(cell: Resolved) -> dict[str, Any]:
    silo, hundred = cell.recipe["partition.num_clients"] == 10, cell.options["data.dataset"] == "cifar100"
    expected: dict[str, Any] = {
        **SGD,
        "training.schedule": "constant",
        "training.weight_decay": 1e-4,
        "training.batch_size": 256 if silo else 16,
        "training.local_epochs": 10,
        "training.drop_last": True,
        "cohort.participation": 1.0 if silo else 0.5,
        "partition.scheme": "dirichlet",
        "partition.alpha": 0.1,
        "federation.rounds": 100,
        "views.preset": ORCHESTRA_VIEWS[cell.method],
        "model.backbone": "resnet18",
        "model.norm": "batch",
        "model.normalize_input": "half",
        **ORCHESTRA_HEADS[cell.method],
    }
    if cell.method in ORCHESTRA_RATES:
        expected["training.learning_rate"] = ORCHESTRA_RATES[cell.method][silo]
    if cell.method in ("orchestra", "byol"):
        expected["method.ema"] = 0.99 if silo else 0.996
    clusters = (128 if hundred else 64) if silo else (256 if hundred else 32)
    if cell.method == "orchestra":
        expected |= {"method.num_global_clusters": clusters, "method.num_local_clusters": 16 if hundred else 8}
        expected["method.memory_size"] = 256 if silo else 128
    if cell.method == "specloss":
        expected["method.num_scores"] = clusters
    return expected


def fedmcc_input(cell: Resolved) -> dict[str, Any]:
    """The network sees 224 px, cropped or squeezed from the stored image; MNIST, pixels and rows quoted from EasyFL have 32."""
    dataset, is_pixels = cell.options["data.dataset"], cell.method == "federated-kmeans"
    quoted = cell.study in ("fedmcc-table-3", "fedmcc-table-4", "fedmcc-table-5") and cell.method != "fedmcc"
    small = dataset == "mnist" or is_pixels or quoted
    stored = 32 if dataset == "mnist" or is_pixels else {"folder": 256}.get(dataset)
    network = {"model.stem": "3x3" if small else "imagenet", "model.input_size": 32 if small else 224}
    return {**network, "data.image_size": stored, "data.squeeze": dataset == "folder"}


def fedmcc_numbers(cell: Resolved) -> dict[str, Any]:
    dataset, centralised = cell.options["data.dataset"], cell.options["partition.num_clients"] == 1
    by_cc = cell.method in ("fedmcc", "cc", "mcc")
    expected = {
        **fedmcc_input(cell),
        "training.batch_size": 256 if centralised and cell.method == "cc" else 128,
        "training.local_epochs": 10 if centralised else 5,
        "training.drop_last": True,
        "training.keep_optimizer": centralised,
        "partition.stratified": True,
        "model.norm": "batch",
        "model.normalize_input": False,
        "data.unlabelled": dataset == "stl10",
        "data.part": "train+test" if dataset == "stl10" or (centralised and dataset != "tiny-imagenet") else "train",
    }
    if by_cc:
        expected |= CC | {"views.preset": CC_VIEWS.get(dataset, "cc")}
    if cell.method in ("mcc", "fedmcc"):
        expected["method.ema"] = 0.99
    if cell.method == "fedmcc":
        expected |= {"method.target": "restart", "method.cluster_start": "random"}
    if cell.method in ("fedu", "fedema", "simclr", "simsiam", "fedca"):
        expected |= EASYFL | {"views.preset": "easyfl"}
    if cell.method in ("fedu", "fedema"):
        expected |= {"method.hidden_dim": 4096, "method.projection_dim": 2048, "method.divergence": "drift", "method.ema": 0.99}
    if cell.study == "fedmcc-table-6" and cell.method in ("cc", "mcc"):
        expected["federation.rounds"] = 100
    return expected


def uv_numbers(cell: Resolved) -> dict[str, Any]:
    dataset = cell.options["data.dataset"]
    heads: dict[str, Any] = {"method.uv_scale": 1.0, "method.uv_hidden_dim": 2048, "method.uv_dim": 128}
    heads |= {
        "method.hidden_dim": 2048,
        "method.projection_dim": 128,
        "method.projector_norm": False,
        "method.loss": "info-nce",
    }
    return {name: value for name, value in heads.items() if name in cell.options} | {
        "training.optimizer": "sgd",
        "training.learning_rate": 0.1,
        "training.batch_size": 128,
        "training.local_epochs": 1,
        "training.momentum": 0.0,
        "training.weight_decay": 0.0,
        "aggregation.weighting": "uniform",
        "server.optimizer": "fedadam",
        "federation.rounds": 50_000,
        "cohort.size": 10,
        "partition.num_clients": 500 if dataset == "cifar100" else 100,
        "partition.alpha": 0.1,
        "views.preset": "simclr",
        "model.backbone": "cct-4-3x2" if dataset == "tiny-imagenet" else "resnet18",
        "model.norm": "group",
        "model.groups": 2,
    }


def cfcl_numbers(cell: Resolved) -> dict[str, Any]:
    """The paper's rows are literal; those called ours, and the study of negatives, say what is ours."""
    ours = cell.cell.reference.endswith("-ours")
    return {
        "training.learning_rate": 1e-3 if ours else 1e-4,
        "views.preset": "byol" if ours else "cfcl",
        "method.normalize": ours,
        "method.pull_at_start": ours,
        "method.negatives": "union",
        "method.num_reserve": 500,
        "method.num_candidates": 1000,
        "method.num_clusters": 4,
        "method.importance_temperature": [4.0, 10.0],
        "method.aggregation_steps": 50,
        "training.optimizer": "adam",
        "training.weight_decay": 0.0,
        "training.local_steps": 10,
        "federation.rounds": 250,
        "partition.num_clients": 10,
        "partition.classes_per_client": 2,
        "graph.topology": "geometric",
        "graph.mean_degree": 3.0,
        "model.backbone": "cfcl-cnn",
        "data.dataset": "fashion-mnist",
    }


NUMBERS = {"orchestra": orchestra_numbers, "fedmcc": fedmcc_numbers, "uv": uv_numbers, "cfcl": cfcl_numbers}


@pytest.mark.xdist_group("studies")
@pytest.mark.parametrize("paper", NUMBERS)
def test_cells_have_the_numbers_of_the_paper(paper: str) -> None:
    cells = [cell for cell in every_cell() if cell.scale == "paper" and cell.study.partition("-")[0] == paper]
    assert cells
    for cell in cells:
        for option, value in NUMBERS[paper](cell).items():
            if option not in cell.assigned:
                assert cell.options[option] == value, f"{describe(cell, option)}, the paper has {value!r}"
