"""What "auto" becomes, the backbone and the precision: said before the run, and written by its own name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unisono
from unisono import experiment
from unisono.config import resolve
from unisono.experiment import Experiment
from unisono.models.backbones import ModelConfig, fitting_backbone, make_backbone
from unisono.models.half_precision import fitting_precision
from unisono.recipes import build_tree
from unisono.runs.directory import RunDirectory

SMALL = ["data.dataset=digits", "data.limit=60", "partition.num_clients=3", "federation.rounds=1", "method.projection_dim=8",
         "evaluation.probe_every=0", "evaluation.probes=['knn']", "report.enabled=false", "engine.workers=0",
         "engine.device=cpu"]  # fmt: skip


def prepared(*settings: str) -> Experiment:
    return Experiment.prepare(resolve(build_tree("simclr", {}, [*SMALL, *settings])))


@pytest.mark.parametrize(
    ("shape", "on_gpu", "name"),
    [
        ((1, 28, 28), False, "convnet"),
        ((3, 224, 224), False, "convnet"),
        ((3, 32, 32), True, "resnet18"),
        ((6, 100), False, "resnet1d"),
        ((6, 100), True, "resnet1d"),
    ],
)
def test_the_choice_fits_samples_and_device(shape: tuple[int, ...], on_gpu: bool, name: str) -> None:
    chosen = fitting_backbone(ModelConfig(width=0.25), shape, on_gpu)
    assert (chosen.backbone, chosen.width) == (name, 0.25)
    backbone = make_backbone(chosen, shape, (0.5,), (0.25,))
    assert backbone(torch.rand(2, *shape)).shape == (2, backbone.feature_dim)


def test_a_named_backbone_stays() -> None:
    config = ModelConfig(backbone="cct-2-3x2")
    assert fitting_backbone(config, (3, 32, 32), on_gpu=True) is config
    assert prepared("model.backbone=cfcl-cnn").choices == ()


def test_the_run_says_what_it_chose() -> None:
    assert prepared().notes[0] == "model.backbone = 'auto' is 'convnet' for images of 8x8 on a CPU"


def test_on_a_gpu_it_is_a_resnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "resolve_devices", lambda name: [torch.device("cuda")])
    found = prepared("model.width=0.125")
    assert found.config.model.backbone == "resnet18"
    assert "images of 8x8 on a GPU" in found.notes[0]


def test_series_take_a_resnet_for_series(tmp_path: Path) -> None:
    file = tmp_path / "series.npz"
    np.savez(file, x=np.random.default_rng(0).normal(size=(60, 2, 24)).astype(np.float32))
    found = prepared("data.dataset=npz", f"data.path={file}", "model.width=0.125", "partition.scheme=iid",
                     "evaluation.probes=['alignment']")  # fmt: skip
    assert found.config.model.backbone == "resnet1d"
    assert "series of 2 channels" in found.notes[0]


def test_the_saved_config_names_the_choice_and_reads_back(tmp_path: Path) -> None:
    done = unisono.run("simclr", set=[*SMALL, f"run.directory={tmp_path}"], name="x")
    saved = resolve(RunDirectory.open(done.path).config_tree)
    assert (saved.model.backbone, saved.model.norm) == ("convnet", "batch")
    assert done.config.model.backbone == "convnet"
    loaded = unisono.load(done.path)
    assert loaded.embed(torch.rand(3, 1, 8, 8)).shape == (3, 256)
    assert unisono.running.resume(done.path).round == 1


@pytest.mark.parametrize(("found", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_precision_is_bf16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch, found: bool, chosen: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": found, "amx_bf16": False})
    experiment = prepared("training.precision=auto")
    assert experiment.config.training.precision == chosen
    assert f"training.precision = 'auto' is '{chosen}' for convnet on this processor" in experiment.notes
    assert prepared("training.precision=fp16").config.training.precision == "fp16"
    assert prepared().config.training.precision == "fp32"


@pytest.mark.parametrize(
    ("backbone", "on_gpu", "chosen"),
    [
        ("convnet", False, "bf16"),
        ("resnet18", False, "bf16"),
        ("vit", False, "bf16"),
        ("cfcl-cnn", False, "fp32"),
        ("cfcl-cnn", True, "bf16"),
    ],
)
def test_auto_precision_is_what_is_faster_for_the_network(backbone: str, on_gpu: bool, chosen: str) -> None:
    assert fitting_precision("auto", True, backbone, on_gpu) == chosen
    assert fitting_precision("auto", False, backbone, on_gpu) == "fp32"
    assert fitting_precision("bf16", False, backbone, on_gpu) == "bf16"


def test_a_small_network_gets_fp32_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "amx_bf16": False})
    assert prepared("training.precision=auto", "model.backbone=cfcl-cnn").config.training.precision == "fp32"
