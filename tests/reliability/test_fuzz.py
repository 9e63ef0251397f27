"""A sample of ``make fuzz``, and everything that once broke a reader."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from reliability.fuzz import CORPUS, Fuzzed, fuzz_memory, fuzz_one, mutated, replay, try_input
from reliability.readers import NAMES, Target


@pytest.mark.parametrize("name", NAMES)
def test_readers_refuse_in_a_sentence(name: str) -> None:
    fuzzed = fuzz_one(name, 150, seed=1)
    assert fuzzed.failures == []
    assert fuzzed.refused > 50


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*/*")), ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_once_broke_a_reader(file: Path) -> None:
    assert replay(file.parent.name, file.read_bytes()).failures == []


def test_no_message_takes_more_than_twice_its_limit() -> None:
    fuzzed = fuzz_memory(8 * 2**20)
    assert fuzzed.failures == []
    assert (fuzzed.refused, fuzzed.read) == (6, 1)


def test_a_crash_is_noticed() -> None:
    fuzzed = Fuzzed("x")
    target = Target(lambda data: data[3], [b"1234"], (ValueError,))
    try_input(target, b"12", fuzzed)
    try_input(target, b"1234", fuzzed)
    assert (fuzzed.read, fuzzed.refused) == (1, 0)
    assert "IndexError" in fuzzed.failures[0][1]


def test_inputs_are_changed_by_the_seed_alone() -> None:
    import random

    good = bytes(range(200))
    changed = [mutated(good, random.Random(seed), good) for seed in range(20)]
    assert changed == [mutated(good, random.Random(seed), good) for seed in range(20)]
    assert sum(data != good for data in changed) > 15
