"""The manifest notices what changed in a run directory, and gives no false alarm after a kill."""

from pathlib import Path
from typing import Any

import pytest

from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.runs.files import DamagedFileError, JsonLines
from unisono.runs.manifest import MANIFEST_FILE, Manifest


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"run": {"seed": 3}})


def flip(path: Path, place: int = -2) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_files_as_recorded_are_good_and_others_are_not(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    (tmp_path / "a.json").write_bytes(b"{}")
    manifest.record(["a.json", "absent.json"])
    assert manifest.names() == ["a.json"]
    assert manifest.problem("a.json") is None
    assert manifest.problem("never heard of") is None
    (tmp_path / "a.json").write_bytes(b"{ }")
    assert manifest.problem("a.json") == "is not as it was written (its checksum is wrong)"
    (tmp_path / "a.json").unlink()
    assert manifest.problem("a.json") == "cannot be read (No such file or directory)"
    manifest.record((), forget=["a.json"])
    assert manifest.names() == []


def test_a_file_that_is_saved_while_it_is_looked_at_is_good(tmp_path: Path) -> None:
    """Another process announces and writes a new version between the reading of the manifest and that of the file."""
    other, path = Manifest(tmp_path), tmp_path / "a.json"
    path.write_bytes(b"{}")
    other.record(["a.json"])
    contents = [b"[1]", b"[2]"]

    class Slow(Manifest):
        def _read(self) -> dict[str, Any]:
            values = super()._read()
            while contents:
                other.expect("a.json", contents[0])
                path.write_bytes(contents.pop(0))
            return values

    assert Slow(tmp_path).problem("a.json") is None
    flip(path)
    assert Slow(tmp_path).problem("a.json") is not None


def test_logs_may_grow_but_not_change_or_shrink(tmp_path: Path) -> None:
    manifest, path = Manifest(tmp_path), tmp_path / "x.jsonl"
    path.write_bytes(b'{"round": 0}\n')
    manifest.record(["x.jsonl"])
    path.write_bytes(b'{"round": 0}\n{"round": 1}\n')
    assert manifest.problem("x.jsonl") is None
    flip(path, 2)
    assert "checksum" in str(manifest.problem("x.jsonl"))
    path.write_bytes(b'{"round"')
    assert manifest.problem("x.jsonl") == "has 8 bytes, and had 13"


def test_a_kill_between_manifest_and_file_gives_no_alarm(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.expect("a", b"old")
    (tmp_path / "a").write_bytes(b"old")
    manifest.expect("a", b"new")
    assert manifest.problem("a") is None
    (tmp_path / "a").write_bytes(b"new")
    assert manifest.problem("a") is None
    (tmp_path / "a").write_bytes(b"odd")
    assert manifest.problem("a") is not None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"files": {}}', b"\xff"])
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"manifest\.json is damaged .* remove it to go on without its checks"):
        Manifest(tmp_path).names()


def test_an_edited_config_is_noticed(directory: RunDirectory) -> None:
    directory.check_config()
    (directory.path / "config.toml").write_text("[run]\nseed = 4\n")
    with pytest.raises(UserError, match=r"was changed after the run began.*'unisono run .*config\.toml --name NEW'"):
        directory.check_config()


def test_other_data_are_noticed(directory: RunDirectory) -> None:
    directory.check_data("aa")
    RunDirectory.open(directory.path).check_data("aa")
    with pytest.raises(UserError, match="The data set is not the one"):
        RunDirectory.open(directory.path).check_data("ab")


def test_a_damaged_log_is_repaired_and_kept(directory: RunDirectory) -> None:
    log = directory.logs["metrics"]
    for round in range(3):
        log.append({"round": round})
    directory.record_logs()
    lengths = directory.log_lengths()
    flip(log.path, 0)
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is not as it was written"):
        log.read()
    assert directory.intact_logs()[0]["metrics"] == []
    assert len(directory.intact_logs()[1]) == 1
    notes = directory.cut_logs(lengths)
    assert len(notes) == 1
    assert "metrics.jsonl is damaged" in notes[0]
    assert [entry["round"] for entry in log.read()] == [1, 2]
    assert (directory.path / "metrics.jsonl.damaged").is_file()


@pytest.mark.parametrize("torn", [b'{"round": 1, "lo', b"{", b"\xff"])
def test_half_a_line_is_cut_and_never_glued_to_the_next(tmp_path: Path, torn: bytes) -> None:
    log = JsonLines(tmp_path / "x.jsonl")
    log.append({"round": 0})
    log.path.write_bytes(log.path.read_bytes() + torn)
    assert log.read() == [{"round": 0}]
    log.append({"round": 1})
    assert log.read() == [{"round": 0}, {"round": 1}]


@pytest.mark.parametrize("line", [b'{"round": 1', b"[1]", b"7", b"\xff"])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"round": 0}\n' + line + b'\n{"round": 2}\n')
    with pytest.raises(DamagedFileError, match=r"x\.jsonl is damaged in line 2"):
        JsonLines(path).read()
