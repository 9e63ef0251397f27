"""Status of a run, read from its directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from unisono.core.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.runs.files import DamagedFileError

Word = Literal["finished", "running", "failed", "interrupted"]


@dataclass(frozen=True)
class Status:
    """Status of a run: a word, and a sentence where more is to say.

    Args:
        word: of the four.
        rounds_done: rounds in the log.
        num_rounds: length of the whole run.
        sentence: why it failed, or how to go on; empty where nothing is to do.
    """

    word: Word
    rounds_done: int
    num_rounds: int
    sentence: str = ""


def run_status(directory: RunDirectory) -> Status:
    """Return the status of a run that may be going on in another process."""
    num_rounds = int(directory.config_tree["federation"]["rounds"])
    try:
        done = len(directory.logs["metrics"].read())
    except DamagedFileError:
        done = max(directory.checkpoints().rounds(), default=0)
    if directory.in_use:
        return Status("running", done, num_rounds)
    if directory.untrained:
        return Status(
            "finished", 0, num_rounds, "Nothing was trained: these are the probes of the encoder before the first round."
        )
    saved = directory.checkpoints().rounds()
    if saved and saved[-1] >= num_rounds:
        return Status("finished", done, num_rounds)
    go_on = f"Continue it with '{directory.command_to_continue}'."
    if done and done not in saved:
        go_on += f" It goes on after round {saved[-1]}, the last one saved." if saved else " No round was saved."
    reason = _reason(directory)
    if reason:
        return Status("failed", done, num_rounds, f"The run failed after {done} of {num_rounds} rounds: {reason} {go_on}")
    return Status("interrupted", done, num_rounds, f"The run was stopped after {done} of {num_rounds} rounds. {go_on}")


def _reason(directory: RunDirectory) -> str:
    """Return the reason that the run gave for its failure; empty if it was stopped from outside."""
    try:
        saved: dict[str, Any] = directory.read_json("status.json")
    except UserError:
        return ""
    return " ".join(str(saved.get("reason", "")).split()).rstrip(".") + "." if saved.get("status") == "failed" else ""
