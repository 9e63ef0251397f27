"""Whatever is damaged in a run directory, ``verify`` names it, and no command ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command

LISTED = (
    "config.toml",
    "run_info.json",
    "metrics.jsonl",
    "clients.jsonl",
    "timings.jsonl",
    "privacy.json",
    "environment.json",
    "floors.json",
    "model/encoder.safetensors",
    "report.html",
    "gallery.html",
    "report/about.json",
    "report/points.json",
    "report/round-000002.npz",
    "manifest.json",
    "status.json",
    "checkpoints/round-000002/server.safetensors",
)
SAID = {
    "config.toml": ("show", "compare", "evaluate", "export", "report", "resume"),
    "run_info.json": ("show", "evaluate", "export", "report"),
    "metrics.jsonl": ("show", "compare", "report", "resume"),
    "clients.jsonl": ("show", "report", "resume"),
    "floors.json": ("show", "report"),
    "privacy.json": ("show", "report"),
    "manifest.json": ("show", "compare", "evaluate", "export", "report", "resume"),
    "report/points.json": ("report",),
    "checkpoints/round-000002/server.safetensors": ("evaluate", "resume", "export"),
}
"""Commands that read a file, and so have to say that it is damaged."""


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x11
    path.write_bytes(content)


def test_a_good_run_is_good(unisono: Command, demo: Path) -> None:
    done = unisono("verify", demo)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert all(line.startswith("good ") for line in lines)
    assert {line.split()[1] for line in lines} >= {name for name in LISTED if not name.startswith("checkpoints/")}
    assert "checkpoints/round-000002" in done.out
    for command in (("report", demo), ("show", demo), ("resume", demo, "--quiet")):
        assert unisono(*command).code == 0
    assert unisono("verify", demo).code == 0


@pytest.mark.parametrize("name", LISTED)
def test_damage_is_named_and_no_command_ends_in_a_traceback(
    unisono: Command, demo: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip(demo / name, 0.4)
    done = unisono("verify", demo)
    assert done.code == 1
    damaged = [line for line in done.out.splitlines() if line.startswith("DAMAGED")]
    assert len(damaged) == 1
    assert damaged[0].split()[1].rstrip(":") == name.removesuffix("/server.safetensors")
    said_by = SAID.get(name, ())
    for command in dict.fromkeys(("show", "compare", *said_by, "report", "resume")):
        result = unisono(command, demo, *(("--probe", "knn") if command == "evaluate" else ()))
        assert result.code in (0, 2), result
        assert "Traceback" not in result.err
        if command in said_by:
            said = result.out + result.err + caplog.text
            assert ("round-000002 is damaged" if "checkpoints" in name else name) in said.replace("\n", "")


@pytest.mark.parametrize("seed", range(4))
def test_damage_without_a_manifest_gives_no_traceback_either(unisono: Command, demo: Path, seed: int) -> None:
    (demo / "manifest.json").unlink()
    rng = np.random.default_rng(seed)
    for name in ("metrics.jsonl", "notes.jsonl", "run_info.json", "floors.json"):
        if (demo / name).is_file():
            (demo / name).write_bytes((demo / name).read_bytes()[: -int(rng.integers(2, 30))] + b"\x00\n")
    for command in ("verify", "show", "compare", "report"):
        assert unisono(command, demo).code in (0, 1, 2)


def test_resume_refuses_an_edited_seed(unisono: Command, demo: Path) -> None:
    config = demo / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1", 1))
    assert "was changed after the run began" in unisono("resume", demo).sentence


def test_resume_refuses_other_data(unisono: Command, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.running.fingerprint", lambda dataset: "other")
    assert "The data set is not the one that runs/demo was started with" in unisono("resume", demo).sentence


def test_evaluate_and_report_say_that_the_data_are_others(
    unisono: Command, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "The data set is not the one that runs/demo was started with"
    assert sentence not in unisono("evaluate", demo, "--probe", "knn").out
    monkeypatch.setattr("unisono.reporting.fingerprint", lambda dataset: "other")
    monkeypatch.setattr("unisono.data.fingerprint.fingerprint", lambda dataset: "other")
    assert f"{sentence}: the scores are those of other samples" in unisono("evaluate", demo, "--probe", "knn").out
    flip(demo / "report" / "points.json", 0.5)
    assert f"The report has no map of the last state: {sentence}." in unisono("report", demo).err.replace("\n", " ")


def test_a_damaged_log_is_left_out_and_said(unisono: Command, demo: Path) -> None:
    flip(demo / "metrics.jsonl", 0.4)
    shown = unisono("show", demo)
    assert shown.code == 0
    assert "metrics.jsonl is not as it was written" in shown.out
    assert unisono("compare", demo).sentence.startswith("runs/demo/metrics.jsonl is not as it was written")


@pytest.mark.parametrize("name", ["points.json", "round-000002.npz"])
def test_a_damaged_part_of_the_report_is_made_anew(unisono: Command, demo: Path, name: str) -> None:
    good = (demo / "report" / name).read_bytes()
    flip(demo / "report" / name, 0.5)
    done = unisono("report", demo)
    assert done.code == 0, done
    assert f"report/{name} was damaged and is made anew" in done.err
    assert (demo / "report" / name).read_bytes() == good
    assert unisono("verify", demo).code == 0


def test_logs_that_are_gone_or_cannot_be_read_are_named(unisono: Command, demo: Path) -> None:
    (demo / "metrics.jsonl").unlink()
    (demo / "clients.jsonl").unlink()
    (demo / "clients.jsonl").mkdir()
    (demo / "floors.json").unlink()
    (demo / "floors.json").symlink_to("elsewhere")
    done = unisono("verify", demo)
    assert done.code == 1
    assert all(f"DAMAGED  {name}" in done.out for name in ("metrics.jsonl", "clients.jsonl", "floors.json"))
    for command in ("show", "report"):
        said = unisono(command, demo)
        assert said.code == 0, said
        assert "metrics.jsonl has 0 bytes" in (said.out + said.err).replace("\n", " "), command
        assert "clients.jsonl cannot be read (Is a directory)" in (said.out + said.err).replace("\n", " "), command
    assert "metrics.jsonl has 0 bytes" in unisono("compare", demo).sentence
    assert "clients.jsonl cannot be written: Is a directory" in unisono("resume", demo).sentence
    (demo / "clients.jsonl").rmdir()
    assert unisono("resume", demo).code == 0
    assert unisono("show", demo).code == 0
