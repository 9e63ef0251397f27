"""Who takes part: known keys, described and judged once, late or early."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message

from tests.engines.flower.grid import InstantGrid
from unisono.core.errors import UserError
from unisono.engines.flower.membership import DAMAGED_SECONDS, SILENT, FlowerMembership
from unisono.engines.flower.messages import DAMAGED, failure_content, read_values, values_content

KEYS = {b"key 0": 0, b"key 1": 1, b"key 2": 2}


class Nodes:
    """A grid of nodes that say what they are told to."""

    def __init__(self, says: dict[int, Any]) -> None:
        self.says = says
        self.told: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.grid = InstantGrid(self._reply)

    def _reply(self, message: Message) -> Any:
        node = message.metadata.dst_node_id
        question = read_values(message.content, "question")
        if "told" in question:
            self.told.append((node, question["told"]))
            return values_content("description", {})
        said = self.says[node]
        return values_content("description", said) if isinstance(said, dict) else said

    def membership(self, keys: dict[bytes, int] | None = KEYS) -> FlowerMembership:
        return FlowerMembership(self.grid, 3, keys, {"config": {}}, self.notes.append)  # type: ignore[arg-type]


def described(client: int, samples: int = 5) -> dict[str, Any]:
    return {"client": client, "samples": samples}


def test_clients_are_known_by_their_keys_and_not_by_what_they_say() -> None:
    nodes = Nodes({70: described(2), 80: described(0, samples=9)})
    nodes.grid.nodes = {70: b"key 1", 80: b"key 0"}
    membership = nodes.membership()
    membership.wait(2, 5)
    assert list(membership.available()) == [0, 1]
    assert (membership.node_of(1), membership.node_of(0), membership.node_of(2)) == (70, 80, None)
    assert membership.num_samples(0) == 9


def test_a_stranger_is_not_asked() -> None:
    nodes = Nodes({70: described(0), 99: described(1)})
    nodes.grid.nodes = {70: b"key 0", 99: b"stranger"}
    membership = nodes.membership()
    membership.wait(1, 5)
    assert list(membership.available()) == [0]
    assert {message.metadata.dst_node_id for message in nodes.grid.pushed} == {70}
    assert any("node 99" in note for note in nodes.notes)


def test_without_keys_clients_are_believed_within_bounds() -> None:
    nodes = Nodes({70: described(2), 71: described(7)})
    nodes.grid.nodes = {70: b"", 71: b""}
    membership = nodes.membership(None)
    membership.wait(1, 5)
    assert list(membership.available()) == [2]
    assert any("no client 7" in note for note in nodes.notes)


def test_who_does_not_fit_is_told_why_and_left_out() -> None:
    nodes = Nodes({70: described(0), 80: described(1), 90: failure_content("data cannot be read")})
    nodes.grid.nodes = {70: b"key 0", 80: b"key 1", 90: b"key 2"}
    membership = nodes.membership()
    membership.wait(3, 5)
    membership.set_admission_check(lambda client, description: "too small" if client == 1 else None)
    nodes.grid.pull_messages(list(nodes.grid.sent))
    assert list(membership.available()) == [0]
    assert membership.refused == {1: "too small", 2: "data cannot be read"}
    assert nodes.told == [(80, "left out: too small")]


def test_clients_come_late_go_and_come_back() -> None:
    nodes = Nodes({70: described(0), 80: described(1)})
    nodes.grid.nodes = {70: b"key 0"}
    membership = nodes.membership()
    membership.wait(1, 5)
    assert list(membership.available()) == [0]
    nodes.grid.nodes[80] = b"key 1"
    assert list(membership.available()) == [0, 1]
    del nodes.grid.nodes[70]
    assert list(membership.available()) == [1]
    assert membership.node_of(0) is None
    nodes.grid.nodes[70] = b"key 0"
    assert list(membership.available()) == [0, 1]
    assert len(nodes.grid.pushed) == 2


def test_a_node_whose_answer_fails_is_asked_again() -> None:
    nodes = Nodes({70: Error(1, "process died")})
    nodes.grid.nodes = {70: b"key 0"}
    membership = nodes.membership()
    membership.refresh()
    nodes.says[70] = described(0)
    membership.wait(1, 5)
    assert list(membership.available()) == [0]


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_node_whose_message_was_damaged_is_asked_again(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    now = [0.0]
    monkeypatch.setattr("unisono.engines.flower.membership.time.monotonic", lambda: now[0])
    damaged = values_content("description", described(0))
    damaged.config_records["description"]["values"] = "{"
    nodes = Nodes({70: failure_content(DAMAGED) if way == "there" else damaged})
    nodes.grid.nodes = {70: b"key 0"}
    membership = nodes.membership()
    membership.refresh()
    assert any("damaged on their way" in note for note in nodes.notes)
    nodes.says[70] = described(0)
    now[0] = DAMAGED_SECONDS + 1
    assert list(membership.available()) == [0]


def test_nobody_at_all_ends_the_run_with_a_sentence() -> None:
    membership = Nodes({}).membership()
    with pytest.raises(UserError, match="No client is connected"):
        membership.available()


def test_a_client_that_cannot_yet_is_asked_again_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("unisono.engines.flower.membership.time.monotonic", lambda: now[0])
    nodes = Nodes({70: failure_content("pending: waits for its owner"), 80: described(0)})
    nodes.grid.nodes = {70: b"key 1", 80: b"key 0"}
    membership = nodes.membership()
    membership.retry_delay = lambda reason: 10.0 if reason.startswith("pending") else None
    monkeypatch.setattr("unisono.engines.flower.membership.time.sleep", lambda s: now.__setitem__(0, now[0] + s))
    membership.wait(2, 5)
    assert now[0] >= 5, "the owner may decide while the run waits"
    assert (list(membership.available()), dict(membership.refused)) == ([0], {1: "pending: waits for its owner"})
    for second in (6.0, 11.0, 12.0, 22.0):
        now[0] = second
        membership.refresh()
    asked = [message.metadata.dst_node_id for message in nodes.grid.pushed]
    assert asked.count(70) == 3
    assert sum("waits for its owner" in note for note in nodes.notes) == 1
    nodes.says[70] = described(1)
    now[0] = 33.0
    assert list(membership.available()) == [0, 1]
    assert membership.refused == {}


def test_a_client_that_does_not_work_now_is_left_alone_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("unisono.engines.flower.membership.time.monotonic", lambda: now[0])
    nodes = Nodes({70: described(0), 80: described(1)})
    nodes.grid.nodes = {70: b"key 0", 80: b"key 1"}
    membership = nodes.membership()
    membership.retry_delay = lambda reason: 60.0 if "not-now" in reason else None
    membership.heard(0, "the client failed")
    membership.heard(1, "refused: not-now: this client works from 19:00-06:00")
    assert list(membership.available()) == [0]
    now[0] = 61.0
    assert list(membership.available()) == [0, 1]
    for client in (0, 1):
        membership.heard(client, "refused: not-now")
    with pytest.raises(UserError, match=r"No client is willing to work now \(client 0, client 1 will be later\)"):
        membership.available()


def test_a_client_that_is_silent_three_times_rests_for_ten_rounds() -> None:
    nodes = Nodes({70: described(0), 80: described(1)})
    nodes.grid.nodes = {70: b"key 0", 80: b"key 1"}
    membership = nodes.membership()
    for reason in (SILENT, SILENT, "", SILENT, SILENT):
        membership.heard(1, reason)
        assert list(membership.available()) == [0, 1], "three times in a row"
    membership.heard(1, SILENT)
    assert [list(membership.available()) for _ in range(11)] == [[0]] * 10 + [[0, 1]]
    assert sum("client 1 has missed 3 times in a row" in note for note in nodes.notes) == 1
    for _ in range(3):
        membership.heard(1, SILENT)
    membership.wanted = 2
    assert list(membership.available()) == [0, 1], "nobody rests while too few others are there"


def test_nobody_waits_for_a_member_that_was_removed() -> None:
    nodes = Nodes({70: described(0), 80: described(1), 90: described(2)})
    nodes.grid.nodes = {70: b"key 0", 80: b"key 1", 90: b"key 2"}
    keys = dict(KEYS)
    membership = nodes.membership(keys)
    membership.wanted, membership.patience = 3, 1e9
    assert list(membership.available()) == [0, 1, 2]
    del keys[b"key 1"], nodes.grid.nodes[80]
    assert list(membership.available()) == [0, 2]
