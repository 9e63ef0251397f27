"""Files are written whole or not at all, logs can be cut, payloads come back bit for bit."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.payloads import PAYLOADS, same
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.runs import files
from unisono.runs.files import JsonLines, payload_from_safetensors, payload_to_safetensors, write_atomically

# --- atomic writes


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write_and_sync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*arguments: object) -> None:
        if step == "write_and_sync":
            Path(str(arguments[0])).write_bytes(b"ne")
        raise error

    monkeypatch.setattr(files if step == "write_and_sync" else Path, step, fail)
    expected = UserError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_atomically(path, b"new")
    if expected is UserError:
        assert str(caught.value) == f"{path} cannot be written: No space left on device. What was saved before is intact."
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is renamed before its content is durable may be empty after a power cut."""
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(handle: int) -> None:
        steps.append("sync directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    def noted_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_atomically(tmp_path / "file", b"x")
    assert steps == ["sync file", "rename", "sync directory"]


def test_a_path_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot be written: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "below", b"x")
    (tmp_path / "directory").mkdir()
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        write_atomically(tmp_path / "directory", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]


# --- logs


def test_lines_are_appended_read_and_cut(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    assert (log.length, log.read()) == (0, [])
    log.cut(0)
    log.sync()
    assert not log.path.exists()
    log.append({"round": 0, "ä": "\n"})
    length = log.length
    log.append({"round": 1})
    log.sync()
    assert log.read() == [{"round": 0, "ä": "\n"}, {"round": 1}]
    log.cut(length)
    assert log.read() == [{"round": 0, "ä": "\n"}]
    log.append({"round": 2})
    assert [entry["round"] for entry in log.read()] == [0, 2]
    log.cut(10_000)
    assert len(log.read()) == 2
    log.cut(0)
    assert log.read() == []


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"round": 0})
    log.append({"round": 1})
    os.truncate(log.path, log.length - 3)
    assert log.read() == [{"round": 0}]


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"loss": float("nan"), "clients": [{"loss": float("inf")}, {"loss": 1.0}]})
    assert log.read() == [{"loss": None, "clients": [{"loss": None}, {"loss": 1.0}]}]


# --- payloads


@given(PAYLOADS)
@settings(max_examples=80)
def test_safetensors_round_trip_bit_for_bit_and_in_order(payload: Payload) -> None:
    content = payload_to_safetensors(payload)
    assert same(payload_from_safetensors(content), payload)
    assert payload_to_safetensors(payload_from_safetensors(content)) == content


def test_aliased_tensors_are_saved_apart() -> None:
    base = torch.arange(6.0)
    online = {"whole": base, "again": base, "view": base.reshape(2, 3).T, "part": base[2:4], "row": base.expand(2, 6)}
    payload = Payload({"online": online, "target": online}, {"round": 3})
    back = payload_from_safetensors(payload_to_safetensors(payload))
    assert same(back, payload)
    back.groups["online"]["whole"].zero_()
    assert torch.equal(back.groups["target"]["whole"], base)


def test_gradients_stay_behind() -> None:
    back = payload_from_safetensors(payload_to_safetensors(Payload({"a": {"w": torch.ones(2, requires_grad=True)}})))
    assert not back.groups["a"]["w"].requires_grad


def test_files_of_others_are_read_too() -> None:
    from safetensors.torch import save

    assert payload_from_safetensors(save({"net/w": torch.ones(1)})).groups["net"]["w"].tolist() == [1.0]
    with pytest.raises(ValueError, match=r"group/name, got 'w'"):
        payload_from_safetensors(save({"w": torch.ones(1)}))
    with pytest.raises(ValueError, match="safetensors"):
        payload_from_safetensors(save({"net/w": torch.ones(1)}, {"payload": json.dumps({"tensors": ["net/v"]})}))
    with pytest.raises(ValueError, match="safetensors"):
        payload_from_safetensors(save({"net/w": torch.ones(1)}, {"payload": "[]"}))


@given(st.data())
@settings(max_examples=60)
def test_damaged_files_are_value_errors(data: st.DataObject) -> None:
    whole = payload_to_safetensors(Payload({"net": {"w": torch.ones(3), "b": torch.ones(2)}}, {"n": 1}))
    with pytest.raises(ValueError, match="safetensors"):
        payload_from_safetensors(whole[: data.draw(st.integers(0, len(whole) - 1))])
