"""Samples of parquet files, as other tools write them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.core.errors import UserError
from unisono.data.sources import parquet
from unisono.data.sources.parquet import read_parquet

pyarrow = pytest.importorskip("pyarrow")
write_table = pytest.importorskip("pyarrow.parquet").write_table
PIXELS = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
SHAPE = (3, 8, 8)


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def written(folder: Path, **columns: Any) -> Path:
    write_table(pyarrow.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize("packed", [True, False], ids=["as Hugging Face does", "plain bytes"])
def test_image_bytes(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS", 3)
    contents = [png(pixels) for pixels in PIXELS]
    column = [{"bytes": content, "path": None} for content in contents] if packed else contents
    found = read_parquet(written(tmp_path, image=column, label=list(range(7)), site=["n", "s"] * 3 + ["n"]), SHAPE)
    assert torch.equal(found.samples, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert (found.rows, found.problems) == (tuple(range(7)), ())
    assert found.owners == ("n", "s", "n", "s", "n", "s", "n")


def test_rows_that_hold_no_image_are_listed(tmp_path: Path) -> None:
    column = [png(PIXELS[0]), b"no image", None, png(PIXELS[3])]
    found = read_parquet(written(tmp_path, image=pyarrow.array(column, pyarrow.binary())), SHAPE)
    assert found.rows == (0, 3)
    assert [path.name for path, _ in found.problems] == ["a.parquet#1", "a.parquet#2"]
    assert torch.equal(found.samples, torch.from_numpy(PIXELS[[0, 3]]).permute(0, 3, 1, 2))


def test_images_keep_their_16_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS", 1)
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    found = read_parquet(written(tmp_path, image=[png(PIXELS[0, :, :, 0]), png(deep)]), (1, 8, 8))
    assert found.samples.dtype == torch.uint16
    np.testing.assert_array_equal(found.samples[1, 0].numpy(), deep)
    np.testing.assert_array_equal(found.samples[0, 0].numpy(), PIXELS[0, :, :, 0].astype(np.uint16) * 257)


def test_lists_of_numbers(tmp_path: Path) -> None:
    flat = PIXELS.transpose(0, 3, 1, 2).reshape(7, -1)
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.reshape(-1)), flat.shape[1])
    nested = pyarrow.array(PIXELS.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.list_(pyarrow.uint8()))))
    for column in (fixed, nested):
        found = read_parquet(written(tmp_path, x=column, y=list(range(7))), SHAPE)
        assert torch.equal(found.samples, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))


def test_a_column_per_value(tmp_path: Path) -> None:
    series = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    path = written(tmp_path, label=[0] * 5, **{f"t{number}": series[:, number] for number in range(6)})
    np.testing.assert_array_equal(read_parquet(path, (1, 6)).samples.numpy(), series[:, None])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [b"1"], "b": [b"2"]}, r"has 2 columns of images \(a, b\)"),
        ({"x": [[1.0, 2.0], [1.0]]}, "different lengths"),
        ({"x": [[1.0, 2.0]]}, r"has 2 numbers, and a sample of the network 192 \(3 x 8 x 8\)"),
        ({"x": [[300] * 192]}, "uint8, uint16 or floats"),
        ({"x": [[float("nan")] * 192]}, "must be finite"),
        ({"x": [[200.0] * 192]}, "divide them by 255"),
        ({"x": [1], "words": ["a"]}, "no column of images or of lists of numbers, and 1 columns of numbers .* are x, words"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_parquet(written(tmp_path, **columns), SHAPE)


def test_the_range_is_decided_by_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS", 1)
    values = np.array([[1, 2, 3, 4], [60000, 2, 3, 4]], np.uint16)
    found = read_parquet(written(tmp_path, x=list(values)), (1, 2, 2))
    np.testing.assert_allclose(found.samples.flatten(1).numpy(), values / 65535, rtol=1e-6)


def test_a_row_without_an_owner_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no site in row 1"):
        read_parquet(written(tmp_path, x=[[0.5], [0.5]], site=["north", None]), (1, 1, 1))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"a\.parquet is truncated or damaged"):
        read_parquet(tmp_path / "a.parquet", SHAPE)
