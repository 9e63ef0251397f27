"""The readers of foreign bytes that are fuzzed, with good inputs for each, and messages made to take memory."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from unisono.config import resolve
from unisono.core.config import read_toml
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.core.wire import CHECKSUM, MOST_HEADER, checksum, from_bytes, to_bytes
from unisono.data.sources.images import read_image
from unisono.deploy.init import create_federation
from unisono.deploy.sealing import Sealer
from unisono.engines.flower.messages import payload_of, read_answer, read_request, with_checksum
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import ServerState
from unisono.recipes import list_recipes
from unisono.runs.checkpoint import MANIFEST, Checkpoints, DamagedError
from unisono.runs.files import JsonLines, payload_from_safetensors, payload_to_safetensors
from unisono.runs.manifest import MANIFEST_FILE, Manifest

LIMIT = 2**20
"""Bytes of a message that readers are told to read at most."""
NOISE, PICTURES = 32 * 2**20, 256 * 2**20
"""Bytes that a process grows by in thousands of inputs, and that pictures may take, which Pillow limits."""


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


def targets(scratch: Path) -> dict[str, Callable[[], Target]]:
    """Return what is fuzzed, by name; good inputs are made when one is chosen."""
    return {
        "wire": _wire,
        "answer": _answer,
        "request": _request,
        "safetensors": _safetensors,
        "manifest": lambda: _manifest(scratch),
        "checkpoint": lambda: _checkpoint(scratch),
        "log": lambda: _log(scratch),
        "toml": lambda: _toml(scratch),
        "images": lambda: _images(scratch),
        "sealed": lambda: _sealed(scratch),
    }


def bombs(limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield messages of a limit's size whose headers describe far more than they hold, by name.

    Args:
        limit: bytes of each.
    """
    headers = {
        "lists": b'{"slots":[' + b"[]," * (limit // 3),
        "tables": b'{"slots":[' + b"{}," * (limit // 3),
        "numbers": b'{"slots":[' + b"1.1," * (limit // 4),
        "brackets": b"[" * limit,
        "tensors": b'{"slots":{' + b"".join(b'"g/%d":["float32",[0],0,0],' % number for number in range(limit // 32)),
        "scalars": b'{"scalars":{' + b"".join(b'"%d":1,' % number for number in range(limit // 12)),
    }
    ends = {"tensors": b'"g/x":["float32",[0],0,0]},"scalars":{},"num_bytes":0,"groups":[]}'}
    ends |= {"scalars": b'"x":1},"slots":{},"num_bytes":0,"groups":[]}', "brackets": b""}
    for name, header in headers.items():
        yield name, _message(header + ends.get(name, b"1]}"))
    short = b'{"slots":{' + b"".join(b'"g/%d":["float32",[0],0,0],' % number for number in range(MOST_HEADER // 36))
    body = limit - 2 * MOST_HEADER
    yield (
        "tensors beside numbers",
        _message(
            short + b'"g/x":["uint8",[%d],0,%d]},"scalars":{},"num_bytes":%d,"groups":[]}' % (body, body, body), bytes(body)
        ),
    )


def _message(header: bytes, body: bytes = b"") -> bytes:
    data = len(header).to_bytes(8, "little") + header + body
    return data + checksum(data)


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


def _checkpoint(scratch: Path) -> Target:
    store, checkpoints = ClientStateStore(), Checkpoints(scratch)
    store.stage(1, _payload())
    store.commit(2)
    checkpoints.save(ServerState(3, _payload(), Payload(), 2), store, {"metrics": 70, "clients": 900})
    file = scratch / "round-000003" / MANIFEST

    def read(data: bytes) -> object:
        file.write_bytes(data)
        return checkpoints.load(3, ClientStateStore())

    def repair(data: bytes) -> bytes:
        content = data.rpartition(b"\n")[0]
        return content + f"\n{zlib.crc32(content)}".encode()

    return Target(read, [file.read_bytes()], (DamagedError,), repair)


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


NAMES = ("wire", "answer", "request", "safetensors", "manifest", "checkpoint", "log", "toml", "images", "sealed")
