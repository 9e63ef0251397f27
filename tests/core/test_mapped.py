"""Samples in mapped files: batches, chunks, pages given back, and references for other processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pytest
import torch

from unisono.core import mapped
from unisono.core.errors import UserError
from unisono.core.mapped import Reference, batches, is_mapped, open_mapped, referred, some_chunks
from unisono.federation.client_turn import FederatedDataset


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (1000, 3, 16, 16), dtype=np.uint8))
    return tmp_path / "a.npy"


def _resident(samples: torch.Tensor) -> int:
    """Return the kilobytes of the mapped file that count as this process's memory."""
    address = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            start, end = (int(part, 16) for part in first.split("-"))
            address = start <= samples.data_ptr() < end
        elif address and first == "Rss:":
            return int(line.split()[1])
    raise AssertionError


def test_pages_are_given_back_and_values_stay(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, held = open_mapped(file), torch.from_numpy(np.load(file))
    assert is_mapped(samples)
    assert not is_mapped(held)
    assert torch.equal(samples, held)
    assert _resident(samples) > 600
    monkeypatch.setattr(mapped, "BUDGET", 1)
    for batch, own in zip(batches(samples, 64), held.split(64), strict=True):
        assert torch.equal(batch, own)
    assert _resident(samples) < 200
    rows = torch.arange(3, 900, 7)
    assert torch.equal(torch.cat(list(batches(samples, 64, rows))), held[rows])


def test_large_samples_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = torch.arange(1000).view(1000, 1)
    assert torch.equal(torch.cat(list(some_chunks(samples, 64))), samples)
    monkeypatch.setattr(mapped, "LARGE", 2000)
    some = torch.cat(list(some_chunks(samples, 10))).flatten()
    assert 0 < some.numel() * 8 <= 2000 / 8 + 8
    assert some.diff().unique().tolist() == [32]


def test_another_process_opens_the_file_itself(file: Path) -> None:
    part = open_mapped(file)[100:800:2]
    found = referred(part)
    assert isinstance(found, Reference)
    data = FederatedDataset(part, [torch.arange(10), torch.arange(10, 30)], None)
    content = pickle.dumps(data)
    assert len(content) < 3000
    data.share_memory()
    assert is_mapped(data.samples)
    again = pickle.loads(content)
    assert is_mapped(again.samples)
    assert torch.equal(again.samples, part)
    assert torch.equal(again.client_data(1, torch.device("cpu")).batch(torch.tensor([3])), part[13:14] / 255)


def test_much_room_lies_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped.room(3, 4).shape == (3, 4)
    made: list[object] = []

    def noted() -> object:
        made.append(TemporaryFile())  # noqa: SIM115
        return made[-1]

    monkeypatch.setattr(mapped, "TemporaryFile", noted)
    monkeypatch.setattr(mapped, "LARGE", 90)
    mapped.room(3, 3)[:] = 1.0
    assert made == []
    found = mapped.room(3, 4)
    found[1] = 7.0
    assert len(made) == 1
    assert found.tolist() == [[0.0] * 4, [7.0] * 4, [0.0] * 4]


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file system would be full; here the limit of a file's size stands for it."""
    import resource
    import signal

    monkeypatch.setattr(mapped, "LARGE", 90)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(UserError, match=r"no room for 0\.0 GB of features in .*: make room"):
            mapped.room(1000, 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
