from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.core.payloads import tensors
from unisono.core.addressing import by_sender
from unisono.core.client_data import ClientData
from unisono.core.payload import Payload
from unisono.data.received import DataWithReceived, join_buffers, mail_form, make_buffer, usable_mail

SAMPLES = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 2, 2).contiguous()


def test_own_samples_come_first() -> None:
    data = DataWithReceived(SAMPLES, torch.tensor([7, 2, 4]), received=SAMPLES[[9, 8]])
    assert len(data) == 5
    batch = data.batch(torch.tensor([4, 0, 3, 2]))
    assert batch.shape == (4, 1, 2, 2)
    assert (batch[:, 0, 0, 0] * 255).round().tolist() == [8.0, 7.0, 9.0, 4.0]


def test_series_stay_as_they_are() -> None:
    samples = torch.randn(5, 2, 7)
    data = DataWithReceived(samples, torch.tensor([1]), received=samples[3:4])
    assert torch.equal(data.batch(torch.tensor([1, 0])), samples[[3, 1]])


def offer(*rows: int) -> dict[str, torch.Tensor]:
    return {"points": SAMPLES[list(rows)], "rows": torch.tensor(rows)}


def test_buffer_holds_all_offers() -> None:
    buffer = make_buffer({2: offer(1, 3), 5: offer(0)}, SAMPLES)
    assert buffer["senders"].tolist() == [2, 2, 5]
    assert buffer["rows"].tolist() == [1, 3, 0]
    assert buffer["points"][:, 0, 0, 0].tolist() == [1, 3, 0]


def test_no_offers_make_an_empty_buffer() -> None:
    buffer = make_buffer({}, SAMPLES)
    assert buffer["points"].shape == (0, 1, 2, 2)
    assert buffer["points"].dtype == torch.uint8
    assert len(buffer["rows"]) == len(buffer["senders"]) == 0


def test_joined_buffers_hold_a_point_once() -> None:
    old, new = make_buffer({1: offer(4, 6)}, SAMPLES), make_buffer({1: offer(6, 7), 2: offer(4)}, SAMPLES)
    joined = join_buffers(old, new)
    assert list(zip(joined["senders"].tolist(), joined["rows"].tolist(), strict=True)) == [(1, 4), (1, 6), (1, 7), (2, 4)]
    assert joined["points"][:, 0, 0, 0].tolist() == [4, 6, 7, 4]
    assert join_buffers(joined, make_buffer({}, SAMPLES))["rows"].tolist() == [4, 6, 7, 4]


@pytest.mark.parametrize(
    ("own", "sent", "reason"),
    [
        (torch.rand(3, 1, 2, 2), torch.rand(2, 1, 2, 2) - 0.5, "values beyond 0 to 1"),
        (torch.rand(3, 1, 2, 2), torch.full((2, 1, 2, 2), torch.nan), "values beyond 0 to 1"),
        (torch.rand(3, 1, 2, 2), torch.rand(2, 1, 2, 2).double(), "type torch.float64"),
        (torch.ones(3, 1, 4), torch.full((2, 1, 4), 10.1), "values beyond -10 to 10"),
        (torch.ones(3, 1, 4), torch.full((2, 1, 4), -torch.inf), "values beyond -10 to 10"),
        (SAMPLES, SAMPLES[:2].to(torch.uint16), "type torch.uint16"),
        (SAMPLES, SAMPLES[:6], "expected .* at most 5"),
        (SAMPLES, SAMPLES[:0], "is empty"),
    ],
)
def test_mail_must_be_like_ones_own_samples(own: Tensor, sent: Tensor, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    data = ClientData(own, torch.arange(2))
    forms = {"offers": mail_form(tuple(own.shape[1:]), 5, with_rows=True)}
    good = {"3>0.points": own[:2], "3>0.rows": torch.arange(2)}
    bad = {"4>0.points": sent, "4>0.rows": torch.arange(len(sent))}
    assert usable_mail(Payload({"offers": good}), forms, data) == (Payload({"offers": good}), {})
    found, metrics = usable_mail(Payload({"offers": {**bad, **good}, "other": {"x": own}}), forms, data)
    assert metrics == {"left_out.4": 1.0}
    assert (list(found.groups["offers"]), list(found.groups["other"])) == (list(good), ["x"])
    assert re.search(f"the mail of client 4 is left out: offers/points .*{reason}", caplog.text)


LIKELY = st.sampled_from([SAMPLES[:2], torch.ones(2, 1, 4), torch.full((2, 1, 4), torch.nan), torch.arange(2)])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["4>0.points", "4>0.rows", "4>.points", "4>0.x"]), LIKELY | tensors(), max_size=3),
    st.booleans(),
)
def test_no_mail_ends_a_clients_step(mail: dict[str, Tensor], is_image: bool) -> None:
    own = SAMPLES if is_image else torch.ones(3, 1, 4)
    data = ClientData(own, torch.arange(2))
    forms = {"offers": mail_form(tuple(own.shape[1:]), 5, with_rows=True)}
    found, metrics = usable_mail(Payload({"offers": mail}), forms, data)
    assert bool(metrics) == bool(mail and not found.groups["offers"])
    buffer = make_buffer(by_sender(found.groups["offers"]), own)
    assert (buffer["points"].dtype, buffer["points"].shape[1:]) == (own.dtype, own.shape[1:])
