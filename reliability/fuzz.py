"""Damaged and forged bytes for everything that reads what others wrote: refused in a sentence, without a crash or much memory.

Every input is a good one, changed at random; half of the changed messages get a right checksum again, as a forger would give
them. An input that breaks something is kept, and replayed by the test suite from then on.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import random
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from unisono.config import resolve
from unisono.core.config import read_toml
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.core.wire import CHECKSUM, checksum, from_bytes, to_bytes
from unisono.data.sources.images import read_image
from unisono.deploy.init import create_federation
from unisono.deploy.sealing import Sealer
from unisono.engines.flower.messages import payload_of, read_answer, read_request, with_checksum
from unisono.recipes import list_recipes
from unisono.runs.files import JsonLines, payload_from_safetensors, payload_to_safetensors
from unisono.runs.manifest import MANIFEST_FILE, Manifest

SECONDS = 10
"""An input that takes longer counts as a hang."""
LIMIT = 2**20
"""Bytes of a message that readers are told to read at most."""
NOISE, PICTURES = 32 * 2**20, 256 * 2**20
"""Bytes that a process grows by in thousands of inputs, and that pictures may take, which Pillow limits."""
ODD = (b"1e999", b"null", b'"x"', b"[]")
CORPUS = Path(__file__).parents[1] / "tests" / "reliability" / "corpus"


@dataclass(frozen=True)
class Target:
    """A reader, good inputs for it, and the errors that it may raise.

    Args:
        read: reads an input.
        good: inputs that it can read.
        errors: its way to refuse one.
        repair: makes a changed input look right, as a forger would.
        memory: bytes that it may take beyond what it had: twice the limit of a message.
    """

    read: Callable[[bytes], object]
    good: list[bytes]
    errors: tuple[type[Exception], ...]
    repair: Callable[[bytes], bytes] = lambda data: data
    memory: int = 2 * LIMIT + NOISE


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


def targets(scratch: Path) -> dict[str, Callable[[], Target]]:
    """Return what is fuzzed, by name; good inputs are made when one is chosen."""
    return {
        "wire": _wire,
        "answer": _answer,
        "request": _request,
        "safetensors": _safetensors,
        "manifest": lambda: _manifest(scratch),
        "log": lambda: _log(scratch),
        "toml": lambda: _toml(scratch),
        "images": lambda: _images(scratch),
        "sealed": lambda: _sealed(scratch),
    }


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


def _payload() -> Payload:
    generator = torch.Generator().manual_seed(0)
    encoder = {"weight": torch.randn(8, 4, generator=generator), "steps": torch.tensor(3)}
    return Payload({"encoder": encoder, "bytes": {"x": torch.arange(40, dtype=torch.uint8)}}, {"loss": 1.5, "name": "a"})


def _with_checksum(data: bytes) -> bytes:
    return data[:-CHECKSUM] + checksum(data[:-CHECKSUM])


def _wire() -> Target:
    good = [to_bytes(_payload()), to_bytes(Payload()), to_bytes(Payload(scalars={"x": 1}))]
    return Target(from_bytes, good, (ValueError,), _with_checksum)


def _answer() -> Target:
    told = {"client": 1, "weight": 4.0, "metrics": {"loss": 0.5}, "samples": 4, "seconds": 0.1, "owner": {}}
    ctx, received = Context(0, 0, "train", 1), _payload()

    def read(data: bytes) -> object:
        text, _, update = data.partition(b"\n")
        content = RecordDict(
            {
                "answer": ConfigRecord({"answer": text.decode("utf-8", "replace")}),
                "update": ConfigRecord({"payload": update}),
            }
        )
        return read_answer(with_checksum(content), received, ctx, LIMIT)

    def repair(data: bytes) -> bytes:
        text, _, update = data.partition(b"\n")
        return text + b"\n" + _with_checksum(update)

    return Target(read, [json.dumps(told).encode() + b"\n" + to_bytes(_payload())], (ClientError,), repair)


def _request() -> Target:
    place = {"seed": 0, "round": 0, "phase": "train", "client": 1}

    def read(data: bytes) -> object:
        text, _, broadcast = data.partition(b"\n")
        records = {
            "place": ConfigRecord({"place": text.decode("utf-8", "replace"), "extra": "{}"}),
            "terms": ConfigRecord({"terms": "{}"}),
            "broadcast": ConfigRecord({"payload": broadcast}),
        }
        return payload_of(RecordDict(records), "broadcast", LIMIT), read_request(with_checksum(RecordDict(records)))

    errors = (ValueError, LookupError, TypeError)  # a client's handler turns all of them into a sentence
    return Target(read, [json.dumps(place).encode() + b"\n" + to_bytes(_payload())], errors)


def _safetensors() -> Target:
    return Target(payload_from_safetensors, [payload_to_safetensors(_payload())], (ValueError,))


def _manifest(scratch: Path) -> Target:
    (scratch / "config.toml").write_text("format = 1\n")
    manifest = Manifest(scratch)
    manifest.record(["config.toml"])
    good = (scratch / MANIFEST_FILE).read_bytes()

    def read(data: bytes) -> object:
        (scratch / MANIFEST_FILE).write_bytes(data)
        return manifest.names(), manifest.problem("config.toml"), manifest.data

    def repair(data: bytes) -> bytes:
        try:
            values = json.loads(data)
            (scratch / MANIFEST_FILE).unlink(missing_ok=True)
            manifest._write(values)
            return (scratch / MANIFEST_FILE).read_bytes()
        except Exception:
            return data

    return Target(read, [good], (UserError,), repair)


def _log(scratch: Path) -> Target:
    log = JsonLines(scratch / "metrics.jsonl")
    for round in range(5):
        log.append({"round": round, "loss": 0.5, "knn": None, "names": ["a", "b"]})
    good = log.path.read_bytes()

    def read(data: bytes) -> object:
        log.path.write_bytes(data)
        try:
            return log.read()
        finally:
            log.append({"round": 9})
            log.repair(len(data))
            if log.read() is None:
                raise AssertionError("a repaired log can be read")

    return Target(read, [good], (UserError,))


def _toml(scratch: Path) -> Target:
    recipes = [path.read_bytes() for path in list_recipes().values()]

    def read(data: bytes) -> object:
        (scratch / "recipe.toml").write_bytes(data)
        return resolve({name: part for name, part in read_toml(scratch / "recipe.toml").items() if name != "recipe"})

    good = []
    for recipe in recipes:
        with suppress(UserError):  # one that builds on another
            read(recipe)
            good.append(recipe)
    return Target(read, good, (UserError,))


def _images(scratch: Path) -> Target:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    good = []
    for kind, array in (("PNG", pixels), ("JPEG", pixels), ("BMP", pixels), ("TIFF", pixels), ("PNG", pixels[..., 0])):
        sink = io.BytesIO()
        Image.fromarray(array).save(sink, kind)
        good.append(sink.getvalue())
    file = scratch / "image.png"

    def read(data: bytes) -> object:
        file.write_bytes(data)
        return read_image(file, 3, (8, 8))

    return Target(read, good, (UserError,), memory=PICTURES)


def _sealed(scratch: Path) -> Target:
    create_federation(scratch / "federation", 2)
    clients = [scratch / "federation" / f"client-{number}" for number in range(2)]
    keys = {number: (path / "node.pub").read_text().strip() for number, path in enumerate(clients)}
    first, second = (Sealer(number, next(path.glob("*.key")), keys) for number, path in enumerate(clients))
    sealed = first.seal(torch.randn(4, 3), [1], "here")

    def read(data: bytes) -> object:
        return second.open(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8), 0, "here")

    return Target(read, [bytes(sealed.numpy())], (ValueError,))


NAMES = ("wire", "answer", "request", "safetensors", "manifest", "log", "toml", "images", "sealed")


def fuzz(number: int = 12_000, jobs: int = 2) -> int:
    """Fuzz every reader with so many inputs, keep what broke one, and return the exit code."""
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        results = pool.starmap(fuzz_one, [(name, number) for name in NAMES], chunksize=1)
    for result in results:
        print(result.line())
        for data, reason in result.failures[:20]:
            file = CORPUS / result.name / hashlib.sha256(data).hexdigest()[:16]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            print(f"  {file.name}: {reason}")
    print(f"{number * len(NAMES)} inputs, {sum(len(result.failures) for result in results)} failures")
    return 1 if any(result.failures for result in results) else 0
