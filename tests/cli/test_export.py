from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.cli.conftest import Command
from unisono import load


def test_safetensors_goes_to_the_run_with_a_card(unisono: Command, demo: Path) -> None:
    result = unisono("export", demo)
    assert result.out.split() == ["runs/demo/model/encoder.safetensors", "runs/demo/model/encoder.md"]
    tensors = load_file(demo / "model" / "encoder.safetensors")
    weights = [tensor for tensor in load(demo).encoder.state_dict().values() if tensor.is_floating_point()]
    assert sum(tensor.size for tensor in tensors.values()) == sum(tensor.numel() for tensor in weights)
    assert "| method | simclr |" in (demo / "model" / "encoder.md").read_text()


def test_torch_export_computes_the_same(unisono: Command, demo: Path) -> None:
    result = unisono("export", demo, "--format", "torch-export", "--output", "out/encoder.pt2")
    assert (result.code, result.err) == (0, "")
    samples = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = load(demo).encoder(samples)
        found = torch.export.load("out/encoder.pt2").module()(samples)
    torch.testing.assert_close(found, expected)
    assert Path("out/encoder.md").is_file()


def test_onnx_without_its_packages(unisono: Command, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install 'unisono[onnx]'" in unisono("export", demo, "--format", "onnx", "--output", "a.onnx").sentence
    assert not list(Path().glob("*.onnx*"))


def test_onnx_computes_the_same(unisono: Command, demo: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert unisono("export", demo, "--format", "onnx", "--output", "a.onnx").code == 0
    samples = np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32)
    session = runtime.InferenceSession("a.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: samples})
    with torch.no_grad():
        expected = load(demo).encoder(torch.from_numpy(samples)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
