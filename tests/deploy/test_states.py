"""States on a client's disk: the one that the server names, through restarts, retries and steps back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unisono.core.payload import Payload
from unisono.deploy.states import NAME, ClientStateFiles


def state(number: int) -> Payload:
    return Payload({"net": {"w": torch.full((2,), float(number))}}, {"n": number})


def test_a_state_is_found_by_its_name_after_a_restart(tmp_path: Path) -> None:
    reference = ClientStateFiles(tmp_path, 3).save(state(1), round=0, begun=Payload())
    again = ClientStateFiles(tmp_path, 3)
    assert again.load(reference).scalars == {"n": 1}
    assert set(reference.scalars) == {NAME}
    assert not reference.groups


def test_a_round_that_is_tried_again_begins_where_it_began(tmp_path: Path) -> None:
    states = ClientStateFiles(tmp_path, 3)
    before = states.save(state(1), round=4, begun=Payload())
    states.save(state(2), round=5, begun=before)
    assert states.load(before).scalars == {"n": 1}
    assert states.load(states.save(state(3), round=5, begun=before)).scalars == {"n": 3}


def test_an_empty_state_has_no_name_and_no_name_is_an_empty_state(tmp_path: Path) -> None:
    states = ClientStateFiles(tmp_path, 3)
    assert not states.save(Payload(), round=0, begun=Payload()).scalars
    assert not states.load(Payload()).groups


def test_old_states_go(tmp_path: Path) -> None:
    states = ClientStateFiles(tmp_path, history=2)
    references = [Payload()]
    for number in range(10):
        references.append(states.save(state(number), round=number, begun=references[-1]))
    # Rounds 7, 8 and 9 can be gone back to; the step of round 7 began with the state of round 6.
    assert states.names() == [str(reference.scalars[NAME]) for reference in references[7:]]
    assert not states.load(references[1]).groups


def test_what_a_recent_step_began_with_stays_however_old(tmp_path: Path) -> None:
    states = ClientStateFiles(tmp_path, history=2)
    first = states.save(state(1), round=0, begun=Payload())
    states.save(state(2), round=1, begun=first)  # an attempt that came to nothing
    late = states.save(state(3), round=100, begun=first)
    states.save(state(4), round=101, begun=late)
    assert states.load(first).scalars == {"n": 1}
    states.save(state(5), round=103, begun=late)
    assert not states.load(first).groups


def test_a_name_that_is_a_path_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "secret.payload").write_bytes(b"x")
    states = ClientStateFiles(tmp_path / "run", 3)
    for name in ("../secret", "/etc/passwd", "000001-000001/../../secret"):
        assert not states.load(Payload(scalars={NAME: name})).groups


@pytest.mark.parametrize("content", ["", "{", "[7]", "[[1, 2, 3]]", '[["x", ""]]', "7", '{"a": 1}'])
def test_a_damaged_list_of_steps_stops_no_step(tmp_path: Path, content: str) -> None:
    states = ClientStateFiles(tmp_path, history=2)
    before = states.save(state(1), round=0, begun=Payload())
    (tmp_path / "begun.json").write_text(content)
    after = states.save(state(2), round=1, begun=before)
    assert [states.load(name).scalars for name in (before, after)] == [{"n": 1}, {"n": 2}]
    assert states.save(state(3), round=2, begun=after).scalars


def test_a_damaged_state_is_none(tmp_path: Path) -> None:
    states = ClientStateFiles(tmp_path, history=2)
    reference = states.save(state(1), round=0, begun=Payload())
    (file,) = tmp_path.glob("*.payload")
    content = file.read_bytes()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert not states.load(reference).groups
