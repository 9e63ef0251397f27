"""Mistakes of users: one sentence that names field, value and remedy, exit code 2, nothing written."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import SMALL, Command


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "simclrr"], ["'simclrr'", "Did you mean 'simclr'", "byol", "supervised", "unisono list recipes"]),
        (["run", *SMALL, "--set", "method.name=nonsense"], ["no method 'nonsense'", "byol", "simclr"]),
        (["run", *SMALL, "--dataset", "digit"], ["no dataset 'digit'", "Did you mean 'digits'", "fashion-mini"]),
        (["run", *SMALL, "--set", "model.backbone=resnet19"], ["no backbone 'resnet19'", "resnet18", "resnet50"]),
        (["run", *SMALL, "--set", "partition.scheme=nonsense"], ["no partitioner 'nonsense'", "dirichlet", "iid"]),
        (["partition", "--scheme", "nonsense"], ["no partitioner 'nonsense'", "dirichlet"]),
        (["run", *SMALL, "--engine", "nonsense"], ["engine.kind must be 'embedded'", "'nonsense'"]),
        (["run", *SMALL, "--rounds", "0"], ["federation.rounds must be greater than or equal to 1, got 0"]),
        (["run", *SMALL, "--set", "training.batch_size=many"], ["training.batch_size must be a whole number, got 'many'"]),
        (["run", *SMALL, "--name", "../x"], ["run.name", "../x", "plain name"]),
        (["run", *SMALL, "--name", "x/y"], ["run.name", "x/y", "plain name"]),
        (["run", *SMALL, "--name", ".x"], ["run.name", "plain name"]),
        (["run", *SMALL, "--set", "training.batch_size=1"], ["training.batch_size", "2", "got 1"]),
        (["run", *SMALL, "--set", "training.batch_size=1.5"], ["training.batch_size", "1.5"]),
        (["run", *SMALL, "--set", "method.temperature=-0.1"], ["method.temperature must be greater than 0, got -0.1"]),
        (["run", *SMALL, "--set", "training.schedule=linear"], ["training.schedule must be 'constant' or 'cosine'", "linear"]),
        (["run", *SMALL, "--set", "training.learning_rat=1"], ["training.learning_rat is not", "'learning_rate'", "momentum"]),
        (["run", *SMALL, "--set", "trainin.batch_size=1"], ["trainin is not a known table", "'training'"]),
        (["run", *SMALL, "--set", "training"], ["--set takes section.key=value, got 'training'"]),
        (["run", *SMALL, "--set", "=1"], ["--set takes section.key=value, got '=1'"]),
        (["run", *SMALL, "--set", "training=1"], ["training must be a table, got 1"]),
        (["run", *SMALL, "--set", "training.batch_size.a=1"], ["training.batch_size must be"]),
        (["run", *SMALL, "--clients", "1000"], ["partition.num_clients must be <= 160", "got 1000"]),
        (["run", *SMALL, "--set", "cohort.size=9"], ["cohort.size must be at most the number of clients, 8, got 9"]),
        (["run", *SMALL, "--set", "engine.device=tpu"], ["engine.device", "'tpu'"]),
        (["run", *SMALL, "--set", "data.path=somewhere"], ["data.path is 'somewhere'", "digits"]),
        (["run", *SMALL, "--dataset", "npz"], ["data.path must name an .npz or .npy file"]),
        (["run", *SMALL, "--dataset", "mnist", "--set", "data.path=."], ["train-images-idx3-ubyte"]),
        (["run", "nothing.toml"], ["There is no file nothing.toml"]),
        (["run", "."], ["no recipe or method '.'"]),
        (["run", *SMALL, "--set", "run.directory=/proc/nothing"], ["/proc/nothing", "cannot be written"]),
        (["show", "nothing"], ["There is no run directory nothing."]),
        (["resume", "nothing"], ["There is no run directory nothing."]),
        (["evaluate", "nothing"], ["There is no run directory nothing."]),
        (["export", "nothing"], ["There is no run directory nothing."]),
        (["embed", "nothing", "a.png"], ["There is no run directory nothing."]),
        (["embed", "nothing", "a.png", "--output", "a.csv"], ["--output must end in .npz, .npy or .parquet, got a.csv"]),
        (["export", "nothing", "--format", "gguf"], ["--format must be one of safetensors, onnx, torch-export, got 'gguf'"]),
        (["partition", "--dataset", "digits", "--plot", "a.xyz"], ["--plot must name an image file", "a.xyz"]),
        (["partition", "--dataset", "digits", "--plot", "no/a.png"], ["no/a.png cannot be written"]),
        (["bench", "--rounds", "0"], ["--rounds must be at least 1, got 0"]),
        (["bench", "--backbone", "nonsense"], ["no backbone 'nonsense'", "resnet18"]),
    ],
)  # fmt: skip
def test_arguments(unisono: Command, arguments: list[str], expected: list[str], tmp_path: Path) -> None:
    sentence = unisono(*arguments).sentence
    for part in expected:
        assert part in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"format = 2\n[method]\nname = 'simclr'", ["format 2", "up to 1", "newer unisono"]),
        (b"format = 'one'\n[method]\nname = 'simclr'", ["format must be a whole number", "'one'"]),
        (b"[method]\nname = simclr", ["recipe.toml is not valid TOML", "line 2"]),
        (b"\xff\xfe\x00", ["recipe.toml is not valid TOML"]),
        (b"[data]\ndataset = 'digits'", ["method.name is required"]),
        (b"method = 'simclr'", ["method must be a table, got 'simclr'"]),
        (b"[method]\nname = 3", ["method.name"]),
        (b"[method]\nname = 'simclr'\n[federation]\nrounds = '3'", ["federation.rounds must be a whole number, got '3'"]),
        (b"[method]\nname = 'simclr'\n[partition]\nalpha = 0", ["partition.alpha must be greater than 0, got 0"]),
        (b"[method]\nname = 'simclr'\n[run]\nseed = 1979-05-27", ["run", "neither a number"]),
        (b"[method]\nname = 'simclr'\ntemprature = 1.0", ["method.temprature is not", "'temperature'"]),
    ],
)
def test_recipe(unisono: Command, tmp_path: Path, content: bytes, expected: list[str]) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    sentence = unisono("run", "recipe.toml").sentence
    for part in expected:
        assert part in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_wrong_type_of_a_flag(unisono: Command) -> None:
    result = unisono("run", *SMALL, "--seed", "seven")
    assert result.code == 2
    assert "'seven' is not a valid integer" in result.err


def test_a_loss_that_is_no_number_comes_with_advice(unisono: Command) -> None:
    options = ("model.backbone=cfcl-cnn", "training.learning_rate=1e30", "training.local_epochs=4")
    sentence = unisono("run", *SMALL, *(word for option in options for word in ("--set", option))).sentence
    assert sentence.startswith("Training has diverged: round 1, phase train, client 0: DivergedError: metric loss is nan")
    assert sentence.endswith("lower the learning rate.")


def test_existing_run_directory(unisono: Command, demo: Path) -> None:
    before = {path: path.read_bytes() for path in demo.rglob("*") if path.is_file()}
    sentence = unisono("run", *SMALL, "--name", "demo").sentence
    assert "The run directory runs/demo exists already" in sentence
    assert "unisono resume runs/demo" in sentence
    assert {path: path.read_bytes() for path in demo.rglob("*") if path.is_file()} == before


def test_run_directory_below_a_file(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file/a cannot be written" in unisono("run", *SMALL, "--name", "a", "--set", "run.directory=file").sentence


def test_damaged_run(unisono: Command, demo: Path) -> None:
    (demo / "run_info.json").write_text("{")
    assert "runs/demo/run_info.json is not as it was written" in unisono("export", demo).sentence
    (demo / "config.toml").write_text("[method")
    for command in ("resume", "show", "export", "evaluate", "report", "compare"):
        assert "runs/demo/config.toml was changed after the run began" in unisono(command, demo).sentence
    (demo / "manifest.json").unlink()
    assert "runs/demo/config.toml is not valid TOML" in unisono("show", demo).sentence


def test_run_without_any_readable_checkpoint(unisono: Command, demo: Path) -> None:
    for file in (demo / "checkpoints").rglob("server.safetensors"):
        file.write_bytes(b"")
    assert "is damaged" in unisono("evaluate", demo).sentence


def images(folder: Path, number: int) -> None:
    folder.mkdir(parents=True)
    for index in range(number):
        Image.fromarray(np.full((8, 8), index, dtype=np.uint8)).save(folder / f"{index}.png")


def folder_run(unisono: Command, *more: str) -> str:
    return unisono(
        "run", *SMALL, "--dataset", "folder", "--set", "data.path=data", "--set", "data.layout=classes", *more
    ).sentence


def test_empty_and_partly_empty_folders(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "data holds no images" in folder_run(unisono)
    images(tmp_path / "data" / "a", 3)
    (tmp_path / "data" / "b").mkdir()
    assert "data/b holds no images" in folder_run(unisono)


def test_truncated_image(unisono: Command, tmp_path: Path) -> None:
    images(tmp_path / "data" / "a", 3)
    images(tmp_path / "data" / "b", 3)
    file = tmp_path / "data" / "b" / "1.png"
    file.write_bytes(file.read_bytes()[:40])
    assert "data/b/1.png is not a readable image" in folder_run(unisono)
    file.unlink()
    file.symlink_to("nowhere.png")
    assert "data/b/1.png" in folder_run(unisono)


@pytest.mark.parametrize("packed", [False, True])
def test_truncated_idx(unisono: Command, tmp_path: Path, packed: bool) -> None:
    images_header = struct.pack(">HBBIII", 0, 8, 3, 20, 8, 8)
    labels_header = struct.pack(">HBBI", 0, 8, 1, 20)
    contents = {
        "train-images-idx3-ubyte": images_header + bytes(20 * 64),
        "train-labels-idx1-ubyte": labels_header + bytes(20),
        "t10k-images-idx3-ubyte": images_header + bytes(20 * 64 - 7),
        "t10k-labels-idx1-ubyte": labels_header + bytes(20),
    }
    for name, content in contents.items():
        (tmp_path / (name + ".gz" if packed else name)).write_bytes(gzip.compress(content)[:-4] if packed else content)
    sentence = unisono("run", *SMALL, "--dataset", "mnist", "--set", "data.path=.").sentence
    assert ("train-images-idx3-ubyte.gz" if packed else "t10k-images-idx3-ubyte") in sentence
    assert "copy or download it again" in sentence


def npz_run(unisono: Command, *more: str) -> str:
    return unisono("run", *SMALL, "--dataset", "npz", "--set", "data.path=data.npz", *more).sentence


def test_truncated_npz(unisono: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    np.savez(file, x=np.zeros((40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    file.write_bytes(file.read_bytes()[:500])
    assert "data.npz is truncated or damaged" in npz_run(unisono)
    file.write_bytes(b"")
    assert "data.npz" in npz_run(unisono)


def test_missing_labels(unisono: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((40, 8, 8), dtype=np.uint8))
    assert "partition.scheme 'dirichlet' needs labels" in npz_run(unisono)
    iid = ("--set", "partition.scheme=iid")
    assert "evaluation.probes asks for 'linear', which needs labels" in npz_run(
        unisono, *iid, "--set", "evaluation.probes=['linear']"
    )
    supervised = ("--dataset", "npz", "--set", "data.path=data.npz", "--clients", "2", *iid)
    assert "method 'supervised' needs labels" in unisono("run", "supervised", *supervised).sentence


def test_unlabelled_run_cannot_be_probed_with_labels_afterwards(unisono: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8))
    unlabelled = ("--dataset", "npz", "--set", "data.path=data.npz", "--set", "partition.scheme=iid", "--name", "a")
    assert unisono("run", *SMALL, *unlabelled).code == 0
    assert "'knn', which needs labels" in unisono("evaluate", "runs/a", "--probe", "knn").sentence
    assert "score" in json.loads(unisono("evaluate", "runs/a", "--json").out)["runs"][0]["probes"]


def test_unknown_probe_lists_the_known_ones(unisono: Command, demo: Path) -> None:
    sentence = unisono("evaluate", demo, "--probe", "magic").sentence
    assert "'linear'" in sentence
    assert "got 'magic'" in sentence


def test_samples_that_do_not_fit_the_encoder(unisono: Command, demo: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", x=np.zeros((4, 9, 9), dtype=np.uint8))
    assert "(any, 1, 8, 8), got (4, 1, 9, 9)" in unisono("embed", demo, "large.npz").sentence
    assert "There is no file or folder nothing.png" in unisono("embed", demo, "nothing.png").sentence
    (tmp_path / "broken.npz").write_bytes(b"PK")
    assert "broken.npz" in unisono("embed", demo, "broken.npz").sentence
    assert not (tmp_path / "features.npz").exists()
