"""The wire format keeps every bit, and damaged bytes are told apart from whole ones."""

import copyreg
import json
import pickle
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.payloads import PAYLOADS, same
from unisono.core.payload import Payload
from unisono.core.wire import ALIGNMENT, CHECKSUM, checksum, from_bytes, lay_out, read, to_bytes, write


@given(PAYLOADS)
@settings(max_examples=120)
def test_bytes_round_trip_bit_for_bit(payload: Payload) -> None:
    data = to_bytes(payload)
    back = from_bytes(data)
    assert same(payload, back)
    assert to_bytes(back) == data


def test_scalars_keep_their_types() -> None:
    scalars = {"b": True, "i": 1, "f": 1.0, "tiny": 5e-324, "big": 2**80, "s": "\u00e4\n"}
    back = from_bytes(to_bytes(Payload(scalars=scalars))).scalars
    assert back == scalars
    assert [type(value) for value in back.values()] == [type(value) for value in scalars.values()]


def test_a_group_without_tensors_survives() -> None:
    assert from_bytes(to_bytes(Payload({"identity": {}, "a": {"w": torch.ones(1)}, "last": {}}))).groups.keys() == {
        "identity",
        "a",
        "last",
    }


def test_tensors_with_gradients_cross_without_them() -> None:
    back = from_bytes(to_bytes(Payload({"a": {"w": torch.ones(2, requires_grad=True)}})))
    assert not back.groups["a"]["w"].requires_grad


def test_what_comes_back_may_be_written_to() -> None:
    data = to_bytes(Payload({"a": {"w": torch.ones(2), "v": torch.ones(2)}}))
    back = from_bytes(data)
    back.groups["a"]["w"].zero_()
    assert back.groups["a"]["v"].tolist() == [1, 1]
    assert from_bytes(data).groups["a"]["w"].tolist() == [1, 1]


def test_read_gives_views_of_the_buffer() -> None:
    payload = Payload({"a": {"w": torch.ones(3), "b": torch.tensor(7)}})
    layout = lay_out(payload)
    buffer = torch.zeros(layout.num_bytes + 10, dtype=torch.uint8)
    write(payload, layout, buffer)
    seen = read(layout, buffer)
    buffer.zero_()
    assert seen.groups["a"]["w"].tolist() == [0, 0, 0]


def test_places_are_aligned_and_apart() -> None:
    layout = lay_out(Payload({"a": {"x": torch.zeros(1), "y": torch.zeros(17), "none": torch.zeros(0), "z": torch.zeros(2)}}))
    assert [slot.offset for slot in layout.slots.values()] == [0, ALIGNMENT, 3 * ALIGNMENT, 3 * ALIGNMENT]
    assert layout.num_bytes == 4 * ALIGNMENT


def test_a_type_without_a_place_on_the_wire_is_named() -> None:
    with pytest.raises(ValueError, match="a/w has type complex64"):
        to_bytes(Payload({"a": {"w": torch.zeros(2, dtype=torch.complex64)}}))


@given(PAYLOADS, st.data())
@settings(max_examples=60)
def test_cut_bytes_are_refused(payload: Payload, data: st.DataObject) -> None:
    whole = to_bytes(payload)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="payload"):
        from_bytes(whole[:length])
    with pytest.raises(ValueError, match="payload"):
        from_bytes(whole + b"\0")


@given(PAYLOADS, st.data())
@settings(max_examples=150)
def test_a_damaged_header_is_a_value_error_or_reads_as_a_payload(payload: Payload, data: st.DataObject) -> None:
    whole = bytearray(to_bytes(payload))
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        damaged = bytes(whole[:-CHECKSUM])
        assert isinstance(from_bytes(damaged + checksum(damaged)), Payload)


@given(PAYLOADS, st.data())
@settings(max_examples=60)
def test_a_flipped_bit_anywhere_is_found(payload: Payload, data: st.DataObject) -> None:
    whole = bytearray(to_bytes(payload))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="payload"):
        from_bytes(bytes(whole))


GOOD = {"slots": {"a/w": ["float32", [2], 0, 8]}, "scalars": {}, "num_bytes": 64, "groups": ["a"]}


@pytest.mark.parametrize(
    "change",
    [
        {"slots": []},
        {"slots": {"w": ["float32", [2], 0, 8]}},
        {"slots": {"a/w": ["float33", [2], 0, 8]}},
        {"slots": {"a/w": ["float32", [3], 0, 8]}},
        {"slots": {"a/w": ["float32", [2], -64, 8]}},
        {"slots": {"a/w": ["float32", [2], 60, 8]}},
        {"slots": {"a/w": ["float32", [2], 2, 8]}},
        {"slots": {"a/w": ["float32", [-2, -1], 0, 8]}},
        {"slots": {"a/w": ["float32", [0, 10**30], 0, 0]}},
        {"slots": {"a/w": ["float32", [2]]}},
        {"slots": {"a/w": ["float32", [2], 0, 8], "a/v": ["float32", [2], 4, 8]}},
        {"slots": {f"a/{name}": ["uint8", [64], 0, 64] for name in range(3)}},
        {"scalars": [1]},
        {"scalars": {"x": None}},
        {"scalars": {"x": float("nan")}},
        {"num_bytes": "64"},
        {"groups": ["a/b"]},
        {"groups": 3},
    ],
)
def test_headers_that_contradict_themselves_are_refused(change: dict[str, object]) -> None:
    def packed(header: dict[str, object]) -> bytes:
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + bytes(64)
        return data + checksum(data)

    assert from_bytes(packed(GOOD)).groups["a"]["w"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="payload"):
        from_bytes(packed({**GOOD, **change}))


def test_pickle_uses_the_wire_format() -> None:
    payload = Payload({"a": {"w": torch.randn(3, 3).T, "e": torch.zeros(0)}, "empty": {}}, {"n": 1})
    function, arguments = copyreg.dispatch_table[Payload](payload)  # type: ignore[index]
    assert function is from_bytes
    assert arguments == (to_bytes(payload),)
    data = pickle.dumps({"inside": payload})
    assert same(pickle.loads(data)["inside"], payload)
