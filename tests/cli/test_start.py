"""``unisono start``: what it finds, chooses, says, writes and runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.cli.conftest import Command
from unisono import load
from unisono.cli import start as command
from unisono.config import resolve
from unisono.core.method import methods
from unisono.fitting import CENTROIDS_PER_CLUSTER
from unisono.recipes import build_tree

QUICK = ("--minutes", "0.000001")


def draw_images(folder: Path, number: int, size: tuple[int, int] = (10, 10), seed: int = 0) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for row in range(number):
        pixels = draw.integers(0, 256, size[::-1], dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{row:02}.png")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites of grey images; one file is broken and one lies in both."""
    root = tmp_path / "my sites"
    draw_images(root / "north", 12)
    draw_images(root / "south", 9, (20, 12), seed=1)
    (root / "south" / "broken.png").write_bytes(b"no image")
    shutil.copy(root / "north" / "03.png", root / "south" / "copy.png")
    return root


def test_a_folder_is_looked_at_before_anything_is_written(unisono: Command, sites: Path, tmp_path: Path) -> None:
    result = unisono("start", sites, "--dry-run", *QUICK)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert ["north", "12", "10x10", "1", "8"] in [line.split() for line in lines]
    assert any("20x12 (9), 10x10 (1)" in line for line in lines)
    assert "23 images of 2 sites." in lines
    assert any("1 file cannot be read and is left out" in line and "broken.png" in line for line in lines)
    assert any("1 file is an exact copy" in line and "1 of 1 groups span sites" in line for line in lines)
    assert any(line.startswith("Training takes about 1 min on ") for line in lines)
    assert 'scheme = "natural"' in lines
    assert "# no image is held out: all are learnt from" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["my sites"]


def test_a_run_follows_from_a_yes_and_from_the_recipe_alike(
    unisono: Command, sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = unisono("start", sites, *QUICK)
    assert result.out.splitlines()[-1] == "Nothing was run. To run it: unisono run my-sites.toml"  # nobody can answer
    assert not Path("runs").exists()
    monkeypatch.setattr(command, "_agreed", lambda: True)
    answered = unisono("start", sites, *QUICK)
    assert (answered.code, answered.err) == (0, "")
    run = load("runs/my-sites")
    assert run.config == resolve(build_tree("my-sites.toml"))
    assert run.config.data.test_fraction == 0
    assert (run.path / "gallery.html").is_file()
    assert "Clusters and their images: runs/my-sites/gallery.html" in answered.out
    assert f"unisono neighbors runs/my-sites '{sites}/north/00.png'" in answered.out
    assert "view-agreement" in answered.out
    again = unisono("start", sites, "--dry-run", *QUICK)
    assert 'name = "my-sites-2"' in again.out
    assert unisono("start", sites, "--name", "my-sites").sentence.startswith("--name my-sites: runs/my-sites exists already")


def test_images_that_cannot_be_decoded_are_named_too_and_no_copies(unisono: Command, sites: Path) -> None:
    for name in ("again.png", "north.png"):
        (sites / "south" / name).write_bytes(b"no image")  # the same bytes as broken.png
    whole = (sites / "north" / "00.png").read_bytes()
    (sites / "north" / "00.png").write_bytes(whole[: len(whole) // 2])
    result = unisono("start", sites, "--yes", *QUICK)
    assert (result.code, result.err) == (0, "")
    assert "3 files cannot be read and are left out" in result.out
    assert "note: 1 more file cannot be read and is left out: " in result.out
    assert "1 file is an exact copy" in result.out
    assert f"unisono neighbors runs/my-sites '{sites}/north/01.png'" in result.out
    assert len((load("runs/my-sites").path / "unreadable.txt").read_text().splitlines()) == 4


def draw_deep(folder: Path, shape: tuple[int, ...], suffix: str) -> None:
    draw = np.random.default_rng(0)
    for site in ("a", "b"):
        (folder / site).mkdir(parents=True)
        for row in range(6):
            values = draw.integers(0, 65536, shape, dtype=np.uint16)
            file = folder / site / f"{row}{suffix}"
            if suffix == ".npy":
                np.save(file, values)
            else:
                tifffile.imwrite(file, values, photometric="minisblack")


@pytest.mark.parametrize(
    ("shape", "suffix", "channels", "views"),
    [
        ((12, 12), ".npy", 1, "clothing"),
        ((3, 12, 12), ".npy", 3, "orchestra"),
        ((5, 12, 12), ".npy", 5, "clothing"),
        ((5, 12, 12), ".tif", 5, "clothing"),
        ((12, 12), ".tif", 1, "clothing"),
    ],
)
def test_channels_and_bits_of_any_file_are_seen(
    unisono: Command, tmp_path: Path, shape: tuple[int, ...], suffix: str, channels: int, views: str
) -> None:
    draw_deep(tmp_path / "deep", shape, suffix)
    result = unisono("start", "deep", "--dry-run", *QUICK)
    assert (result.code, result.err) == (0, "")
    assert ["a", "6", "12x12", str(channels), "16"] in [line.split() for line in result.out.splitlines()]
    assert f"channels = {channels}\n" in result.out
    assert f'preset = "{views}"' in result.out


def test_images_of_other_channels_than_most_are_left_out(unisono: Command, tmp_path: Path) -> None:
    draw_deep(tmp_path / "deep", (5, 12, 12), ".npy")
    Image.fromarray(np.zeros((12, 12), dtype=np.uint8)).save(tmp_path / "deep" / "a" / "grey.png")
    result = unisono("start", "deep", "--dry-run", *QUICK)
    assert "note: 1 file cannot be read and is left out: deep/a/grey.png" in result.out


def test_what_is_no_image_and_too_few_images_are_said(unisono: Command, sites: Path) -> None:
    for name in ("south/scan.heic", "south/more.heic", "north/readme.txt", "north/.hidden"):
        (sites / name).write_text("x")
    assert (
        unisono("start", sites, "--dry-run", *QUICK).out.count("note: 3 files are no images by their names and are passed over")
        == 1
    )
    assert "(.heic, .txt)" in unisono("start", sites, "--dry-run", *QUICK).out
    assert "note: 22 images are few" in unisono("start", sites, "--dry-run", *QUICK).out
    draw_images(sites / "west", 100)
    assert "are few" not in unisono("start", sites, "--dry-run", *QUICK).out


def test_a_length_that_no_time_limits_is_not_said_to_fill_it(unisono: Command, sites: Path) -> None:
    for minutes, said in (
        ("0.000001", "3 passes in all, to take about 1e-06 min"),
        ("60", "198 passes in all, of at most 200"),
    ):
        assert said in " ".join(unisono("start", sites, "--dry-run", "--minutes", minutes).out.split())


def test_nothing_learnt_is_said_in_the_terminal_and_in_the_report(unisono: Command, sites: Path) -> None:
    """Whatever way leads there: the first run, or a method by name that does not move."""
    started = unisono("start", sites, "--yes", *QUICK)  # three passes over noise
    command = ["run", "orchestra", "--dataset", "folder", "--rounds", "1", "--workers", "0", "--name", "still"]
    for option in (f"data.path={sites}", "data.image_size=8", "data.on_error=skip", "training.learning_rate=1e-9"):
        command += ["--set", option]
    still = unisono(*command)
    for result, run in ((started, "my-sites"), (still, "still")):
        assert (result.code, result.err) == (0, "")
        assert "warning: Nothing was learnt that pixels or untrained weights do not show" in result.out, run
        report = (Path("runs") / run / "report.html").read_text(encoding="utf-8")
        assert "Nothing was learnt that pixels or untrained weights do not show" in report, run


def test_a_recipe_of_the_user_is_kept(unisono: Command, sites: Path) -> None:
    Path("my-sites.toml").write_text("# mine\n")
    assert "Recipe: my-sites-2.toml" in unisono("start", sites, *QUICK).out
    assert Path("my-sites.toml").read_text() == "# mine\n"
    assert "Recipe: my-sites-2.toml" in unisono("start", sites, *QUICK).out


def test_one_folder_is_split_on_request(unisono: Command, tmp_path: Path) -> None:
    draw_images(tmp_path / "photos", 12)
    whole = unisono("start", "photos", "--dry-run", *QUICK).out
    assert 'layout = "flat"' in whole
    assert "num_clients = 1" in whole
    assert "num_clients = 4" in unisono("start", "photos", "--dry-run", "--clients", 4, *QUICK).out
    assert "--clients 7 is too many for 12 images" in unisono("start", "photos", "--clients", 7).sentence
    assert "--labels needs a folder per class" in unisono("start", "photos", "--labels").sentence


def test_views_are_named_by_one_flag_and_said_to_be(unisono: Command, sites: Path) -> None:
    chosen = unisono("start", sites, "--dry-run", *QUICK).out
    assert "--views names another" in " ".join(chosen.split())
    result = unisono("start", sites, "--dry-run", "--views", "digits", *QUICK)
    assert 'preset = "digits"' in result.out
    assert "as asked by --views" in result.out
    assert "views.preset must be" in unisono("start", sites, "--views", "digit", *QUICK).sentence
    assert 'preset = "digits"' in unisono("start", sites, "--dry-run", "--views", "digits", "--method", "byol", *QUICK).out


def test_another_method_keeps_its_views_and_gets_clusters_that_the_sites_can_fill(unisono: Command, sites: Path) -> None:
    result = unisono("start", sites, "--dry-run", "--method", "orchestra", *QUICK)
    assert (result.code, result.err) == (0, "")
    assert "[views]" not in result.out
    clients, local = 2, methods["orchestra"].Config().num_local_clusters
    assert f"num_global_clusters = {clients * local // CENTROIDS_PER_CLUSTER}" in result.out
    assert "There is no method 'simcrl'" in unisono("start", sites, "--method", "simcrl").sentence


def test_class_folders_are_labels_by_one_flag(unisono: Command, tmp_path: Path) -> None:
    for site in ("a", "b"):
        for number, kind in enumerate(("cat", "dog")):
            draw_images(tmp_path / "sites" / site / kind, 6, seed=number)
    unlabelled = unisono("start", "sites", "--dry-run", *QUICK).out
    assert 'layout = "clients"' in unlabelled
    assert "each folder is a site; --labels takes the folders inside for classes" in unlabelled
    assert "--labels takes the folders for classes" in unisono("start", "sites/a", "--dry-run", *QUICK).out
    assert 'layout = "clients/classes"' in unisono("start", "sites", "--dry-run", "--labels", *QUICK).out
    one_site = unisono("start", "sites/a", "--dry-run", "--labels", "--clients", 2, *QUICK).out
    assert 'layout = "classes"' in one_site
    assert "num_clients = 2" in one_site


def test_what_cannot_be_started_is_said(unisono: Command, sites: Path, tmp_path: Path) -> None:
    assert "'unisono start nowhere --example' makes one" in unisono("start", "nowhere").sentence
    assert "--minutes must be above 0" in unisono("start", sites, "--minutes", 0).sentence
    assert "--clients splits a single folder" in unisono("start", sites, "--clients", 3).sentence
    (tmp_path / "file.txt").write_text("x")
    assert "is a file" in unisono("start", "file.txt").sentence
    (sites / "stray.png").write_bytes((sites / "north" / "00.png").read_bytes())
    assert "lies beside the folders of sites" in unisono("start", sites).sentence
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in "ab":
        (broken / f"{name}.png").write_bytes(b"no image")
    assert "None of the 2 images in broken can be read" in unisono("start", "broken").sentence
    assert "must be a new or an empty folder" in unisono("start", sites, "--example").sentence


def test_example_images_are_of_three_styles(unisono: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.data.example_sites.PER_SITE", 4)
    result = unisono("start", "sites", "--example", "--dry-run", *QUICK)
    assert "There is no folder sites" in result.sentence  # --dry-run writes nothing
    result = unisono("start", "sites", "--example", *QUICK)
    assert "12 example images of three sites" in result.out
    means = {site: np.mean([np.asarray(Image.open(file)) for file in (tmp_path / "sites" / site).iterdir()])
             for site in ("north", "south", "west")}  # fmt: skip
    assert means["north"] < means["west"] < means["south"]
    assert Image.open(next((tmp_path / "sites" / "west").iterdir())).mode == "RGB"


def draw_dark(folder: Path, highest: dict[str, int]) -> None:
    """Write six TIFF files of 16 bits for each site, the last of which reaches its number."""
    for site, high in highest.items():
        (folder / site).mkdir(parents=True)
        for row in range(6):
            values = np.full((12, 12), row, dtype=np.uint16)
            values[row, row] = high if row == 5 else high // 2
            tifffile.imwrite(folder / site / f"{row}.tif", values)


def test_words_of_sixteen_bits_that_use_fewer_are_seen_and_read_by_them(unisono: Command, tmp_path: Path) -> None:
    draw_dark(tmp_path / "camera", {"north": 3987, "south": 900})
    result = unisono("start", "camera", "--yes", *QUICK)
    assert (result.code, result.err) == (0, "")
    assert "no value of 16 bits exceeds 3,987" in " ".join(result.out.split())
    run = load("runs/camera")
    assert run.config.data.bits == 12
    stored = tifffile.imread(tmp_path / "camera" / "north" / "3.tif")
    as_array, as_file = run.embed(stored[None, None]), run.embedded(tmp_path / "camera" / "north" / "3.tif").features
    assert np.array_equal(as_array, as_file.numpy())
    assert not np.array_equal(as_array, run.embed(stored[None, None] * 2))
    assert unisono("duplicates", "runs/camera", "--threshold", 0.5).code == 0


def test_a_site_that_is_dark_beside_others_is_named(unisono: Command, tmp_path: Path) -> None:
    draw_dark(tmp_path / "camera", {"north": 3987, "south": 60000})
    result = unisono("start", "camera", "--dry-run", *QUICK)
    assert "note: images of 16 bits of north do not exceed 3,987 of 65,535 and are nearly black beside" in result.out
    assert "bits =" not in result.out


def test_a_run_of_dark_images_names_the_option(unisono: Command, tmp_path: Path) -> None:
    draw_dark(tmp_path / "camera", {"north": 3987, "south": 900})
    command = [
        "run",
        "simclr",
        "--dataset",
        "folder",
        "--rounds",
        1,
        "--workers",
        0,
        "--set",
        f"data.path={tmp_path / 'camera'}",
    ]
    command += ["--set", "training.local_epochs=1"]
    assert "set data.bits = 12" in " ".join(unisono(*command).out.split())
    assert "data.bits" not in unisono(*command, "--set", "data.bits=12").out
