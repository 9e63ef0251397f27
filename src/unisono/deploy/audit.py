"""The list of everything that left a client, ``audit.jsonl``: a chain, so that a line that was removed is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import open_chain
from unisono.deploy.policy_tables import canonical


class Audit:
    """Lines about what left a client.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self.chain = open_chain(directory, directory.config.log.audit)
        self._policy = directory.config.fingerprint

    def sent(self, intent: Mapping[str, Any], payload: Payload, values: Mapping[str, Any], masked: bool = False) -> int:
        """Write down what leaves, before it does, and return its size in bytes.

        Args:
            intent: the line of the ledger.
            payload: the tensors.
            values: the numbers beside them: metrics, scores, or a description.
            masked: whether averaged groups are masked.
        """
        groups, size = {}, len(canonical(dict(values)))
        for name, tensors in payload.groups.items():
            content = to_bytes(Payload({name: tensors}))
            dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
            numbers = sum(tensor.numel() for tensor in tensors.values())
            groups[name] = [",".join(dtypes), numbers, hashlib.sha256(content).hexdigest()]
            size += len(content)
        place = {key: intent.get(key) for key in ("run", "round", "phase", "kind", "recipe", "cohort")}
        self.chain.append(
            {**place, "groups": groups, "values": dict(values), "bytes": size, "masked": masked, "policy": self._policy,
             "ledger": intent["seq"]}
        )  # fmt: skip
        return size
