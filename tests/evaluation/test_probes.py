import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unisono.core.config import make_section
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.evaluation import label_probes
from unisono.evaluation.alignment import align, uniformity
from unisono.evaluation.clusters import clustering_accuracy
from unisono.evaluation.config import EvaluationConfig, ProbeName
from unisono.evaluation.finetune import FineTuning
from unisono.evaluation.knn import knn_probe
from unisono.evaluation.label_probes import class_balanced
from unisono.evaluation.linear import linear_probe
from unisono.evaluation.probe_data import ProbeData, fitting_cap
from unisono.evaluation.probes import run_probes

UNLABELLED = {"view-agreement", "effective-rank", "mean-cosine", "cluster-agreement"}
"""Numbers of the probe of this name, for a method with clusters and without sites."""


class Counting(nn.Module):
    """Flattens, and counts the samples it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.num_seen = 0
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.num_seen += len(x)
        return x.flatten(1) * self.scale


def series(num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num_samples,), generator=generator)
    return (torch.eye(3)[labels] + 0.6 * torch.randn(num_samples, 3, generator=generator)).unsqueeze(1), labels


def views(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn(x.shape, generator=generator), torch.full_like(x, torch.nan)


def pair(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two views that may both be looked at."""
    return views(x, generator)[0], views(x, generator)[0]


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


@pytest.fixture
def data() -> ProbeData:
    return ProbeData(*series(90, 0), *series(60, 1))


def config(**values: object) -> EvaluationConfig:
    return make_section(EvaluationConfig, values, "evaluation")


def without_labels(data: ProbeData) -> ProbeData:
    return ProbeData(data.train_samples, None, data.test_samples, None)


def test_every_probe_gives_its_numbers(data):
    probes = [name for name in get_args(ProbeName) if name != "kmeans"]
    epochs = dict.fromkeys(("finetune_epochs", "orchestra_epochs", "easyfl_linear_epochs", "easyfl_head_epochs"), 2)
    table = config(probes=probes, sgd_steps=50, knn_neighbors=20, **epochs)
    numbers = run_probes(table, Counting(), nn.Flatten(), data, Context(0), pair, crop_flip=crop_flip)
    labelled = {*probes} - {"clusters", "alignment", "unlabelled"}
    clusters = {"cluster-accuracy", "nmi", "ari", "cluster-balance", "silhouette"}
    assert set(numbers) == labelled | clusters | {"align", "uniformity", "score"} | UNLABELLED
    train_x, test_x = data.train_samples.flatten(1), data.test_samples.flatten(1)
    splits = (train_x, data.train_labels, test_x, data.test_labels)
    assert numbers["linear"] == linear_probe(*splits)
    assert numbers["knn"] == knn_probe(*splits, k=20)
    assert numbers["cluster-accuracy"] == clustering_accuracy(data.test_labels, test_x.argmax(1))
    assert all(0 <= numbers[name] <= 1 for name in labelled)


def test_probes_of_public_codes_have_their_own_numbers(data, monkeypatch):
    """Each name stands for the protocol of its code, with the options of the table."""
    seen = {}

    def watched(*arguments):
        protocol, views = arguments[8], arguments[10]
        seen[arguments[6], protocol] = views
        return 0.5

    monkeypatch.setattr("unisono.evaluation.label_probes.finetune", watched)
    names = ["finetune-1", "finetune-orchestra-10", "head-orchestra-1", "head-easyfl-10"]
    table = config(probes=names, orchestra_finetune_rate=0.2)
    run_probes(table, Counting(), None, data, Context(0), None, crop_flip=crop_flip)
    assert seen == {
        (0.01, FineTuning()): None,
        (0.1, FineTuning(50, 0.2, 256, "sgd", augmented=True)): crop_flip,
        (0.01, FineTuning(50, 30.0, 256, "sgd", head_only=True, augmented=True)): crop_flip,
        (0.1, FineTuning(100, 1e-3, 128, "adam", head_only=True, hidden_dim=4096)): None,
    }
    with pytest.raises(UserError, match="'linear-orchestra' crops and flips samples"):
        run_probes(config(probes=["linear-orchestra"]), Counting(), None, data, Context(0), None)


def test_linear_probes_of_public_codes_take_their_steps(data, monkeypatch):
    seen = {}
    own = label_probes.fit_linear_adam

    def watched(x, y, generator, num_steps, batch_size, learning_rate):
        seen[num_steps] = (len(x), batch_size, learning_rate)
        return own(x, y, generator, 1, batch_size, learning_rate)

    monkeypatch.setattr("unisono.evaluation.label_probes.fit_linear_adam", watched)
    run_probes(config(probes=["linear-easyfl", "linear-adam"]), Counting(), None, data, Context(0), None)
    assert seen == {200: (90, 2048, 3e-3), 1000: (90, 256, 1e-4)}


def test_fine_tuning_takes_the_labels_that_were_held_out(data, monkeypatch):
    """10% of the data set's training part are kept: finetune-10 takes all of them, finetune-1 a tenth."""
    seen = {}

    def watched(*arguments):
        seen[len(arguments[2])] = arguments[6]
        return 0.5

    monkeypatch.setattr("unisono.evaluation.label_probes.finetune", watched)
    kept, labels = series(10, 3)
    labels[0] = -1
    held = replace(data, finetune_samples=kept, finetune_labels=labels)
    run_probes(config(probes=["finetune-10"]), Counting(), None, held, Context(0), None)
    assert seen == {9: pytest.approx(1.0)}
    run_probes(config(probes=["finetune-1"]), Counting(), None, held, Context(0), None)
    assert seen == {9: pytest.approx(0.1)}


def test_features_are_embedded_once(data):
    encoder = Counting()
    run_probes(config(probes=["linear", "linear-sgd", "knn"], sgd_steps=1), encoder, None, data, Context(0), None)
    assert encoder.num_seen == 90 + 60
    encoder = Counting()
    run_probes(config(probes=["linear", "alignment"]), encoder, None, data, Context(0), views)
    assert encoder.num_seen == 90 + 60 + 90


def test_numbers_depend_on_the_seed_alone_and_the_encoder_stays(data):
    table = config(probes=["linear-sgd", "finetune-10", "alignment"], sgd_steps=5, finetune_epochs=1, max_train_samples=40)
    encoder = Counting().train()
    numbers = run_probes(table, encoder, None, data, Context(3, round=1), views)
    assert encoder.training
    assert encoder.scale.item() == 1.0
    assert run_probes(table, encoder, None, data, Context(3, round=9, phase="probe"), views) == numbers
    assert run_probes(table, encoder, None, data, Context(4, round=1), views) != numbers


def test_unsupervised_scores_are_means_over_clients_of_equation_5(data):
    clients = [torch.arange(0, 10), torch.arange(50, 90), torch.empty(0, dtype=torch.long), torch.tensor([20])]
    table = config(probes=["alignment"], uniformity_weight=0.5)
    numbers = run_probes(table, Counting(), None, without_labels(data), Context(0), views, client_indices=clients)
    generator = Context(0).rng("probe-views")
    aligns, uniformities = [], []
    for rows in (clients[0], clients[1], clients[3]):
        x = data.train_samples[rows]
        aligns.append(align(x.flatten(1), views(x, generator)[0].flatten(1)))
        uniformities.append(uniformity(x.flatten(1)))
    assert numbers["align"] == pytest.approx(sum(aligns) / 3)
    assert numbers["uniformity"] == pytest.approx(sum(uniformities) / 3)
    assert numbers["score"] == pytest.approx(numbers["align"] + 0.5 * numbers["uniformity"])


def score_of_equation_5(clients, represent, weight=0.2, tau=0.2):
    """Eq. 5 with loops alone: the mean over clients of Align + weight Unif; a client is a list of samples and their views."""

    def cosine(u, v):
        return sum(a * b for a, b in zip(u, v, strict=True)) / math.sqrt(sum(a * a for a in u) * sum(b * b for b in v))

    scores = []
    for samples, augmented in clients:
        z, z_augmented = ([represent(x) for x in part] for part in (samples, augmented))
        aligned = sum(cosine(u, v) for u, v in zip(z, z_augmented, strict=True)) / len(z)
        logs = [math.log(sum(math.exp(cosine(x, y) / tau) for y in z) / len(z)) for x in z]
        scores.append(aligned - weight * sum(logs) / len(z))
    return sum(scores) / len(scores)


def test_the_score_is_that_of_backbone_and_projector_jointly(data):
    """f of Eq. 5 is backbone and projector (C.2 of the paper); the backbone's own score stands beside it."""
    projector = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    projector(torch.randn(32, 3, generator=torch.Generator().manual_seed(0)))  # running statistics, which eval mode uses
    clients = [torch.arange(0, 9), torch.arange(40, 52)]
    numbers = run_probes(
        config(probes=["alignment"]), Counting(), None, data, Context(0), views, client_indices=clients, projector=projector
    )
    assert projector.training, "flags are as they were"
    generator = Context(0).rng("probe-views")
    held = []
    for rows in clients:
        x = data.train_samples[rows]
        held.append((x.flatten(1).tolist(), views(x, generator)[0].flatten(1).tolist()))
    projector.eval()

    def represent(x):
        return projector(torch.tensor([x])).flatten().tolist()

    assert numbers["score"] == pytest.approx(score_of_equation_5(held, represent), abs=1e-5)
    assert numbers["encoder-score"] == pytest.approx(score_of_equation_5(held, lambda x: x), abs=1e-5)
    assert numbers["score"] == pytest.approx(numbers["align"] + 0.2 * numbers["uniformity"])
    assert abs(numbers["score"] - numbers["encoder-score"]) > 0.01
    alone = run_probes(config(probes=["alignment"]), Counting(), None, data, Context(0), views, client_indices=clients)
    assert alone["score"] == pytest.approx(numbers["encoder-score"])
    assert set(alone) == {"align", "uniformity", "score"}


def test_a_projector_costs_no_pass_of_the_encoder(data):
    encoder = Counting()
    run_probes(config(probes=["alignment"]), encoder, None, data, Context(0), views, projector=nn.Linear(3, 2))
    assert encoder.num_seen == 2 * 90


def test_no_more_samples_of_a_client_than_allowed(data):
    encoder = Counting()
    table = config(probes=["alignment"], max_client_samples=7)
    run_probes(table, encoder, None, data, Context(0), views, client_indices=[torch.arange(50), torch.arange(85, 90)])
    assert encoder.num_seen == 2 * (7 + 5)


def test_defaults_suit_what_there_is(data):
    assert set(run_probes(config(), Counting(), None, data, Context(0), None)) == {"linear", "knn", "labels-10"}
    unlabelled = run_probes(config(), Counting(), nn.Flatten(), without_labels(data), Context(0), pair)
    assert set(unlabelled) == {"align", "uniformity", "score", "cluster-balance", "silhouette"} | UNLABELLED


def test_without_a_test_split_clusters_are_those_of_the_training_samples(data):
    bare = ProbeData(data.train_samples, None, data.test_samples[:0], None)
    numbers = run_probes(config(), Counting(), nn.Flatten(), bare, Context(0), pair)
    on_train = ProbeData(data.train_samples, None, data.train_samples, None)
    assert numbers == run_probes(config(), Counting(), nn.Flatten(), on_train, Context(0), pair)


def test_where_nothing_is_held_out_the_training_samples_are_judged_by_all_their_labels(data):
    """As if they were the test samples, hidden labels included; samples whose label nobody knows are left out."""
    hidden, unknown = torch.full_like(data.train_labels, -1), data.train_labels.clone()
    unknown[80:] = -1
    empty = data.test_samples[:0]
    none_held_out = ProbeData(data.train_samples, hidden, empty, None, unknown)
    encoder = Counting()
    numbers = run_probes(config(), encoder, nn.Flatten(), none_held_out, Context(0), pair)
    samples, labels = data.train_samples[:80], data.train_labels[:80]
    expected = run_probes(
        config(probes=["kmeans", "clusters"]),
        Counting(),
        nn.Flatten(),
        ProbeData(data.train_samples, data.train_labels, samples, labels),
        Context(0),
        pair,
    )
    assert {name: numbers[name] for name in numbers.keys() - UNLABELLED} == expected
    assert numbers["cluster-accuracy"] == clustering_accuracy(labels, samples.flatten(1).argmax(1))
    encoder = Counting()
    whole = ProbeData(data.train_samples, data.train_labels, empty, None, data.train_labels)
    assert "kmeans-accuracy" in run_probes(config(probes=["kmeans"]), encoder, None, whole, Context(0), None)
    assert encoder.num_seen == 90, "the training samples are embedded once"
    for name in ("linear", "knn", "labels-10", "finetune-1"):
        with pytest.raises(UserError, match="no sample is held out"):
            run_probes(config(probes=[name]), Counting(), None, whole, Context(0), None)


def test_hidden_labels_are_not_learnt_from(data):
    hidden = data.train_labels.clone()
    hidden[30:] = -1
    partly = ProbeData(data.train_samples, hidden, data.test_samples, data.test_labels)
    few = ProbeData(data.train_samples[:30], data.train_labels[:30], data.test_samples, data.test_labels)
    assert run_probes(config(), Counting(), None, partly, Context(0), None) == run_probes(
        config(), Counting(), None, few, Context(0), None
    )
    none = ProbeData(data.train_samples, torch.full_like(hidden, -1), data.test_samples, data.test_labels)
    assert "align" in run_probes(config(), Counting(), None, none, Context(0), pair)


def test_labels_asked_for_and_missing(data):
    with pytest.raises(UserError, match="needs labels"):
        run_probes(config(probes=["linear"]), Counting(), None, without_labels(data), Context(0), views)


def test_features_that_are_not_finite_are_named(data):
    class Diverged(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) / 0

    with pytest.raises(UserError, match=r"encoder's features are not finite, .* lower the learning rate"):
        run_probes(config(), Diverged(), None, data, Context(0), None)
    with pytest.raises(UserError, match="projector's outputs are not finite"):
        run_probes(config(probes=["alignment"]), Counting(), None, data, Context(0), views, projector=Diverged())


def test_the_cap_gives_every_class_the_same_where_it_can():
    labels = torch.tensor([0] * 90 + [1] * 10 + [2] * 3)
    part = class_balanced(labels, 15, torch.Generator().manual_seed(0))
    assert labels[part].bincount().tolist() == [6, 6, 3]


@given(
    labels=st.lists(st.sampled_from([0, 0, 0, 1, 2, 2]), min_size=1, max_size=50),
    max_samples=st.integers(1, 60),
    seed=st.integers(0, 100),
)
def test_the_cap_takes_from_the_largest_classes_only(labels, max_samples, seed):
    """No class loses a sample while another that lost none, or less, is more than one larger in the result."""
    labels = torch.tensor(labels)
    part = class_balanced(labels, max_samples, torch.Generator().manual_seed(seed))
    assert len(part.unique()) == len(part) == min(max_samples, len(labels))
    kept = {int(label): int((labels[part] == label).sum()) for label in labels.unique()}
    for label, count in kept.items():
        if count < int((labels == label).sum()):
            assert count >= max(kept.values()) - 1


class Leading(nn.Module):
    """As many scores as features: the largest feature is the cluster, shifted by some."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).roll(self.shift, dims=1)


def test_stability_compares_with_the_clusters_of_the_round_before(data):
    first = Counting()
    probes = config(probes=["clusters"])
    same = run_probes(probes, first, Leading(), data, Context(0), None, previous_cluster_model=Leading())
    renamed = run_probes(probes, first, Leading(), data, Context(0), None, previous_cluster_model=Leading(1))
    assert same["stability"] == renamed["stability"] == 1
    constant = run_probes(probes, first, Leading(), data, Context(0), None, previous_cluster_model=_Constant())
    assert constant["stability"] == 0
    assert "stability" not in run_probes(probes, first, Leading(), data, Context(0), None)


class _Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 3) * torch.arange(3)


def test_clusters_that_a_method_does_not_have_yet_are_passed_over(data):
    assert run_probes(config(probes=["clusters"]), Counting(), None, data, Context(0), None) == {}


def test_kmeans_finds_the_classes_of_features_that_show_them(data):
    numbers = run_probes(config(probes=["kmeans"]), Counting(), None, data, Context(0), None)
    assert set(numbers) == {"kmeans-balance", "kmeans-accuracy", "kmeans-nmi", "kmeans-ari"}
    assert numbers["kmeans-accuracy"] > 0.6
    assert numbers == run_probes(config(probes=["kmeans"]), Counting(), None, data, Context(0, 7), None)


def test_kmeans_looks_at_so_many_training_samples(data):
    encoder = Counting()
    run_probes(config(probes=["kmeans"], max_train_samples=20), encoder, None, data, Context(0), None)
    assert encoder.num_seen == 20 + len(data.test_samples)


def test_kmeans_without_labels(data):
    unlabelled = without_labels(data)
    numbers = run_probes(config(probes=["kmeans"], kmeans_clusters=4), Counting(), None, unlabelled, Context(0), None)
    assert set(numbers) == {"kmeans-balance"}
    no_test = ProbeData(data.train_samples, None, data.test_samples[:0], None)
    numbers = run_probes(config(probes=["kmeans"], kmeans_clusters=4), Counting(), None, no_test, Context(0), None)
    assert 0 < numbers["kmeans-balance"] <= 1


@pytest.mark.parametrize("name", ["linear", "knn", "kmeans", "clusters"])
def test_probes_are_capped_and_all_samples_are_one_option(name: ProbeName) -> None:
    data = ProbeData(*series(500, 0), *series(400, 1))
    seen = {}
    for train, test in ((40, 30), (0, 0)):
        encoder = Counting()
        table = config(probes=[name], max_train_samples=train, max_test_samples=test)
        numbers = run_probes(table, encoder, Counting() if name == "clusters" else None, data, Context(0), None)
        assert all(0 <= value <= 1 for key, value in numbers.items() if "accuracy" in key)
        seen[train] = encoder.num_seen
    assert seen == ({40: 30, 0: 400} if name == "clusters" else {40: 70, 0: 900})


def test_many_clients_are_drawn_for_the_alignment() -> None:
    data = without_labels(ProbeData(*series(900, 0), *series(10, 1)))
    clients = list(torch.arange(900).split(9))
    few, same, all_of_them = (
        run_probes(
            config(probes=["alignment"], max_train_samples=most), encoder, None, data, Context(0), views, client_indices=clients
        )
        for most, encoder in ((90, Counting()), (90, Counting()), (0, Counting()))
    )
    assert few == same
    assert few["align"] == pytest.approx(all_of_them["align"], abs=0.02)
    encoder = Counting()
    run_probes(
        config(probes=["alignment"], max_train_samples=90), encoder, None, data, Context(0), views, client_indices=clients
    )
    assert encoder.num_seen == 180


def test_the_usual_caps() -> None:
    assert (config().max_train_samples, config().max_test_samples) == (20_000, 10_000)


def test_views_of_large_samples_are_made_for_fewer_of_them():
    seen = []

    def views(x, generator):
        seen.append(len(x))
        return x, x

    for edge, expected in ((32, 60), (128, 32)):
        seen.clear()
        samples = torch.zeros(60, 3, edge, edge, dtype=torch.uint8)
        samples[:, :, :8, :8] = torch.randint(256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
        config = EvaluationConfig(probes=("alignment",), max_train_samples=320)
        clients = list(torch.arange(60).split(30))
        run_probes(config, Flat(), None, ProbeData(samples, None, samples[:0], None), Context(0), views, client_indices=clients)
        assert sum(seen) == expected, edge
    assert fitting_cap(torch.zeros(1, 3, 224, 224), 1000, 250) == 250
    assert fitting_cap(torch.zeros(1, 3, 64, 64), 1000) == 250
    assert fitting_cap(torch.zeros(1, 1, 8, 8), 1000) == 1000


class Flat(nn.Module):
    def forward(self, x):
        return x.mean(dim=1).flatten(1)
