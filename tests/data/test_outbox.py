from __future__ import annotations

import torch

from unisono.data.graph import ClientGraph
from unisono.data.outbox import deliver, make_ledger, messages_between, pack_messages

PATH = ClientGraph(3, ((0, 1), (1, 2)))


def test_mail_reaches_its_receiver_alone() -> None:
    points, rows = torch.rand(2, 1, 3, 3), torch.tensor([5, 6])
    messages = pack_messages([(1, {">0.points": points, ">0.rows": rows}), (2, {">1.points": points + 1})])
    assert set(messages_between(messages, 1, 0)) == {"points", "rows"}
    assert torch.equal(messages_between(messages, 1, 0)["rows"], rows)
    assert torch.equal(messages_between(messages, 2, 1)["points"], points + 1)
    assert set(deliver(messages, 0, (1, 2))) == {"1>0.points", "1>0.rows"}
    assert deliver(messages, 0, (2,)) == deliver(messages, 2, (0, 1)) == {}
    assert messages_between(messages, 0, 1) == messages_between(messages, 1, 2) == messages_between(messages, 11, 0) == {}


def test_ledger_by_hand() -> None:
    reserve = {"0>.points": torch.empty(4, 1, 2, 3), "1>.points": torch.empty(5, 1, 2, 3)}
    messages = pack_messages([(0, {">1.points": torch.empty(2, 1, 2, 3)}), (2, {">0.points": torch.empty(9, 1, 2, 3)})])
    ledger = make_ledger(PATH, reserve, messages, torch.empty(1, 2, 3, dtype=torch.uint8))
    links = list(zip(ledger["senders"].tolist(), ledger["receivers"].tolist(), strict=True))
    assert links == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert ledger["pushed"].tolist() == [4, 5, 5, 0]
    assert ledger["pulled"].tolist() == [2, 0, 0, 0]
    assert ledger["bytes"].tolist() == [36, 30, 30, 0]


def test_ledger_of_lonely_devices_is_empty() -> None:
    assert all(len(column) == 0 for column in make_ledger(ClientGraph(2, ()), {}, {}, torch.empty(0)).values())
