"""The file ``status.json``: whether a run is finished or has failed, and why."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

from unisono.core.errors import ClientError, UserError
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.runs.directory import RunDirectory
from unisono.runs.files import explained


class StatusFile(Callback):
    """Callback and context that writes ``status.json``. An exception that leaves the context is written down as a failure.

    On a real federation the file also says that the run waits or goes on, and under which of Flower's numbers: a server that
    was cut off and the one that continues its run may both be there for a moment.

    Args:
        directory: of the run.
        run_id: Flower's number of the run; None outside of a federation.
    """

    def __init__(self, directory: RunDirectory, run_id: int | None = None) -> None:
        self._directory = directory
        self._run_id = run_id
        self.failed = False

    def write(self, status: str, num_rounds: int, **more: str) -> None:
        """Replace the file."""
        number = {} if self._run_id is None else {"run_id": self._run_id}
        self._directory.write_json("status.json", {"status": status, "round": num_rounds, **number, **more})

    def on_run_start(self, state: ServerState) -> None:
        self._tell(state.round)

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self._tell(state.round)

    def __enter__(self) -> StatusFile:
        if self._run_id is None:
            path = self._directory.path / "status.json"
            with explained(path):
                path.unlink(missing_ok=True)  # it says how an earlier attempt ended
        else:
            self.write("waiting for clients", 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A simulation that is interrupted has not failed. Flower interrupts an app to stop its run.
        if error is None or (self._run_id is None and not isinstance(error, Exception)):
            return
        self.failed = True
        with suppress(OSError, UserError):  # on a full disk the error itself matters more
            rounds = self._directory.checkpoints().rounds()
            self.write("failed", rounds[-1] if rounds else 0, reason=_reason(error))

    def _tell(self, num_rounds: int) -> None:
        if self._run_id is not None:
            self.write("running", num_rounds)


def _reason(error: BaseException) -> str:
    """Return why a run failed; rounds are counted from 1, as in its report."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, ClientError):
        return f"client {error.client_id}, phase {error.phase} of round {error.round + 1}: {error.reason}"
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
