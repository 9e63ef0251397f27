"""A client's failure keeps its place when it crosses processes."""

import pickle

from unisono.core.errors import ClientError


def test_a_client_error_survives_pickling() -> None:
    error = ClientError(3, "train", 12, "ValueError: no", "Traceback ...")
    back = pickle.loads(pickle.dumps(error))
    assert (back.round, back.phase, back.client_id, back.reason, back.details) == (
        3,
        "train",
        12,
        "ValueError: no",
        "Traceback ...",
    )
    assert str(back) == str(error) == "round 4, phase train, client 12: ValueError: no"
