"""The table ``[evaluation]``: which probes a run has, and whether its data and its method allow them."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from unisono.core.config import Section
from unisono.core.errors import UserError

ProbeName = Literal[
    "linear",
    "linear-sgd",
    "linear-orchestra",
    "linear-easyfl",
    "linear-adam",
    "knn",
    "labels-10",
    "finetune-1",
    "finetune-10",
    "finetune-orchestra-1",
    "finetune-orchestra-10",
    "head-orchestra-1",
    "head-orchestra-10",
    "head-easyfl-1",
    "head-easyfl-10",
    "clusters",
    "kmeans",
    "alignment",
    "unlabelled",
]
NEED_NO_LABELS: tuple[ProbeName, ...] = ("clusters", "kmeans", "alignment", "unlabelled")
NEED_LABELS: tuple[ProbeName, ...] = tuple(name for name in get_args(ProbeName) if name not in NEED_NO_LABELS)
FRACTIONS: dict[ProbeName, float] = {
    name: int(name.rpartition("-")[2]) / 100 for name in NEED_LABELS if name.startswith(("finetune-", "head-"))
}
"""Share of the labels that a probe fine-tunes with."""


def is_due(every: int, done: int, last: int) -> bool:
    """Return whether scores are taken after so many rounds: every few rounds, and after the last.

    Args:
        every: rounds between evaluations; 0 evaluates the last round only.
        done: rounds so far.
        last: length of the run.
    """
    return (every > 0 and done % every == 0) or done == last


class EvaluationConfig(Section):
    """The table ``[evaluation]``: when and how the encoder is looked at."""

    probe_every: int = Field(5, ge=0, description="Rounds between probes; 0 probes at the end only.")
    probe_start: bool = Field(False, description="Probe the weights before the first round too (start.json).")
    probes: tuple[ProbeName, ...] | None = Field(
        None,
        description=(
            "Which probes; unset: linear, knn and labels-10 with labels (kmeans and unlabelled where no sample is held "
            "out), alignment and unlabelled without, clusters if the method has any."
        ),
    )
    floors: bool = Field(True, description="Measure raw pixels, their PCA and untrained weights by the same probes.")
    max_train_samples: int = Field(
        20_000, ge=0, description="Most training samples that probes and floors learn from, balanced over classes; 0: all."
    )
    max_test_samples: int = Field(
        10_000, ge=0, description="Most samples that probes and floors are tested on, drawn from the seed; 0: all."
    )
    kmeans_clusters: int | None = Field(
        None,
        ge=2,
        description="kmeans: how many; unset: as many as there are classes. unlabelled: the same, 10 without labels.",
    )
    batch_size: int = Field(512, ge=1, description="Samples per forward pass.")
    linear_l2: float = Field(0.01, gt=0, description="linear: weight of |W|^2 / 2 beside the mean cross-entropy.")
    sgd_steps: int = Field(1000, ge=1, description="linear-sgd and linear-adam: steps.")
    sgd_batch_size: int = Field(256, ge=1, description="linear-sgd and linear-adam: samples per step.")
    sgd_learning_rate: float = Field(0.1, gt=0, description="linear-sgd: learning rate of the first step.")
    adam_learning_rate: float = Field(1e-4, gt=0, description="linear-adam: learning rate.")
    warm_start: bool = Field(False, description="linear-sgd: begin with the layer of the evaluation before.")
    knn_neighbors: int | None = Field(
        None, ge=1, description="knn: number of neighbours; unset: 200 of 50,000 training samples, and that share of fewer."
    )
    knn_temperature: float = Field(0.1, gt=0, description="knn: a neighbour's weight is exp(cosine / temperature).")
    finetune_epochs: int = Field(30, ge=1, description="finetune-1 and finetune-10: passes over the labelled part.")
    finetune_batch_size: int = Field(64, ge=2, description="finetune-1 and finetune-10: samples per step.")
    finetune_learning_rate: float = Field(0.001, gt=0, description="finetune-1 and finetune-10: learning rate of Adam.")
    orchestra_epochs: int = Field(50, ge=1, description="Probes of Orchestra's code: passes over the labelled part.")
    orchestra_learning_rate: float = Field(
        30.0, gt=0, description="linear-orchestra, head-orchestra: rate of SGD at first; falls to 0 along a cosine."
    )
    orchestra_finetune_rate: float = Field(
        0.05, gt=0, description="finetune-orchestra: the same; the code's 30 is meant for a linear layer."
    )
    easyfl_linear_epochs: int = Field(200, ge=1, description="linear-easyfl: passes over the training samples.")
    easyfl_head_epochs: int = Field(100, ge=1, description="head-easyfl: passes over the labelled part.")
    max_client_samples: int = Field(
        512, ge=1, description="alignment: most samples of each client to look at; fewer of large images."
    )
    uniformity_weight: float = Field(0.2, ge=0, description="alignment: weight of Unif beside Align in the score.")
    uniformity_tau: float = Field(0.2, gt=0, description="alignment: tau of Unif.")
    cluster_consistency: bool = Field(
        False, description="Log every round how many samples keep their cluster if all are clustered in one place (Orchestra)."
    )


def chosen_probes(
    config: EvaluationConfig, has_labels: bool, has_cluster_model: bool, held_out: bool = True
) -> tuple[ProbeName, ...]:
    """Return the probes of the config, or those that suit the data and the method where it names none.

    Args:
        config: the table.
        has_labels: whether samples have labels.
        has_cluster_model: whether the method assigns clusters.
        held_out: whether there are test samples.
    """
    if config.probes is not None:
        return config.probes
    probes: tuple[ProbeName, ...] = ("alignment", "unlabelled")
    if has_labels:
        probes = ("linear", "knn", "labels-10") if held_out else ("kmeans", "unlabelled")
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
    held_out_labels: float = 0.0,
) -> None:
    """Raise a UserError that says which probe cannot run and what to do; for use before a run starts.

    Args:
        config: the table.
        has_labels: whether training and test samples have labels.
        num_train_samples: how many training samples there are.
        num_test_samples: how many test samples there are.
        has_cluster_model: whether the method assigns clusters.
        has_views: whether augmented views can be made.
        held_out_labels: share of the training part that was kept for fine-tuning; 0 takes training samples.
    """
    for name in chosen_probes(config, has_labels, has_cluster_model, num_test_samples > 0):
        if name in NEED_LABELS and not has_labels:
            raise UserError(
                f"evaluation.probes asks for {name!r}, which needs labels, but the data set has none: "
                'leave evaluation.probes unset or set it to ["alignment"].'
            )
        if name in NEED_LABELS and num_test_samples == 0:
            raise UserError(
                f"evaluation.probes: {name!r} learns from training samples and needs others to be tested on, but no sample is "
                'held out: see data.part, data.test_fraction and data.test_limit, or set evaluation.probes to ["clusters", '
                '"kmeans"], which judge the training samples.'
            )
        if 0 < held_out_labels < FRACTIONS.get(name, 0.0):
            raise UserError(
                f"evaluation.probes: {name!r} fine-tunes with {FRACTIONS[name]:.0%} of the labels, and data.held_out_labels = "
                f"{held_out_labels:g} holds fewer out: set it to {FRACTIONS[name]:g}, or to 0 for training samples."
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
        if (name == "alignment" or (name == "unlabelled" and config.probes)) and not has_views:
            raise UserError(
                f"evaluation.probes: {name!r} compares augmented views, but there are none for this data: "
                "configure views or choose other probes."
            )
