"""Errors for users: one sentence that names the field, the value and the remedy."""


class UserError(Exception):
    """Error in the input, not in the program; the message is the whole explanation."""


class MissingDataError(UserError):
    """A data set is not on this machine; nothing else is wrong."""


class MethodError(UserError):
    """The code of a method is at fault, for every client alike; it ends the run."""


def describe(error: BaseException) -> str:
    """Return kind and text of an error in one line; also of one whose text cannot be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be read"


class ClientError(Exception):
    """A client could not answer; names round, phase and client, and carries the original traceback. Text counts rounds from 1.

    Args:
        round: the round in which the client was asked, counted from 0.
        phase: the phase of that round.
        client_id: the client that failed.
        reason: one sentence.
        details: the traceback as text, empty when there is none.
    """

    def __init__(self, round: int, phase: str, client_id: int, reason: str, details: str = "") -> None:
        super().__init__(round, phase, client_id, reason, details)
        self.round = round
        self.phase = phase
        self.client_id = client_id
        self.reason = reason
        self.details = details

    def __str__(self) -> str:
        return f"round {self.round + 1}, phase {self.phase}, client {self.client_id}: {self.reason}"
