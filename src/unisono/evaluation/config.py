"""The table ``[evaluation]``: which probes a run has, and whether its data and its method allow them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unisono.core.config import Section
from unisono.core.errors import UserError

ProbeName = Literal["linear", "linear-sgd", "knn", "labels-10", "finetune-1", "finetune-10", "clusters", "kmeans", "alignment"]
NEED_LABELS: tuple[ProbeName, ...] = ("linear", "linear-sgd", "knn", "labels-10", "finetune-1", "finetune-10")


class EvaluationConfig(Section):
    """The table ``[evaluation]``: when and how the encoder is looked at."""

    probe_every: int = Field(5, ge=0, description="Rounds between probes; 0 probes at the end only.")
    probe_start: bool = Field(False, description="Probe the weights before the first round too (start.json).")
    probes: tuple[ProbeName, ...] | None = Field(
        None,
        description=(
            "Which probes; unset: linear, knn and labels-10 with labels, alignment without, clusters if the method has any."
        ),
    )
    floors: bool = Field(True, description="Measure raw pixels, their PCA and untrained weights by the same probes.")
    max_train_samples: int | None = Field(
        None, ge=1, description="Most training samples that the probes with labels learn from, the same number of each class."
    )
    kmeans_clusters: int | None = Field(None, ge=2, description="kmeans: how many; unset: as many as there are classes.")
    batch_size: int = Field(512, ge=1, description="Samples per forward pass.")
    linear_l2: float = Field(0.01, gt=0, description="linear: weight of |W|^2 / 2 beside the mean cross-entropy.")
    sgd_steps: int = Field(1000, ge=1, description="linear-sgd: steps.")
    sgd_batch_size: int = Field(256, ge=1, description="linear-sgd: samples per step.")
    sgd_learning_rate: float = Field(0.1, gt=0, description="linear-sgd: learning rate of the first step.")
    warm_start: bool = Field(False, description="linear-sgd: begin with the layer of the evaluation before.")
    knn_neighbors: int = Field(200, ge=1, description="knn: number of neighbours.")
    knn_temperature: float = Field(0.1, gt=0, description="knn: a neighbour's weight is exp(cosine / temperature).")
    finetune_epochs: int = Field(30, ge=1, description="finetune-1 and finetune-10: passes over the labelled part.")
    finetune_batch_size: int = Field(64, ge=2, description="finetune-1 and finetune-10: samples per step.")
    finetune_learning_rate: float = Field(0.001, gt=0, description="finetune-1 and finetune-10: learning rate of Adam.")
    max_client_samples: int = Field(512, ge=1, description="alignment: most samples of each client to look at.")
    uniformity_weight: float = Field(0.2, ge=0, description="alignment: weight of Unif beside Align in the score.")
    uniformity_tau: float = Field(0.2, gt=0, description="alignment: tau of Unif.")
    cluster_consistency: bool = Field(
        False, description="Log every round how many samples keep their cluster if all are clustered in one place (Orchestra)."
    )


def chosen_probes(config: EvaluationConfig, has_labels: bool, has_cluster_model: bool) -> tuple[ProbeName, ...]:
    """Return the probes of the config, or those that suit the data and the method where it names none."""
    if config.probes is not None:
        return config.probes
    probes: tuple[ProbeName, ...] = ("linear", "knn", "labels-10") if has_labels else ("alignment",)
    return (*probes, "clusters") if has_cluster_model else probes


def client_probes(config: EvaluationConfig, has_cluster_model: bool) -> tuple[ProbeName, ...]:
    """Return the probes that the clients of a federation run on their own samples, which have no labels."""
    return tuple(name for name in chosen_probes(config, False, has_cluster_model) if name in ("alignment", "clusters"))


def check_probes(
    config: EvaluationConfig,
    has_labels: bool,
    *,
    num_train_samples: int = 1,
    num_test_samples: int = 1,
    has_cluster_model: bool = True,
    has_views: bool = True,
) -> None:
    """Raise a UserError that says which probe cannot run and what to do; for use before a run starts.

    Args:
        config: the table.
        has_labels: whether training and test samples have labels.
        num_train_samples: how many training samples there are.
        num_test_samples: how many test samples there are.
        has_cluster_model: whether the method assigns clusters.
        has_views: whether augmented views can be made.
    """
    for name in chosen_probes(config, has_labels, has_cluster_model):
        if name in NEED_LABELS and not has_labels:
            raise UserError(
                f"evaluation.probes asks for {name!r}, which needs labels, but the data set has none: "
                'leave evaluation.probes unset or set it to ["alignment"].'
            )
        if name in NEED_LABELS and num_test_samples == 0:
            raise UserError(
                f"evaluation.probes: {name!r} needs test samples, but the test split is empty: "
                'give the data set a test split or set evaluation.probes to ["alignment"].'
            )
        if num_train_samples == 0:
            raise UserError(f"evaluation.probes: {name!r} needs training samples, but there are none: give the data set some.")
        if name == "clusters" and not has_cluster_model:
            raise UserError(
                "evaluation.probes asks for 'clusters', but the method assigns none: leave it out or choose one that does."
            )
        if name == "kmeans" and not has_labels and config.kmeans_clusters is None:
            raise UserError(
                "evaluation.kmeans_clusters is required for the probe 'kmeans', because the data set has no labels to count."
            )
        if name == "alignment" and not has_views:
            raise UserError(
                "evaluation.probes: 'alignment' compares augmented views, but there are none for this data: "
                "configure views or choose other probes."
            )
