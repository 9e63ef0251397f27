"""The run directory: made once, opened again, written by one process at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono.core
from unisono.core.errors import UserError
from unisono.core.method import RunInfo
from unisono.runs.directory import REPRODUCIBLE_LOGS, RunDirectory
from unisono.runs.verify import verify

HOLDER = """
import sys, time
from pathlib import Path
from unisono.runs.directory import RunDirectory
directory = RunDirectory.open(Path(sys.argv[1]))
directory.lock()
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "one", {"run": {"seed": 3, "name": None}})


@pytest.fixture
def holder(directory: RunDirectory) -> Iterator["subprocess.Popen[str]"]:
    """A second process that holds the lock."""
    source = str(Path(unisono.core.__file__ or "").parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_new_directory_holds_the_config(directory: RunDirectory) -> None:
    assert directory.config_tree == {"run": {"seed": 3}}
    assert (directory.path / "config.toml").read_text().endswith("# Unset:\n# run.name\n")
    assert RunDirectory.open(directory.path).config_tree == {"run": {"seed": 3}}
    assert directory.model == directory.path / "model"


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "manifest.json"]


def test_a_directory_that_holds_anything_is_refused(directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"exists already: choose another run\.name.*'unisono resume .*one'"):
        RunDirectory.create(directory.path, {"run": {"seed": 4}})
    assert directory.config_tree == {"run": {"seed": 3}}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="exists already"):
        RunDirectory.create(tmp_path / "file", {})
    with pytest.raises(UserError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "below", {})


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run directory"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(UserError, match=r"is not a run directory: it has no config\.toml"):
        RunDirectory.open(tmp_path)


# --- the lock


def test_another_process_keeps_us_out_until_it_ends(directory: RunDirectory, holder: "subprocess.Popen[str]") -> None:
    with pytest.raises(UserError, match=r"Another process is working in .*one: wait for it or stop it"):
        directory.lock()
    assert directory.in_use
    directory.unlock()
    with pytest.raises(UserError, match="Another process"):
        directory.lock()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not directory.in_use
    directory.lock()


def test_one_process_cannot_lock_twice_and_keeps_its_lock_when_it_tries(directory: RunDirectory) -> None:
    other = RunDirectory.open(directory.path)
    assert not other.in_use
    directory.lock()
    for second in (directory, other):
        with pytest.raises(UserError, match="Another process"):
            second.lock()
    assert other.in_use
    directory.unlock()
    directory.unlock()
    assert not other.in_use
    other.lock()
    other.unlock()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_unlocking_counts_although_a_forked_worker_lives(directory: RunDirectory) -> None:
    directory.lock()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    try:
        directory.unlock()
        assert not directory.in_use
        RunDirectory.open(directory.path).lock()
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(child, 0)


# --- contents


def test_settings_come_back(directory: RunDirectory) -> None:
    info = RunInfo((3, 32, 32), (0.1, 0.2, 0.3), (0.25,) * 3, None, 10, 5)
    directory.save_run_info(info)
    assert RunInfo(**RunDirectory.open(directory.path).load_run_info()) == info


def test_damaged_json_is_explained(directory: RunDirectory) -> None:
    with pytest.raises(UserError, match=r"run_info\.json is missing or damaged"):
        directory.load_run_info()
    directory.write_json("run_info.json", {"a": 1})
    assert directory.read_json("run_info.json") == {"a": 1}
    (directory.path / "run_info.json").write_text('{"a": ')
    with pytest.raises(UserError, match=r"run_info\.json is not as it was written \(its checksum is wrong\)"):
        directory.read_json("run_info.json")


def test_logs_are_cut_to_where_a_checkpoint_saw_them(directory: RunDirectory) -> None:
    assert directory.log_lengths() == dict.fromkeys(REPRODUCIBLE_LOGS, 0)
    directory.logs["metrics"].append({"round": 0})
    lengths = directory.log_lengths()
    for name in ("metrics", "metrics", "failures"):
        directory.logs[name].append({"round": 1})
    again = RunDirectory.open(directory.path)
    again.cut_logs(lengths)
    assert [entry["round"] for entry in again.logs["metrics"].read()] == [0]
    assert again.logs["failures"].read() == []
    again.cut_logs({})
    assert again.log_lengths() == dict.fromkeys(REPRODUCIBLE_LOGS, 0)


def test_how_to_continue(directory: RunDirectory) -> None:
    assert directory.command_to_continue == f"unisono resume {directory.path}"
    directory.write_json("federation.json", {"run": "a"})
    assert directory.command_to_continue == f"unisono deploy run --resume {directory.path.name}"


@pytest.mark.parametrize(
    ("content", "finished", "untrained"),
    [
        ('{"status": "finished", "round": 3}', True, False),
        ('{"status": "finished", "round": 0}', True, True),
        ('{"status": "failed", "reason": "no room"}', False, False),
        ("[]", False, False),
        ("{", False, False),
    ],
)
def test_whether_it_is_finished(directory: RunDirectory, content: str, finished: bool, untrained: bool) -> None:
    assert not directory.finished
    (directory.path / "status.json").write_text(content)
    assert (directory.finished, directory.untrained) == (finished, untrained)


@pytest.mark.parametrize("leftovers", [[], [".config.toml.123.tmp"], [".manifest.json.7.tmp"], ["federation.json"]])
def test_a_directory_that_a_kill_left_half_made_is_used_again(tmp_path: Path, leftovers: list[str]) -> None:
    path = tmp_path / "half"
    path.mkdir()
    for name in leftovers:
        (path / name).write_text("[ru")
    with pytest.raises(UserError, match=r"no config\.toml\. If a run was ended at its very start, start it again"):
        RunDirectory.open(path)
    RunDirectory.create(path, {"run": {"seed": 1}})
    assert RunDirectory.open(path).config_tree == {"run": {"seed": 1}}
    assert not RunDirectory.open(path).of_federation


def test_another_name_on_the_federation_is_noticed(tmp_path: Path) -> None:
    """Clients would take the run for a new one, without their states."""
    directory = RunDirectory.create(tmp_path / "run", {"run": {"seed": 1}}, {"run": "r-123"})
    file = directory.path / "federation.json"
    assert directory.read_json(file.name) == {"run": "r-123"}
    file.write_text(file.read_text().replace("123", "124"))
    with pytest.raises(UserError, match=r"federation\.json is not as it was written"):
        directory.read_json(file.name)
    assert verify(directory)[file.name] == "is not as it was written (its checksum is wrong)"


def test_a_simulation_forgets_the_federation_that_a_kill_left(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", {"run": {"seed": 1}}, {"run": "r-123"})
    (tmp_path / "run" / "config.toml").unlink()
    assert not any(verify(RunDirectory.create(tmp_path / "run", {"run": {"seed": 1}})).values())


def test_temporary_files_that_a_kill_left_are_removed(directory: RunDirectory) -> None:
    (directory.path / "model").mkdir()
    for name in (".config.toml.1.tmp", "model/.encoder.safetensors.2.tmp"):
        (directory.path / name).write_text("half")
    (directory.path / "checkpoints" / ".round-000003.tmp").mkdir(parents=True)
    (directory.spilled).mkdir()
    (directory.spilled / "7.state").write_text("state")
    directory.remove_leftovers()
    assert not [path for path in directory.path.rglob("*") if ".tmp" in str(path.relative_to(directory.path))]
    assert (directory.path / "config.toml").is_file()


def test_a_run_from_before_probes_had_caps_looks_at_all_samples(tmp_path: Path) -> None:
    old, new = ({"evaluation": {"probe_every": 5}}, {"evaluation": {"max_train_samples": 7, "max_test_samples": 8}})
    found = [RunDirectory.create(tmp_path / name, tree).config_tree for name, tree in (("old", old), ("new", new))]
    assert found == [{"evaluation": {"probe_every": 5, "max_train_samples": 0, "max_test_samples": 0}}, new]
