"""Whole runs through the Python API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from unisono.config import resolve
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.experiment import Experiment, run_path
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.recipes import build_tree

SMALL = [
    "data.limit=120",
    "data.test_limit=60",
    "partition.num_clients=6",
    "cohort.size=3",
    "federation.rounds=2",
    "model.backbone=cfcl-cnn",
    "training.local_epochs=1",
    "evaluation.probe_every=0",
    "method.projection_dim=16",
]
NOISE = ["privacy.noise_multiplier=1.0", "privacy.clip_norm=1.0"]


def run(directory: Path, *settings: str, method: str = "simclr", **flags: Any) -> unisono.LoadedRun:
    flags = {"dataset": "digits", "workers": 0, "name": "x", **flags}
    return unisono.run(method, set=[f"run.directory={directory}", *SMALL, *settings], **flags)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> unisono.LoadedRun:
    return run(tmp_path_factory.mktemp("runs"), "evaluation.probes=['linear', 'knn', 'alignment']")


def test_a_run_leaves_what_it_promises(finished: unisono.LoadedRun) -> None:
    names = {path.name for path in finished.path.iterdir()}
    assert {"config.toml", "run_info.json", "metrics.jsonl", "clients.jsonl", "timings.jsonl", "checkpoints", "model"} <= names
    last = finished.metrics[-1]
    assert {"loss", "bytes_up", "bytes_down", "probe.linear", "probe.knn", "probe.align", "probe.uniformity"} <= set(last)
    assert last["probe.linear"] > 0.3
    card = (finished.path / "model" / "README.md").read_text()
    assert "simclr" in card
    assert "digits" in card


class _Notes(Callback):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.found += record.notes


def test_the_score_is_on_the_projector_and_says_so_where_there_is_none(finished: unisono.LoadedRun, tmp_path: Path) -> None:
    assert {"probe.score", "probe.encoder-score"} <= set(finished.metrics[-1])
    notes = _Notes()
    settings = ["evaluation.probes=['alignment']", f"run.directory={tmp_path}"]
    small = [text for text in SMALL if not text.startswith("method.")]
    plain = unisono.run("supervised", set=[*small, *settings], dataset="digits", workers=0, name="x", callbacks=[notes])
    assert "probe.encoder-score" not in plain.metrics[-1]
    (note,) = notes.found
    assert note == "align, uniformity and score are those of the encoder's features, because supervised has no projector"


def test_bytes_are_counted_per_client_and_round(finished: unisono.LoadedRun) -> None:
    entry = json.loads((finished.path / "clients.jsonl").read_text().splitlines()[0])
    model_bytes = finished.method.broadcast(finished.server, Context(0)).num_bytes
    assert [client["bytes_down"] for client in entry["clients"]] == [model_bytes] * 3
    assert [client["bytes_up"] for client in entry["clients"]] == [model_bytes] * 3
    assert finished.metrics[0]["bytes_up"] == 3 * model_bytes


def test_the_resolved_config_is_a_recipe_that_repeats_the_run(finished: unisono.LoadedRun, tmp_path: Path) -> None:
    again = unisono.run(str(finished.path / "config.toml"), set=[f"run.directory={tmp_path}"])
    assert (again.path / "metrics.jsonl").read_bytes() == (finished.path / "metrics.jsonl").read_bytes()
    model = "model/encoder.safetensors"
    assert (again.path / model).read_bytes() == (finished.path / model).read_bytes()


def test_load_embed_and_transform(finished: unisono.LoadedRun) -> None:
    loaded = unisono.load(finished.path)
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    features = loaded.embed(images)
    assert features.shape == (5, 64)
    np.testing.assert_array_equal(features, finished.embed(torch.from_numpy(images)))
    np.testing.assert_array_equal(features, loaded.embed(images.transpose(0, 2, 3, 1)))
    np.testing.assert_array_equal(features, unisono.EncoderTransformer(finished.path).fit().transform(images))
    with pytest.raises(UserError, match=r"samples must have shape \(any, 1, 8, 8\), got \(5, 3, 8, 8\)"):
        loaded.embed(np.zeros((5, 3, 8, 8), dtype=np.uint8))
    assert loaded.cluster(images)[0].shape == (5,)  # those of the gallery


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (np.full((2, 1, 8, 8), 200.0), "divide them by 255"),
        (np.full((2, 1, 8, 8), 200), "pass images.astype('uint8')"),
        (np.full((2, 1, 8, 8), np.nan), "128 values that are NaN"),
    ],
)
def test_what_may_be_read_wrongly_is_refused_wherever_arrays_are_taken(
    finished: unisono.LoadedRun, given: np.ndarray, remedy: str
) -> None:
    transformer = unisono.EncoderTransformer(finished.path).fit()
    for take in (
        finished.embed,
        finished.cluster,
        finished.neighbors,
        finished.duplicates,
        finished.outliers,
        transformer.transform,
    ):
        with pytest.raises(UserError) as error:
            take(given)
        assert remedy in str(error.value)


def test_clusters_of_new_samples(tmp_path: Path) -> None:
    done = run(tmp_path, method="orchestra")
    index, confidence = done.cluster(np.zeros((3, 1, 8, 8), dtype=np.uint8))
    assert index.shape == confidence.shape == (3,)
    assert 0 < confidence[0] <= 1


def test_transformer_in_a_pipeline(finished: unisono.LoadedRun) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    images = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 2
    images[labels == 1] //= 8
    model = make_pipeline(unisono.EncoderTransformer(str(finished.path)), LogisticRegression(C=100.0)).fit(images, labels)
    assert model.score(images, labels) > 0.8


def test_privacy_is_accounted_every_round(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        *NOISE,
        "model.norm=group",
        "aggregation.weighting=uniform",
        "cohort.sampling=poisson",
    )
    ledger = [json.loads(line) for line in (done.path / "privacy.jsonl").read_text().splitlines()]
    assert [entry["round"] for entry in ledger] == [0, 1]
    assert 0 < ledger[0]["epsilon"] < ledger[1]["epsilon"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["privacy.noise_multiplier=1.0"], "noise_multiplier needs clip_norm"),
        (NOISE, "aggregation.weighting must be 'uniform'"),
        ([*NOISE, "aggregation.weighting=uniform"], 'set model.norm = "group"'),
        (
            [
                "privacy.noise_multiplier=1.0",
                "privacy.clip_norm=1.0",
                "aggregation.weighting=uniform",
                "aggregation.rule=median",
            ],
            "aggregation.rule must be 'mean'",
        ),
        (["aggregation.rule=multi-krum"], "aggregation.byzantine must be less than"),
        (["aggregation.rule=trimmed-mean"], "aggregation.trim must be at least 0.33"),
        (["cohort.size=7"], "cohort.size must be at most the number of clients, 6, got 7"),
        (["partition.num_clients=500"], "partition.num_clients"),
        (["format=2"], "format 2"),
        (["trainning.batch_size=2"], "Did you mean 'training'"),
        (["method.temperature=-0.1"], "method.temperature must be greater than 0, got -0.1"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, settings: list[str], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path / "runs", *settings)
    assert sentence in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "settings",
    [
        ["compression.bits=8", "compression.top_k=0.1"],
        ["aggregation.rule=trimmed-mean", "aggregation.trim=0.34"],
        ["aggregation.rule=multi-krum", "cohort.size=5"],
        ["server.optimizer=fedyogi", "server.learning_rate=0.01"],
        ["training.proximal_weight=0.1"],
        ["cohort.availability=bernoulli"],
        ["cohort.availability=diurnal"],
        ["shift.kind=rotation"],
        ["training.optimizer=adam", "training.schedule=cosine", "training.local_steps=3"],
    ],
)
def test_options_of_the_federation_run(tmp_path: Path, settings: list[str], finished: unisono.LoadedRun) -> None:
    done = run(tmp_path, *settings)
    assert done.round == 2
    assert done.metrics[-1]["loss"] > 0
    if settings[0].startswith("compression"):
        assert done.metrics[-1]["bytes_up"] < 0.3 * finished.metrics[-1]["bytes_up"]


def test_labels_reach_only_methods_that_need_them(tmp_path: Path) -> None:
    from unisono.config import resolve
    from unisono.experiment import Experiment
    from unisono.recipes import build_tree

    for method, visible in (("simclr", False), ("supervised", True)):
        tree = build_tree(method, {"dataset": "digits"}, ["data.limit=120"])
        assert (Experiment.prepare(resolve(tree)).clients.labels is not None) == visible


def test_seeds_differ_and_the_same_seed_repeats(finished: unisono.LoadedRun, tmp_path: Path) -> None:
    other = run(tmp_path / "other", seed=1)
    assert other.metrics[-1]["loss"] != finished.metrics[-1]["loss"]


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    done = run(tmp_path)
    metrics = (done.path / "metrics.jsonl").read_bytes()
    for file in done.path.glob("checkpoints/*/server.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"All checkpoints of .* are damaged"):
        unisono.resume(done.path)
    assert (done.path / "metrics.jsonl").read_bytes() == metrics


def test_a_method_in_a_file_is_found_again_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(unisono.__file__).parent / "methods" / "simclr.py"
    (tmp_path / "mine.py").write_text(source.read_text().replace('@register("simclr")', '@register("mine")'))
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "runs", method="mine.py")
    monkeypatch.chdir("/")
    assert unisono.load(tmp_path / "runs" / "x").round == 2


@pytest.mark.parametrize("settings", [["data.part=train+test"], ["data.test_limit=0"]], ids=["both parts", "training part"])
def test_clusters_are_judged_on_the_training_samples_where_nothing_is_held_out(tmp_path: Path, settings: list[str]) -> None:
    """CC and MCC train on and judge the same images; floors are measured on those too."""
    changes = [f"run.directory={tmp_path}", *SMALL[:-1], *settings]
    finished = unisono.run("mcc", set=changes, dataset="digits", workers=0, name="x")
    num_samples = 180 if "data.part=train+test" in settings else 120
    assert json.loads((finished.path / "report" / "about.json").read_text())["train_samples"] == num_samples
    scores = {"cluster-accuracy", "nmi", "ari", "kmeans-accuracy", "kmeans-nmi"}
    assert {f"probe.{name}" for name in scores} <= set(finished.metrics[-1])
    assert "probe.linear" not in finished.metrics[-1]
    floors = json.loads((finished.path / "floors.json").read_text())
    assert all(scores <= set(floor) for floor in floors.values())
    with pytest.raises(UserError, match="no sample is held out"):
        run(tmp_path, *settings, "evaluation.probes=['knn']", name="y")


def test_probes_never_see_the_unlabelled_part(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from dataclasses import replace\n"
        "import torch\n"
        "from unisono.data.datasets import DataConfig, load_dataset\n"
        "def load(config):\n"
        "    data = load_dataset(DataConfig(dataset='digits', limit=200))\n"
        "    labels = data.labels.clone()\n"
        "    labels[120:] = -1\n"
        "    return replace(data, labels=labels, num_unlabelled=80)\n"
    )
    settings = [f"data.dataset={tmp_path / 'half.py'}:load", "partition.scheme=whole-classes", "data.part=train+test"]
    over = [f"run.directory={tmp_path}", *SMALL[1:], "data.test_limit=60", *settings, "partition.num_clients=5"]
    experiment = Experiment.prepare(resolve(build_tree("cc", {"workers": 0}, [s for s in over if "projection" not in s])))
    assert [len(rows) for rows in experiment.partition.indices] == [16 + int(n) for n in _class_pairs(experiment)]
    data = experiment.probe_data()
    assert (len(data.train_samples), len(data.judged[0]), data.held_out) == (180, 180, False)
    assert experiment.clients.client_data(0, torch.device("cpu")).instance_only.sum() == 16


def _class_pairs(experiment: Experiment) -> list[int]:
    """Samples of classes 0 and 1, 2 and 3, ..., as whole-classes deals them to five clients."""
    labels = experiment.dataset.labels
    assert labels is not None
    counts = labels[labels >= 0].bincount(minlength=10)
    return [int(counts[2 * client : 2 * client + 2].sum()) for client in range(5)]


def test_unnamed_runs_of_one_second_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config, paths = resolve(build_tree("simclr")), set()
    for moment in (1000.0, 1000.25, 1000.5):
        monkeypatch.setattr("unisono.experiment.time.time", lambda moment=moment: moment)
        paths.add(run_path(config))
    assert len(paths) == 3
