"""Checkpoints restore everything, are written whole or not at all, and know when they are damaged."""

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.core.payloads import same
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import ServerState
from unisono.runs import checkpoint as module
from unisono.runs.checkpoint import MANIFEST, Checkpoints, DamagedError

LOGS = {"metrics": 120, "failures": 0}


def server(round: int) -> Payload:
    generator = torch.Generator().manual_seed(round)
    return Payload(
        {"z": {"w": torch.randn(3, generator=generator)}, "a": {"n": torch.tensor(round)}, "none": {}}, {"best": 0.1}
    )


def local(value: float) -> Payload:
    return Payload({"memory": {"x": torch.full((4,), value)}}, {"turns": int(value)})


def state(round: int) -> ServerState:
    return ServerState(round, server(round), Payload({"z": {"w#momentum_buffer": torch.full((3,), float(round))}}))


def change(store: ClientStateStore, clients: list[int], round: int) -> None:
    """What a round does to these clients' states."""
    for client in clients:
        store.stage(client, local(10 * round + client))
    store.commit(round)


def save_rounds(checkpoints: Checkpoints, rounds: list[int]) -> ClientStateStore:
    """Round r changes client 100 + r; client 7 changes in the first round alone."""
    store = ClientStateStore()
    for round in rounds:
        change(store, [100 + round, 7] if round == rounds[0] else [100 + round], round - 1)
        checkpoints.save(state(round), store, {**LOGS, "metrics": round})
    return store


@pytest.mark.parametrize("memory_limit", [2**30, 0])
def test_everything_comes_back(tmp_path: Path, memory_limit: int) -> None:
    checkpoints, store = Checkpoints(tmp_path / "checkpoints"), ClientStateStore(memory_limit)
    change(store, [3, 12], 0)
    change(store, [12, 0], 1)
    store.stage(3, Payload())
    store.commit(2)
    checkpoints.save(state(3), store, LOGS)
    restored = ClientStateStore(memory_limit)
    loaded = Checkpoints(tmp_path / "checkpoints").load(3, restored)
    assert loaded.state.round == 3
    assert same(loaded.state.server, state(3).server)
    assert same(loaded.state.optimizer, state(3).optimizer)
    assert loaded.log_lengths == LOGS
    assert list(restored) == list(store) == [0, 3, 12]
    assert all(same(restored.get(client), store.get(client)) for client in store)
    assert [restored.version(client) for client in restored] == [1, 2, 1]
    assert same(checkpoints.server_at(3), state(3).server)


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.rounds() == []
    with pytest.raises(DamagedError, match="round-000001 is damaged"):
        checkpoints.load(1, ClientStateStore())


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    save_rounds(checkpoints, [1, 2, 3, 10, 100])
    assert checkpoints.rounds() == [1, 2, 3, 10, 100][-keep:]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"round-{round:06d}" for round in checkpoints.rounds()]
    for round in checkpoints.rounds():
        assert checkpoints.load(round, ClientStateStore()).log_lengths["metrics"] == round


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def rewrite(**changes: object) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        values = {**json.loads(path.read_text().split("\n")[0]), **changes}
        text = json.dumps({name: value for name, value in values.items() if value is not None})
        path.write_text(f"{text}\n{zlib.crc32(text.encode())}")

    return damage


DAMAGES = {
    "server cut": ("server.safetensors", truncate),
    "server bit": ("server.safetensors", flip_a_bit),
    "server gone": ("server.safetensors", Path.unlink),
    "optimiser bit": ("optimizer.safetensors", flip_a_bit),
    "client cut": ("clients/103.safetensors", truncate),
    "client bit": ("clients/103.safetensors", flip_a_bit),
    "client gone": ("clients/103.safetensors", Path.unlink),
    "manifest gone": (MANIFEST, Path.unlink),
    "manifest cut": (MANIFEST, truncate),
    "manifest empty": (MANIFEST, lambda path: path.write_text("")),
    "manifest a list": (MANIFEST, lambda path: path.write_text("[]")),
    "manifest of another round": (MANIFEST, rewrite(round=2)),
    "manifest without logs": (MANIFEST, rewrite(logs=None)),
    "manifest without files": (MANIFEST, rewrite(files={})),
    "manifest with a list of files": (MANIFEST, rewrite(files=["server.safetensors"])),
    "manifest with an unknown client": (MANIFEST, rewrite(clients={"55": 1})),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_older_checkpoint_still_loads(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save_rounds(checkpoints, [2, 3])
    name, spoil = DAMAGES[damage]
    spoil(tmp_path / "round-000003" / name)
    store = ClientStateStore()
    with pytest.raises(DamagedError, match="checkpoint round-000003 is damaged"):
        checkpoints.load(3, store)
    assert len(store) == 0, "nothing of a damaged checkpoint is restored"
    assert same(checkpoints.load(2, store).state.server, server(2))
    assert list(store) == [7, 102]


def test_a_flipped_bit_anywhere_in_the_list_is_found(tmp_path: Path) -> None:
    """Numbers of releases, lengths of logs and versions of states stand there alone."""
    checkpoints = Checkpoints(tmp_path)
    save_rounds(checkpoints, [3])
    path = tmp_path / "round-000003" / MANIFEST
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 3]) + good[place + 1 :])
        with pytest.raises(DamagedError, match="checkpoint round-000003 is damaged"):
            checkpoints.load(3, ClientStateStore())
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(DamagedError):
            checkpoints.load(3, ClientStateStore())


@pytest.mark.parametrize("damage", ["server cut", "server bit", "server gone", "manifest gone"])
def test_the_server_alone_is_checked_too(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save_rounds(checkpoints, [3])
    name, spoil = DAMAGES[damage]
    spoil(tmp_path / "round-000003" / name)
    with pytest.raises(DamagedError, match="checkpoint round-000003 is damaged"):
        checkpoints.server_at(3)


def inode(tmp_path: Path, round: int, client: int) -> int:
    return (tmp_path / f"round-{round:06d}" / "clients" / f"{client}.safetensors").stat().st_ino


def test_states_that_did_not_change_are_linked(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=4)
    save_rounds(checkpoints, [1, 2, 3, 4])
    assert inode(tmp_path, 1, 7) == inode(tmp_path, 3, 7)
    assert inode(tmp_path, 2, 102) == inode(tmp_path, 4, 102)
    store = save_rounds(Checkpoints(tmp_path / "other", keep=3), [1, 2, 3])
    change(store, [7], 3)
    Checkpoints(tmp_path / "other", keep=3).save(state(4), store, LOGS)
    assert inode(tmp_path / "other", 3, 7) != inode(tmp_path / "other", 4, 7)
    restored = ClientStateStore()
    Checkpoints(tmp_path / "other").load(4, restored)
    assert float(restored.get(7).groups["memory"]["x"][0]) == 37.0


@pytest.mark.parametrize("keep", [2, 3])
def test_damage_to_a_state_that_did_not_change_leaves_a_good_checkpoint(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    save_rounds(checkpoints, [1, 2, 3, 4, 5])
    flip_a_bit(tmp_path / "round-000005" / "clients" / "7.safetensors")
    store = ClientStateStore()
    with pytest.raises(DamagedError, match=r"7\.safetensors"):
        checkpoints.load(5, store)
    assert checkpoints.load(4, store).state.round == 4
    assert 7 in store


def test_a_linked_state_outlives_the_checkpoint_it_came_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    store = save_rounds(checkpoints, [1, 2, 3, 4])
    restored = ClientStateStore()
    checkpoints.load(4, restored)
    assert all(same(restored.get(client), store.get(client)) for client in store)


def test_file_systems_without_links_get_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    checkpoints = Checkpoints(tmp_path, keep=3)
    store = save_rounds(checkpoints, [1, 2, 3])
    assert inode(tmp_path, 1, 7) != inode(tmp_path, 3, 7)
    restored = ClientStateStore()
    checkpoints.load(3, restored)
    assert same(restored.get(7), store.get(7))


def test_a_damaged_checkpoint_does_not_spoil_the_one_that_replaces_it(tmp_path: Path) -> None:
    """The run falls back to round 2, does the round again, and saves round 3 anew: same versions, but no damaged file."""
    checkpoints = Checkpoints(tmp_path)
    save_rounds(checkpoints, [2, 3])
    truncate(tmp_path / "round-000003" / "clients" / "103.safetensors")
    store = ClientStateStore()
    checkpoints.load(2, store)
    change(store, [103], 2)
    checkpoints.save(state(3), store, LOGS)
    restored = ClientStateStore()
    checkpoints.load(3, restored)
    assert same(restored.get(103), store.get(103))


def test_a_crash_before_the_rename_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    store = save_rounds(checkpoints, [1, 2])
    half = tmp_path / ".round-000003.tmp"
    (half / "clients").mkdir(parents=True)
    (half / "server.safetensors").write_bytes(b"half")
    (half / "clients" / "99.safetensors").write_bytes(b"half")
    assert checkpoints.rounds() == [1, 2]
    checkpoints.save(state(3), store, LOGS)
    assert checkpoints.rounds() == [2, 3]
    assert not half.exists()
    assert not (tmp_path / "round-000003" / "clients" / "99.safetensors").exists()
    checkpoints.load(3, ClientStateStore())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_save_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    store = save_rounds(checkpoints, [1])

    def fail(path: Path, content: bytes) -> None:
        if path.name == MANIFEST:
            raise error
        path.write_bytes(content)

    monkeypatch.setattr(module, "write_and_sync", fail)
    with pytest.raises(UserError if isinstance(error, OSError) else KeyboardInterrupt):
        checkpoints.save(state(2), store, LOGS)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000001"]
    checkpoints.load(1, ClientStateStore())


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    (tmp_path / "round-000001.bak").mkdir()
    (tmp_path / "round-000005").write_text("a file")
    (tmp_path / "notes").mkdir()
    save_rounds(checkpoints, [2])
    assert checkpoints.rounds() == [2]


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_rounds(Checkpoints(tmp_path / name), [1, 2])
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 2 * 3 + 2 + 3
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
