"""A run that begins forgets how an earlier attempt ended, and leaves what a kill left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.core.errors import UserError
from unisono.report.files import ReportFiles
from unisono.runs.directory import RunDirectory
from unisono.runs.status_file import StatusFile


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run", {})
    (directory.path / "report").mkdir()
    for name in ("status.json", ".half.tmp", "report/errors.txt", "report/about.json"):
        (directory.path / name).write_text("{")
    return directory


REMOVES: dict[str, Callable[[RunDirectory], object]] = {
    "status.json": lambda directory: StatusFile(directory).__enter__(),
    ".half.tmp": RunDirectory.remove_leftovers,
    "report/errors.txt": lambda directory: ReportFiles(directory).clear_errors(),
    "report/about.json": lambda directory: ReportFiles(directory).drop_damaged(),
}


@pytest.mark.parametrize("name", REMOVES)
def test_a_file_that_cannot_be_removed_is_one_sentence(
    directory: RunDirectory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(UserError, match=rf"run/{name} cannot be written: Input/output error"):
            REMOVES[name](directory)
    REMOVES[name](directory)
    assert not (directory.path / name).exists()
