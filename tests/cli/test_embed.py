from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command
from unisono import load


@pytest.fixture
def pixels(tmp_path: Path) -> np.ndarray:
    """Three grey images, in a folder and in an .npz file."""
    values = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for index, image in enumerate(values):
        Image.fromarray(image).save(tmp_path / "images" / f"{index}.png")
    np.savez(tmp_path / "samples.npz", x=values)
    return values


def test_files_folders_and_arrays_give_the_same_features(unisono: Command, demo: Path, pixels: np.ndarray) -> None:
    result = unisono("embed", demo, "images", "images/1.png", "samples.npz", "--output", "out/features.npz")
    assert (result.code, result.err) == (0, "")
    with np.load("out/features.npz") as content:
        features, files = content["features"], content["files"].tolist()
    assert files == [*(f"images/{i}.png" for i in range(3)), "images/1.png", *(f"samples.npz#{i}" for i in range(3))]
    expected = load(demo).embed(pixels[:, None])
    np.testing.assert_allclose(features, np.concatenate([expected, expected[1:2], expected]), rtol=1e-5, atol=1e-6)


def test_an_array_alone(unisono: Command, demo: Path, pixels: np.ndarray) -> None:
    assert unisono("embed", demo, "samples.npz", "--output", "features.npy").code == 0
    np.testing.assert_allclose(np.load("features.npy"), load(demo).embed(pixels[:, None]), rtol=1e-5, atol=1e-6)


def test_parquet(unisono: Command, demo: Path, pixels: np.ndarray) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert unisono("embed", demo, "samples.npz", "--output", "features.parquet").code == 0
    table = parquet.read_table("features.parquet").to_pydict()
    assert table["file"] == [f"samples.npz#{index}" for index in range(3)]
    np.testing.assert_allclose(np.array(table["features"]), load(demo).embed(pixels[:, None]), rtol=1e-6)


def test_parquet_without_pyarrow(unisono: Command, demo: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'unisono[hub]'" in unisono("embed", demo, "samples.npz", "--output", "a.parquet").sentence


def test_parquet_as_input(unisono: Command, demo: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    images = [{"bytes": (Path("images") / f"{number}.png").read_bytes(), "path": None} for number in range(3)]
    table = pyarrow.table({"image": [*images, {"bytes": b"no image", "path": None}], "client": ["a", "b", "a", "b"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, "a.parquet")
    assert "a.parquet#3" in unisono("embed", demo, "a.parquet").sentence
    assert unisono("embed", demo, "a.parquet", "--on-error", "skip").code == 0
    with np.load("features.npz") as content:
        assert content["files"].tolist() == [f"a.parquet#{row}" for row in range(3)]
        np.testing.assert_allclose(content["features"], load(demo).embed(pixels[:, None]), rtol=1e-5, atol=1e-6)
    found = load(demo).neighbors("a.parquet", "images", top=1, on_error="skip")
    assert [row["file"] for row in found.table()] == [f"images/{number}.png" for number in range(3)]
    assert load(demo).duplicates("a.parquet", 0.0, on_error="skip").samples.folders == ("a", "b", "a")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "Reading a.parquet needs the extra 'hub'" in unisono("embed", demo, "a.parquet").sentence
