"""Nearest images, duplicates and outliers of folders."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.conftest import Command
from unisono import load
from unisono.core.errors import UserError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two folders of twelve images; south/copy.png is a copy of north/3.png, south/again.png nearly the same as north/5.png."""
    draw = np.random.default_rng(0)
    for folder in ("north", "south"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for number in range(12):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / folder / f"{number}.png")
    north, south = tmp_path / "photos" / "north", tmp_path / "photos" / "south"
    shutil.copy(north / "3.png", south / "copy.png")
    changed = np.array(Image.open(north / "5.png"))
    changed[0, 0] ^= 1
    Image.fromarray(changed).save(south / "again.png")
    return Path("photos")


def read_csv(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_neighbors_of_an_image(unisono: Command, demo: Path, photos: Path) -> None:
    result = unisono("neighbors", demo, "photos/north/3.png", photos, "--top", "4")
    assert (result.code, result.err) == (0, "")
    rows = read_csv("neighbors.csv")
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    assert (rows[0]["file"], rows[0]["similarity"]) == ("photos/south/copy.png", "1.000000")
    assert "photos/north/3.png" not in [row["file"] for row in rows]
    run = load(demo)
    pixels = [np.array(Image.open(row["file"])) for row in rows]
    features = torch.from_numpy(run.embed(np.array([np.array(Image.open("photos/north/3.png")), *pixels])[:, None]))
    cosines = torch.cosine_similarity(features[:1], features[1:])
    np.testing.assert_allclose([float(row["similarity"]) for row in rows], cosines, atol=1e-5)
    page = Path("neighbors.html").read_text(encoding="utf-8")
    assert "north/3.png" in page
    assert "data:image/png" in page


def test_neighbors_of_a_folder_among_the_runs_own_data(unisono: Command, demo: Path, photos: Path) -> None:
    result = unisono("neighbors", demo, photos, "--top", "2", "--json", "--output", "out/found.html")
    rows = json.loads(result.out)
    assert len(rows) == 26 * 2
    assert rows[0]["query"] == "photos/north/0.png"
    assert all(row["file"].startswith("digits#") for row in rows)
    assert Path("out/found.html").is_file()
    assert len(read_csv("out/found.csv")) == len(rows)


def test_duplicates(unisono: Command, demo: Path, photos: Path) -> None:
    result = unisono("duplicates", demo, photos)
    assert (result.code, result.err) == (0, "")
    rows = read_csv("duplicates.csv")
    pairs = [(row["kind"], row["first"], row["second"], row["across"]) for row in rows]
    assert pairs[0] == ("exact", "photos/north/3.png", "photos/south/copy.png", "yes")
    assert ("near", "photos/north/5.png", "photos/south/again.png", "yes") in pairs
    assert "expected by chance" in " ".join(result.out.split())
    assert "1 equal" in result.out


def test_duplicates_at_a_given_threshold(unisono: Command, demo: Path, photos: Path) -> None:
    found = json.loads(unisono("duplicates", demo, photos, "--threshold", "-1", "--json").out)
    assert found["threshold"] == -1
    assert len(found["pairs"]) == 1 + 25 * 24 / 2  # the copy takes part once only
    assert "from -1 to 1" in unisono("duplicates", demo, photos, "--threshold", "2").sentence


def test_no_duplicates(unisono: Command, demo: Path, photos: Path) -> None:
    result = unisono("duplicates", demo, photos / "north", "--threshold", "1")
    assert "0 equal and 0 near pairs" in result.out
    assert Path("duplicates.csv").read_text() == "kind,similarity,first,second,across\n"
    assert "No two images are equal" in Path("duplicates.html").read_text(encoding="utf-8")


def test_names_are_as_short_as_they_can_be(unisono: Command, demo: Path, photos: Path) -> None:
    command = ["run", "simclr", "--dataset", "folder", "--rounds", "1", "--workers", "0", "--name", "own", "--quiet"]
    for option in ("data.path=photos", "data.image_size=8", "partition.scheme=natural", "model.backbone=cfcl-cnn"):
        command += ["--set", option]
    assert unisono(*command).code == 0
    result = unisono("neighbors", "runs/own", "photos/north/3.png", "--top", "1")
    assert [line.split() for line in result.out.splitlines()[:3:2]] == [
        ["rank", "file", "similarity"],
        ["1", "photos/south/copy.png", "1.0000"],
    ]
    assert "1 query\n" in result.out


def test_large_searches_say_how_they_were_made(
    unisono: Command, demo: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.evaluation.search.EXACT_PAIRS", 20)
    for command in (("neighbors", demo, photos, photos), ("duplicates", demo, photos), ("outliers", demo, photos)):
        said = unisono(*command)
        assert "searched exactly too, it finds 100.0%." in said.out
        assert "it finds 100.0%" in Path(f"{command[0]}.html").read_text(encoding="utf-8")
    monkeypatch.setattr("unisono.evaluation.search.has_faiss", lambda: False)
    assert "pip install 'unisono[search]'" in unisono("outliers", demo, photos).out


def test_outliers(unisono: Command, demo: Path, photos: Path) -> None:
    result = unisono("outliers", demo, photos, "--neighbors", "3")
    assert (result.code, result.err) == (0, "")
    rows = read_csv("outliers.csv")
    distances = [float(row["distance"]) for row in rows]
    assert len(rows) == 26
    assert distances == sorted(distances, reverse=True)
    assert rows[-1]["file"] in {f"photos/{name}.png" for name in ("north/3", "south/copy", "north/5", "south/again")}


def test_bad_input(unisono: Command, demo: Path, photos: Path) -> None:
    assert "--output must end in .html" in unisono("neighbors", demo, photos, "--output", "a.csv").sentence
    assert "top must be at least 1" in unisono("neighbors", demo, photos, photos, "--top", "0").sentence
    assert "There is no file or folder nowhere" in unisono("outliers", demo, "nowhere").sentence
    Path("notes.txt").write_text("no image")
    assert "notes.txt is neither an image" in unisono("neighbors", demo, "notes.txt").sentence
    assert "at least two" in unisono("duplicates", demo, "photos/north/3.png").sentence


@pytest.mark.parametrize("command", ["neighbors", "duplicates", "outliers", "embed", "cluster"])
def test_a_place_that_cannot_be_written_is_noticed_before_the_work(
    unisono: Command, demo: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("unisono.loaded.load", None)  # whoever works ends with a traceback
    Path("file").write_text("")
    Path("full.html").mkdir()
    suffix = {"embed": ".npz", "cluster": ".csv"}.get(command, ".html")
    assert f"file/a{suffix} cannot be written" in unisono(command, demo, photos, "--output", f"file/a{suffix}").sentence
    if suffix == ".html":
        assert "it is a directory" in unisono(command, demo, photos, "--output", "full.html").sentence


def test_all_unreadable_images_are_named_at_once(unisono: Command, demo: Path, photos: Path) -> None:
    for name in ("north/broken.png", "south/damaged.png"):
        (photos / name).write_bytes(b"no image")
    sentence = unisono("outliers", demo, photos).sentence
    assert sentence.startswith("2 of 28 files are not readable images: photos/north/broken.png")
    assert "photos/south/damaged.png" in sentence
    assert sentence.endswith("unreadable.txt lists all.")
    assert len(Path("unreadable.txt").read_text().splitlines()) == 2
    assert "--on-error must be stop or skip" in unisono("outliers", demo, photos, "--on-error", "x").sentence
    with pytest.raises(UserError):
        load(demo).outliers(photos)
    found = load(demo).outliers(photos, on_error="skip")
    assert len(found.samples) == 26
    assert [file.name for file, _ in found.problems] == ["broken.png", "damaged.png"]


@pytest.mark.parametrize("command", ["embed", "neighbors", "duplicates", "outliers"])
def test_unreadable_images_are_left_out(unisono: Command, demo: Path, photos: Path, command: str) -> None:
    (photos / "north" / "broken.png").write_bytes(b"no image")
    result = unisono(command, demo, photos, "--on-error", "skip")
    assert result.code == 0
    assert result.err == "note: 1 file cannot be read and is left out; unreadable.txt lists them\n"
    assert Path("unreadable.txt").read_text().startswith("photos/north/broken.png: ")
    if command == "embed":
        with np.load("features.npz") as content:
            assert len(content["features"]) == len(content["files"]) == 26


def test_a_run_leaves_unreadable_images_out(unisono: Command, photos: Path) -> None:
    for name in ("north/broken.png", "south/damaged.png"):
        (photos / name).write_bytes(b"no image")
    command = ["run", "simclr", "--dataset", "folder", "--rounds", "1", "--workers", "0", "--name", "own", "--quiet"]
    for option in ("data.path=photos", "data.image_size=8", "partition.scheme=natural", "model.backbone=cfcl-cnn"):
        command += ["--set", option]
    assert unisono(*command).sentence.startswith("2 of 28 files are not readable images")
    assert unisono(*command, "--set", "data.on_error=skip").code == 0
    listed = Path("runs/own/unreadable.txt").read_text()
    assert "north/broken.png: " in listed
    assert "south/damaged.png: " in listed
    assert load("runs/own").config.data.path == str(Path("photos").absolute())
    assert len(load("runs/own").outliers().samples) == 26


def test_arrays_from_python(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 1), dtype=np.uint8)
    images[8] = images[2]
    run = load(demo)
    found = run.neighbors(images, images, top=3)
    assert found.rows.shape == (9, 3)
    assert int(found.rows[2, 0]) == 8
    assert all(own not in row for own, row in enumerate(found.rows.tolist()))
    assert run.duplicates(images).exact == [(2, 8)]
    assert len(run.outliers(images, num_neighbors=100).table()) == 9
