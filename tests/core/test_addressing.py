"""Names that tell who sends a tensor and who may read it."""

from __future__ import annotations

import pytest
import torch

from unisono.core.addressing import Address, address, by_sender, parse


@pytest.mark.parametrize("sender", [None, 0, 12])
@pytest.mark.parametrize("receiver", [None, 0, 345])
@pytest.mark.parametrize("name", ["points", "encoder/conv1.weight", "7", "a>b.c", "3>5.x"])
def test_what_is_addressed_can_be_read_back(sender: int | None, receiver: int | None, name: str) -> None:
    assert parse(address(receiver, name, sender=sender)) == Address(name, sender, receiver)


@pytest.mark.parametrize("name", ["points", "5.points", "a>5.points", "5>", "-1>2.points", "encoder/conv1.weight"])
def test_other_names_have_no_address(name: str) -> None:
    assert parse(name) == Address(name)


def test_tensors_by_sender_are_in_ascending_order() -> None:
    tensors = {"10>.a": torch.tensor(1), "2>.a": torch.tensor(2), "2>.b": torch.tensor(3)}
    found = by_sender(tensors)
    assert list(found) == [2, 10]
    assert {sender: set(named) for sender, named in found.items()} == {2: {"a", "b"}, 10: {"a"}}
    with pytest.raises(ValueError, match=r"'>4\.a' does not name its sender"):
        by_sender({">4.a": torch.tensor(1)})
