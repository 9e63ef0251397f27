"""Damaged and forged bytes for everything that reads what others wrote: refused in a sentence, without a crash or much memory.

Every input is a good one, changed at random; half of the changed messages get a right checksum again, as a forger would give
them. An input that breaks something is kept, and replayed by the test suite from then on.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import random
import resource
import signal
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from reliability.readers import NAMES, Target, bombs, targets
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes

SECONDS = 10
"""An input that takes longer counts as a hang."""
ODD = (b"1e999", b"null", b'"x"', b"[]", b"[" * 5000)
CORPUS = Path(__file__).parents[1] / "tests" / "reliability" / "corpus"


@dataclass
class Fuzzed:
    """Result of a target.

    Args:
        name: of the target.
        refused: inputs that were refused.
        read: inputs that were read all the same.
        failures: inputs that broke something, with the last line of the traceback.
        memory: bytes that the process grew by.
    """

    name: str
    refused: int = 0
    read: int = 0
    failures: list[tuple[bytes, str]] = field(default_factory=list)
    memory: int = 0

    def line(self) -> str:
        """Return one line about it."""
        return (
            f"{self.name:12} {self.refused + self.read:7} inputs, {self.refused:7} refused, {self.read:6} read, "
            f"{len(self.failures)} failures, {self.memory / 2**20:.0f} MiB"
        )


def fuzz_one(name: str, number: int, seed: int = 0) -> Fuzzed:
    """Give a reader so many inputs."""
    rng = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="unisono-fuzz-") as scratch:
        target = targets(Path(scratch))[name]()
        for data in target.good:
            target.read(data)  # a good input is read, and what the reader imports is counted as its own
        result, before = Fuzzed(name), peak_memory()
        for _ in range(number):
            data = mutated(rng.choice(target.good), rng, rng.choice(target.good))
            try_input(target, target.repair(data) if rng.random() < 0.5 else data, result)
        result.memory = peak_memory() - before
        if result.memory > target.memory:
            result.failures.append((b"", f"it took {result.memory / 2**20:.0f} MiB"))
        return result


def fuzz_memory(limit: int = 32 * 2**20) -> Fuzzed:
    """Give the reader of payloads messages of a limit's size that are made to take memory; each may take twice as much."""
    result, most = Fuzzed("bombs"), 0
    from_bytes(to_bytes(Payload({"g": {"x": torch.ones(1)}})), of_others=True)
    target = Target(lambda data: from_bytes(data, of_others=True), [], (ValueError,))
    for name, data in bombs(limit):
        ctypes.CDLL(None).malloc_trim(0)  # else memory that earlier messages left is used again, and not seen
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
        before = high_water()
        try_input(target, data, result)
        most = max(most, high_water() - before)
        if high_water() - before > 2 * limit:
            result.failures.append((name.encode(), f"it took {(high_water() - before) / limit:.1f} times the limit"))
    result.memory = most
    return result


def high_water() -> int:
    """Return the most bytes that this process has had in memory since its peak was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def replay(name: str, data: bytes) -> Fuzzed:
    """Give a reader one input that broke something once."""
    with tempfile.TemporaryDirectory(prefix="unisono-fuzz-") as scratch:
        result = Fuzzed(name)
        try_input(targets(Path(scratch))[name](), data, result)
        return result


def try_input(target: Target, data: bytes, result: Fuzzed) -> None:
    """Let a reader read an input, and note what came of it."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow thinks of damaged pictures
            target.read(data)
        result.read += 1
    except target.errors:
        result.refused += 1
    except Exception as error:
        result.failures.append((data, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-2)}"))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def mutated(data: bytes, rng: random.Random, other: bytes) -> bytes:
    """Return the bytes with a few random changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place = rng.randrange(len(changed) + 1) if rng.random() < 0.5 else min(len(changed), rng.randrange(400))
        match rng.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                changed[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del changed[place : place + rng.randrange(1, 33)]
            case 4:
                del changed[place:]
            case 5:
                start = rng.randrange(len(other) + 1)
                changed[place : place + 16] = other[start : start + rng.randrange(64)]
            case 6:
                digits = [index for index, value in enumerate(changed[:4000]) if chr(value).isdigit()]
                if digits:
                    at = rng.choice(digits)
                    changed[at : at + 1] = rng.choice((b"-1", b"0", b"9" * rng.randrange(1, 25), *ODD))
    return bytes(changed)


def peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(number: int = 12_000, jobs: int = 2) -> int:
    """Fuzz every reader with so many inputs, keep what broke one, and return the exit code."""
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        results = [*pool.starmap(fuzz_one, [(name, number) for name in NAMES], chunksize=1), pool.apply(fuzz_memory)]
    for result in results:
        print(result.line())
        for data, reason in result.failures[:20]:
            file = CORPUS / result.name / hashlib.sha256(data).hexdigest()[:16]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            print(f"  {file.name}: {reason}")
    inputs, failures = (sum(counts) for counts in zip(*((r.refused + r.read, len(r.failures)) for r in results), strict=True))
    print(f"{inputs} inputs, {failures} failures")
    return 1 if failures else 0
