"""The ledger of a client: what was spent never falls, whatever is killed, cut or put back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import GROUP_NORM, SIMPLE, Clients, Run, request
from tests.deploy.test_policy import ORCHESTRA, SECURE, client_with, first_request
from unisono.core.config import merge
from unisono.core.errors import ClientError, UserError
from unisono.deploy.chain import Chain, DamagedChainError
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger, Release, reset_ledger
from unisono.privacy.accountant import UserLevelAccountant


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


def ledger_of(path: Path) -> Ledger:
    return Ledger(ClientDirectory.open(path))


def test_a_line_that_was_changed_removed_or_moved_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "chain.jsonl"
    chain = Chain(file, b"key")
    for number in range(4):
        chain.append({"kind": "x", "number": number})
    lines = file.read_bytes().splitlines(keepends=True)
    assert Chain(file, b"key").lines == chain.lines
    assert (file.stat().st_mode & 0o777) == 0o600
    for damaged, place in (
        ([lines[0], lines[2], lines[3]], 2),
        ([lines[0], lines[2], lines[1], lines[3]], 2),
        ([lines[0], lines[1].replace(b'"number":1', b'"number":7'), *lines[2:]], 2),
        (lines[1:], 1),
        ([*lines, b"{}\n"], 5),
        ([*lines, b"\xff\n"], 5),
    ):
        file.write_bytes(b"".join(damaged))
        with pytest.raises(DamagedChainError, match=f"damaged at line {place}"):
            Chain(file, b"key")
    file.write_bytes(b"".join(lines))
    with pytest.raises(DamagedChainError, match="line 1"):
        Chain(file, b"another client's key")


def test_two_processes_add_to_one_chain(tmp_path: Path) -> None:
    first, second = (Chain(tmp_path / "chain.jsonl", b"") for _ in range(2))
    for number in range(3):
        first.append({"number": number})
        second.append({"number": -number})
    assert [line["number"] for line in Chain(tmp_path / "chain.jsonl", b"").lines] == [0, 0, 1, -1, 2, -2]


def test_half_a_line_is_cut_and_the_cut_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "chain.jsonl"
    chain = Chain(file, b"")
    chain.append({"kind": "x"})
    whole = file.read_bytes()
    for cut in (1, 2, 40, len(whole) - 1):
        file.write_bytes(whole + whole[:cut].replace(b"\n", b""))
        lines = Chain(file, b"").lines
        assert [line["kind"] for line in lines] == ["x", "repair"]
        assert Chain(file, b"").lines == lines
        file.write_bytes(whole)


class _Killed(BaseException):
    pass


@attack("A19", "Lets answers fail or be lost so that they do not count", "each counts before it is computed")
@pytest.mark.parametrize("fault", [0, 1, 2, 3, 4, 99])
def test_spent_never_falls_when_the_disk_fails_at_any_write(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    """An answer writes the intent, the audit and the end; whichever write fails, nothing is sent that does not count."""
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    calls, real = [0], os.fsync

    def failing(file: int) -> None:
        calls[0] += 1
        if calls[0] == fault + 1:
            raise _Killed
        real(file)

    monkeypatch.setattr("unisono.deploy.chain.os.fsync", failing)
    sent = False
    try:
        client.answer(asked)
        sent = True
    except _Killed:
        pass
    monkeypatch.undo()
    assert sent == (calls[0] <= fault), "it is sent only if every write has succeeded"
    assert calls[0] >= min(fault + 1, 3)
    assert ledger_of(tmp_path).rounds == 1, "the line is in the file, so it counts"
    client_with(clients, tmp_path, {}).answer(replace(asked, round=1))
    assert ledger_of(tmp_path).rounds == 2


def test_nothing_is_computed_if_the_intent_cannot_be_written(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    client.answer(asked)  # from now on the file is there, and only its own content has to get to the disk

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unisono.deploy.chain.os.fsync", full)
    monkeypatch.setattr("unisono.deploy.client.run_client", lambda *args: pytest.fail("it has computed"))
    with pytest.raises(ClientError, match="the client failed"):
        client.answer(replace(asked, round=1))


def test_epsilon_is_that_of_dp_accounting_over_all_runs_and_both_noises(clients: Clients, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    run = Run(clients, merge(SIMPLE, GROUP_NORM))
    for number, noise in enumerate((3.0, 3.0, 5.0)):
        client = client_with(clients, tmp_path, {"budget": {"clip_norm": 1.0, "noise_multiplier": noise}})
        client.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", f"run-{number}")))
    book = ledger_of(tmp_path)
    # Three Gaussian releases are one with the noise at which their divergences add up.
    together = (2 / 3.0**2 + 1 / 5.0**2) ** -0.5
    for delta in (1e-5, 1e-3):
        assert book.epsilon(delta) == pytest.approx(UserLevelAccountant(together, delta, "none", 1, 1).epsilon(1), rel=1e-6)
    assert book.epsilon(1e-3) < book.epsilon(1e-5) < book.epsilon(1e-5, Release(3.0))
    client_with(clients, tmp_path, {}).answer(replace(request(run), run_spec=run.run_spec.replace("run-1", "bare")))
    assert ledger_of(tmp_path).epsilon(1e-5) == float("inf"), "an answer without noise has no epsilon"


@pytest.mark.parametrize("tree", [SECURE, merge(SECURE, {"compression": {"bits": 8}})], ids=["32 bits", "16 bits"])
def test_noise_of_any_size_fits_into_a_masked_sum(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Noise of 8 times the norm passes the range of single values, 16, now and then: it is cut, and nobody fails."""
    own = Clients(tmp_path, budget={"clip_norm": 1.0, "noise_multiplier": 8.0})
    run = Run(own, merge(merge(SIMPLE, GROUP_NORM), tree), secure=True)
    state = run.go(until=1)
    start = run.federation.initial_state().server.flatten()
    moved = torch.cat([(t - start[name]).flatten() for name, t in state.server.flatten().items() if t.dim() >= 2])
    assert float(moved.abs().max()) <= 16
    assert [ledger_of(path.path).failures("run-1") for path in own.directories] == [0, 0, 0]


def test_a_damaged_ledger_stops_the_client_until_its_owner_says_what_was_spent(clients: Clients, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    own: dict[str, Any] = {"budget": {"clip_norm": 1.0, "noise_multiplier": 4.0, "max_epsilon": 10.0, "max_runs": 2}}
    run = Run(clients, merge(SIMPLE, GROUP_NORM))
    client = client_with(clients, tmp_path, own)
    for number in range(2):
        client.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", f"run-{number}")))
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"noise":4.0', b'"noise":9.0', 1))
    with pytest.raises(UserError, match=r"damaged at line 1\. Restore .*unisono deploy ledger .* --reset --spent-epsilon X"):
        client_with(clients, tmp_path, own)
    with pytest.raises(UserError, match="--spent-epsilon must be at least 0"):
        reset_ledger(ClientDirectory.open(tmp_path), -1.0)
    old = reset_ledger(ClientDirectory.open(tmp_path), 9.9)
    assert len(old.read_bytes().splitlines()) == 4
    book = ledger_of(tmp_path)
    assert (book.rounds, book.runs(), book.epsilon(1e-5)) == (2, {"run-0", "run-1"}, 9.9)
    fresh = client_with(clients, tmp_path, own)
    with pytest.raises(ClientError, match=r"policy:budget\.max_epsilon"):
        fresh.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", "run-0"), round=1))
    with pytest.raises(ClientError, match=r"policy:budget\.max_runs"):
        fresh.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", "run-5")))


def test_the_server_notices_a_ledger_that_went_back(clients: Clients, tmp_path: Path) -> None:
    from unisono.federation.loop import RoundRecord
    from unisono.runs.directory import RunDirectory
    from unisono.runs.privacy_report import PrivacyReport

    run = Run(clients, SIMPLE)
    (tmp_path / "client").mkdir()
    client = client_with(clients, tmp_path / "client", {})
    stats = [client.answer(replace(request(run), round=number)).stats for number in range(2)]
    assert stats[0].owner["policy"] == client._config.fingerprint
    directory = RunDirectory.create(tmp_path / "run", {})
    report = PrivacyReport(directory, run.method.shares, None, None)
    state = run.federation.initial_state()
    report.on_run_start(state)
    records = []
    for number, one in enumerate((stats[1], stats[0])):
        report.on_round_start(number, 1)
        report.on_client_end("train", one)
        records.append(RoundRecord(number, [0], [one]))
        report.on_round_end(state, records[-1])
    assert records[0].notes == []
    assert "its ledger went back from 4 to 2 lines" in records[1].notes[0]
    saved = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert saved["owners"]["0"]["policy"] == client._config.fingerprint


def test_what_carries_no_noise_is_refused_under_an_epsilon_and_costs_nothing(clients: Clients, tmp_path: Path) -> None:
    """Scores and metrics would be the way around the noise, and so would centroids of this client alone."""
    pytest.importorskip("dp_accounting")
    budget = {"clip_norm": 1.0, "noise_multiplier": 4.0, "max_epsilon": 1e6}
    client = client_with(clients, tmp_path, {"budget": budget, "allow": {"metrics": ["all"]}})
    asked = request(Run(clients, merge(SIMPLE, GROUP_NORM)))
    with pytest.raises(ClientError, match=r"policy:budget\.max_epsilon: .*scores carry none"):
        client.evaluate(asked)
    centroids = first_request(clients, merge(ORCHESTRA, GROUP_NORM), {})
    with pytest.raises(ClientError, match=r"policy:budget\.max_epsilon: .*does not cover group 'local_centroids'"):
        client.answer(centroids)
    assert ledger_of(tmp_path).rounds == 0
    assert client.answer(asked).update.metrics == {}


def test_compression_does_not_undo_the_owners_clipping(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"budget": {"clip_norm": 1.0}})
    compressed = merge(merge(SIMPLE, GROUP_NORM), {"compression": {"bits": 8}})
    with pytest.raises(ClientError, match=r"policy:budget\.clip_norm"):
        client.answer(first_request(clients, compressed, {}))
