"""Images decoded once into a file: same values as in memory, kept, resumed after a kill, shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.core.mapped import is_mapped
from unisono.core.progress import listening
from unisono.data import image_cache
from unisono.data.datasets import DataConfig, Dataset, load_dataset

NUMBER = 48


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images in two folders; decoded ones are kept in chunks of four."""
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_cache, "MOST_FILES", 4)
    draw = np.random.default_rng(0)
    for number in range(NUMBER):
        site = tmp_path / "sites" / f"site{number % 2}"
        site.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (12, 14, 3), dtype=np.uint8)).save(site / f"{number:03}.png")
    return tmp_path / "sites"


def _load(folder: Path, share: float = 0.0, **options: object) -> Dataset:
    config = {"dataset": "folder", "path": str(folder), "image_size": 8, "memory_share": share, "test_fraction": 0.25}
    return load_dataset(DataConfig.model_validate(config | options))


def _files(folder: Path) -> list[str]:
    return sorted(file.suffix for file in (folder.parent / "cache" / "images").iterdir())


def test_the_file_holds_what_memory_would(folder: Path) -> None:
    mapped, held = _load(folder), _load(folder, share=1.0)
    assert is_mapped(mapped.samples)
    assert is_mapped(mapped.test_samples)
    assert not is_mapped(held.samples)
    for name in ("samples", "test_samples", "owners"):
        mine, theirs = getattr(mapped, name), getattr(held, name)
        assert (mine is None and theirs is None) or torch.equal(mine, theirs), name
    assert _files(folder) == [".json", ".lock", ".npy"]


def test_images_are_decoded_once_and_again_when_one_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _load(folder)
    monkeypatch.setattr(image_cache, "_decode", None)
    assert torch.equal(_load(folder).samples, first.samples)
    monkeypatch.undo()
    monkeypatch.setenv("UNISONO_CACHE", str(folder.parent / "cache"))
    Image.fromarray(np.zeros((12, 14, 3), dtype=np.uint8)).save(folder / "site0" / "000.png")
    os.utime(folder / "site0" / "000.png", ns=(1, 1))
    assert not torch.equal(_load(folder).samples, first.samples)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_unreadable_images_are_in_one_report(folder: Path, on_error: str) -> None:
    for name in ("site0/010.png", "site1/031.png"):
        (folder / name).write_bytes(b"no image")
    if on_error == "stop":
        with pytest.raises(UnreadableImagesError, match="2 of 48") as caught:
            _load(folder, test_fraction=0)
        assert [path.name for path, _ in caught.value.problems] == ["010.png", "031.png"]
        return
    mapped, held = (_load(folder, share, on_error="skip", test_fraction=0) for share in (0.0, 1.0))
    assert len(mapped.samples) == NUMBER - 2
    assert torch.equal(mapped.samples, held.samples)
    assert torch.equal(mapped.owners, held.owners)
    assert _files(folder) == [".json", ".lock", ".npy"]


def test_progress_is_told(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with listening(lambda *facts: told.append(facts)):
        _load(folder)
    assert told[0] == ("reading images", 0, NUMBER)
    assert told[-1] == ("reading images", NUMBER, NUMBER)
    assert len(told) == NUMBER // 4 + 1
    told.clear()
    with listening(lambda *facts: told.append(facts)):
        _load(folder, share=1.0)  # in memory
    assert told == [("reading images", number, NUMBER) for number in range(1, NUMBER + 1)]


KILLED = """
import os, sys
from unisono.data import image_cache
from unisono.data.datasets import DataConfig, load_dataset
image_cache.MOST_FILES = 4
image_cache._num_cores = lambda: 1
done = 0
decode = image_cache._decode
def slow(job):
    global done
    done += 1
    if done > int(sys.argv[2]):
        print("here", flush=True)
        import time; time.sleep(600)
    return decode(job)
image_cache._decode = slow
load_dataset(DataConfig(dataset="folder", path=sys.argv[1], image_size=8, memory_share=0.0, test_fraction=0.25))
"""


def test_a_kill_costs_the_chunks_at_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _load(folder, share=1.0)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), "5"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _files(folder) == [".index", ".lock", ".partial"]
    index = next((folder.parent / "cache" / "images").glob("*.index"))
    with index.open("a") as file:
        file.write("[20, [[2")  # as a kill within a line leaves it
    decoded: list[int] = []
    decode = image_cache._decode
    monkeypatch.setattr(image_cache, "_num_cores", lambda: 1)
    monkeypatch.setattr(image_cache, "_decode", lambda job: decoded.append(job[0]) or decode(job))
    assert torch.equal(_load(folder).samples, held.samples)
    assert decoded == list(range(20, NUMBER, 4))


def test_two_processes_share_one_file(folder: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", KILLED, str(folder), "99"]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert _files(folder) == [".json", ".lock", ".npy"]


def test_a_folder_that_cannot_be_written_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "taken").write_text("a file")
    monkeypatch.setenv("UNISONO_CACHE", str(folder.parent / "taken"))
    with pytest.raises(UserError, match="set UNISONO_CACHE to another folder"):
        _load(folder)
