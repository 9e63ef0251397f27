from __future__ import annotations

import torch

from unisono.data.graph import DeviceGraph
from unisono.data.mail import deliver, fetch, make_ledger, post

PATH = DeviceGraph(3, ((0, 1), (1, 2)))


def test_mail_reaches_its_receiver_alone() -> None:
    points, rows = torch.rand(2, 1, 3, 3), torch.tensor([5, 6])
    mail = post([(1, {">0.points": points, ">0.rows": rows}), (2, {">1.points": points + 1})])
    assert set(fetch(mail, 1, 0)) == {"points", "rows"}
    assert torch.equal(fetch(mail, 1, 0)["rows"], rows)
    assert torch.equal(fetch(mail, 2, 1)["points"], points + 1)
    assert set(deliver(mail, 0, (1, 2))) == {"1>0.points", "1>0.rows"}
    assert deliver(mail, 0, (2,)) == deliver(mail, 2, (0, 1)) == {}
    assert fetch(mail, 0, 1) == fetch(mail, 1, 2) == fetch(mail, 11, 0) == {}


def test_ledger_by_hand() -> None:
    reserve = {"0>.points": torch.empty(4, 1, 2, 3), "1>.points": torch.empty(5, 1, 2, 3)}
    mail = post([(0, {">1.points": torch.empty(2, 1, 2, 3)}), (2, {">0.points": torch.empty(9, 1, 2, 3)})])
    ledger = make_ledger(PATH, reserve, mail, torch.empty(1, 2, 3, dtype=torch.uint8))
    links = list(zip(ledger["senders"].tolist(), ledger["receivers"].tolist(), strict=True))
    assert links == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert ledger["pushed"].tolist() == [4, 5, 5, 0]
    assert ledger["pulled"].tolist() == [2, 0, 0, 0]
    assert ledger["bytes"].tolist() == [36, 30, 30, 0]


def test_ledger_of_lonely_devices_is_empty() -> None:
    assert all(len(column) == 0 for column in make_ledger(DeviceGraph(2, ()), {}, {}, torch.empty(0)).values())
