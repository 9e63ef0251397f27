"""The list of everything that left a client, ``audit.jsonl``: a chain, so that a line that was removed is noticed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger, open_chain
from unisono.deploy.policy_tables import canonical


class Audit:
    """Lines about what left a client.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self.chain = open_chain(directory, directory.config.log.audit)
        self._policy = directory.config.fingerprint
        self._client_id = directory.config.client_id

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
             "ledger": intent["hash"]}
        )  # fmt: skip
        return size

    def verify(self, ledger: Ledger, against: Path | None = None) -> None:
        """Raise a UserError if lines are missing at the end, or if ledger or audit are older copies.

        A line that was changed, or removed before the last, was noticed when the file was read.

        Args:
            ledger: names every answer that was sent.
            against: the ``privacy.json`` of a run, which names the head of the ledger at the last answer.
        """
        listed = Counter(line.get("ledger") for line in self.chain.lines)
        for line in ledger.chain.lines:
            if line.get("result") != "sent":
                continue
            answer = ledger.chain.lines[line["intent"]]["hash"]
            listed[answer] -= 1  # of a masked sum two things leave, the vector after the card
            if listed[answer] < 0:
                raise UserError(
                    f"{self.chain.path} lacks the answer of {line['time']} (run {line['run']}), which the ledger has: lines "
                    "were removed, or an older copy was restored."
                )
        if against is None:
            return
        try:
            number, head = parse_json(against.read_bytes())["owners"][str(self._client_id)]["ledger"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"--against must be the privacy.json of a run with answers of this client, got {against}."
            ) from error
        if number > len(ledger.chain.lines) or ledger.chain.lines[number - 1]["hash"] != head:
            raise UserError(
                f"{against} knows line {number} of the ledger as {head[:16]}, and this ledger has "
                f"{'another' if number <= len(ledger.chain.lines) else 'fewer lines'}: an older copy was restored, or a reset."
            )

    def sentence(self, line: Mapping[str, Any]) -> str:
        """Return a line as people read it."""
        if "groups" not in line:
            return f"{line['time']}  {line.get('kind')}"
        place = "" if line["round"] is None else f" round {line['round'] + 1} {line['phase']}"
        masked = f" masked among {len(line['cohort'])}" if line["masked"] and line["cohort"] else ""
        groups = [f"{name} {number:,} x {dtype} {digest[:12]}" for name, (dtype, number, digest) in line["groups"].items()]
        values = [f"{name} {value}" for name, value in line["values"].items()]
        run = "" if line["run"] is None else f" run {str(line['run'])[:12]}"
        return f"{line['time']} {line['kind']}{run}{place}{masked}: {'; '.join([*groups, *values])} ({line['bytes']:,} bytes)"
