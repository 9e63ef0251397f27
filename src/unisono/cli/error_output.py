"""Errors as one sentence on stderr and an exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
import typer.core
from typer.core import TyperGroup

from unisono.core.errors import ClientError, UnreadableImagesError, UserError

USER_ERROR = 2
CLIENT_ERROR = 1
INTERRUPTED = 130
typer.core.HAS_RICH = False  # help is plain text; for rich text typer would write "\\[required]"


class Commands(TyperGroup):
    """The commands, by task; a UserError ends any of them with its sentence, Ctrl-C with a word."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group under its name."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            group = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(group, []).append((name.ljust(max(map(len, self.commands))), command.get_short_help_str(80)))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the command line names."""
        try:
            return super().invoke(ctx)
        except UnreadableImagesError as error:
            _complain(f"{error}{_listed(error)}")
            raise typer.Exit(USER_ERROR) from None
        except UserError as error:
            _complain(str(error))
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            _say("stopped")
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stopping(path: Path) -> Iterator[None]:
    """End a run that a client or the user stops with a sentence that says how to continue.

    Args:
        path: the run directory.
    """
    try:
        yield
    except ClientError as error:
        _complain(_what_failed(error, path / "failures.jsonl"))
        raise typer.Exit(CLIENT_ERROR) from None
    except KeyboardInterrupt:
        _say(_how_to_go_on(path))
        raise typer.Exit(INTERRUPTED) from None


def _what_failed(error: ClientError, log: Path) -> str:
    client = "" if error.client_id < 0 else f", client {error.client_id}"  # a worker can die before its first client
    reason = " ".join(error.reason.split()).rstrip(".")
    details = f" Details are in {log}." if log.is_file() else ""
    return f"round {error.round + 1}, phase {error.phase}{client}: {reason}.{details}"


def _how_to_go_on(path: Path) -> str:
    from unisono.runs.checkpoint import Checkpoints

    if not (path / "config.toml").is_file():
        return "stopped before the run began"
    saved = Checkpoints(path / "checkpoints").rounds()
    when = f"after round {saved[-1]}" if saved else "before the first round was saved"
    return f"stopped {when}; continue with 'unisono resume {shlex.quote(str(path))}'"


def _listed(error: UnreadableImagesError) -> str:
    """Write the list of many files into the current folder, and return a sentence about it."""
    if len(error.problems) < 2:
        return ""
    from unisono.cli.samples import UNREADABLE, list_unreadable

    list_unreadable(error.problems)
    return f" {UNREADABLE} lists all."


def _complain(sentence: str) -> None:
    _say(f"error: {sentence}")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
