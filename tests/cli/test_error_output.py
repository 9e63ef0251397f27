from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from unisono.cli.error_output import stopping
from unisono.cli.main import app
from unisono.core.errors import ClientError


def ended(error: BaseException, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as end, stopping(path):
        raise error
    return end.value.exit_code, capsys.readouterr().err


def test_client_error_is_one_line_and_points_to_a_log_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = ClientError(3, "train", 7, "ValueError: first line\n  second line.")
    sentence = "error: round 4, phase train, client 7: ValueError: first line second line."
    assert ended(error, tmp_path, capsys) == (1, sentence + "\n")
    log = tmp_path / "failures.jsonl"
    log.touch()
    assert ended(error, tmp_path, capsys) == (1, f"{sentence} Details are in {log}.\n")


def test_a_worker_that_dies_before_any_client_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(ClientError(0, "train", -1, "it died"), tmp_path, capsys) == (1, "error: round 1, phase train: it died.\n")


def test_interruption_tells_how_far_the_run_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "my run"
    assert ended(KeyboardInterrupt(), run, capsys) == (130, "stopped before the run began\n")
    run.mkdir()
    (run / "config.toml").touch()
    assert ended(KeyboardInterrupt(), run, capsys)[1].startswith("stopped before the first round was saved; continue with ")
    (run / "checkpoints" / "round-000012").mkdir(parents=True)
    assert ended(KeyboardInterrupt(), run, capsys)[1].startswith("stopped after round 12; continue with 'unisono resume ")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), stopping(tmp_path):
        raise ZeroDivisionError


def test_a_misspelt_command_gets_one_suggestion() -> None:
    for line in (["runn"], ["deploy", "innit"]):
        said = CliRunner().invoke(app, line)
        assert (said.exit_code, said.output.count("Did you mean")) == (2, 1), said.output
