"""Client states: two steps, a limit of memory, and versions."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.federation.client_store import ClientStateStore


def state(value: float, size: int = 25) -> Payload:
    return Payload({"memory": {"x": torch.full((size,), value)}})


def value_of(payload: Payload) -> float | None:
    return float(payload.groups["memory"]["x"][0]) if payload.groups else None


def test_staged_states_are_seen_at_once_and_kept_at_commit() -> None:
    store = ClientStateStore()
    store.stage(3, state(1.0))
    assert value_of(store.get(3)) == 1.0
    assert 3 not in store
    assert list(store) == []
    store.commit(7)
    assert value_of(store.get(3)) == 1.0
    assert 3 in store
    assert store.version(3) == 7


def test_rollback_gives_back_what_was_there() -> None:
    store = ClientStateStore()
    store.stage(1, state(1.0))
    store.commit(0)
    store.stage(1, state(2.0))
    store.stage(2, state(2.0))
    store.rollback()
    store.commit(1)
    assert value_of(store.get(1)) == 1.0
    assert store.get(2) == Payload()
    assert (list(store), store.version(1)) == ([1], 0)


def test_a_client_without_state_has_no_entry() -> None:
    store = ClientStateStore()
    store.stage(1, Payload())
    store.commit(0)
    assert len(store) == 0
    assert store.get(1) == Payload()


def test_a_state_may_become_empty_again() -> None:
    store = ClientStateStore()
    store.stage(1, state(1.0))
    store.stage(1, Payload())
    assert store.get(1) == Payload(), "also within one round"
    store.commit(0)
    store.stage(1, state(1.0))
    store.commit(1)
    store.stage(1, Payload())
    store.commit(2)
    assert store.get(1) == Payload()
    assert store.version(1) == 2


def test_scalars_alone_are_a_state() -> None:
    store = ClientStateStore()
    store.stage(1, Payload(scalars={"seen": 0}))
    store.commit(0)
    assert store.get(1).scalars == {"seen": 0}


def test_states_beyond_the_limit_go_to_disk_oldest_first(tmp_path: Path) -> None:
    """Each state has 100 bytes, so two of them fit."""
    store = ClientStateStore(250, tmp_path)
    for client in (5, 1, 3):
        store.stage(client, state(float(client)))
        store.commit(client)
    assert [path.name for path in tmp_path.iterdir()] == ["5.state"]
    assert list(store) == [1, 3, 5]
    assert len(store) == 3
    assert [value_of(store.get(client)) for client in (1, 3, 5)] == [1.0, 3.0, 5.0]
    store.stage(5, state(50.0))
    assert value_of(store.get(5)) == 50.0
    store.rollback()
    assert value_of(store.get(5)) == 5.0
    store.stage(5, state(55.0))
    store.commit(9)
    assert [path.name for path in tmp_path.iterdir()] == ["1.state"], "1 is now the one that changed longest ago"
    assert value_of(store.get(5)) == 55.0
    assert [store.version(client) for client in (1, 3, 5)] == [1, 3, 9]


def test_spilled_states_keep_every_bit(tmp_path: Path) -> None:
    store = ClientStateStore(0, tmp_path)
    payload = Payload({"a": {"w": torch.randn(3, 3, dtype=torch.float64).T}, "none": {}}, {"n": 0.1})
    store.stage(1, payload)
    store.commit(0)
    back = store.get(1)
    assert torch.equal(back.groups["a"]["w"], payload.groups["a"]["w"])
    assert back.groups["none"] == {}
    assert back.scalars == {"n": 0.1}


def test_restore_puts_back_state_and_version() -> None:
    store = ClientStateStore()
    for client in range(3):
        store.restore(client, state(float(client)), 10 + client)
    store.rollback()
    assert [(client, store.version(client), value_of(store.get(client))) for client in store] == [
        (0, 10, 0.0),
        (1, 11, 1.0),
        (2, 12, 2.0),
    ]


def test_close_removes_what_was_spilled(tmp_path: Path) -> None:
    for directory in (tmp_path / "given", None):
        store = ClientStateStore(0, directory)
        store.stage(1, state(1.0))
        store.commit(0)
        file = store._file(1)
        assert file.exists()
        store.close()
        assert not file.exists()


def test_a_client_without_a_version_has_none() -> None:
    with pytest.raises(KeyError):
        ClientStateStore().version(1)


class AgainstTwoDictionaries(RuleBasedStateMachine):
    """Any sequence of steps, against a model of two dictionaries; with room for two states."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ClientStateStore(250)
        self.kept: dict[int, float | None] = {}
        self.staged: dict[int, float | None] = {}
        self.round = 0

    @rule(client=st.integers(0, 3), value=st.none() | st.integers(0, 9).map(float))
    def stage(self, client: int, value: float | None) -> None:
        self.store.stage(client, Payload() if value is None else state(value))
        self.staged[client] = value

    @rule()
    def commit(self) -> None:
        self.store.commit(self.round)
        self.kept.update(self.staged)
        self.staged.clear()
        self.round += 1

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.staged.clear()

    @invariant()
    def every_client_reads_its_last_state(self) -> None:
        now = {**self.kept, **self.staged}
        assert [value_of(self.store.get(client)) for client in range(4)] == [now.get(client) for client in range(4)]
        assert {client for client, value in self.kept.items() if value is not None} <= set(self.store)
        assert sum(payload.num_bytes for payload in self.store._memory.values()) == self.store._num_bytes <= 250

    def teardown(self) -> None:
        self.store.close()


TestAgainstTwoDictionaries = AgainstTwoDictionaries.TestCase
TestAgainstTwoDictionaries.settings = settings(max_examples=30, stateful_step_count=25)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    store = ClientStateStore(memory_limit=10, directory=tmp_path)
    store.stage(1, state(1.0))
    with pytest.raises(UserError, match=r"No space left on device\. Free some space or raise engine\.state_memory_gib"):
        store.commit(0)


def test_nothing_is_left_on_the_disk(tmp_path: Path) -> None:
    store = ClientStateStore(memory_limit=10, directory=tmp_path / "states")
    store.stage(1, state(1.0))
    store.commit(0)
    assert (tmp_path / "states").is_dir()
    store.close()
    assert not (tmp_path / "states").exists()
