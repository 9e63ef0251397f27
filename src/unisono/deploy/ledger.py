"""The lifetime ledger of a client: every request that it has begun to answer, over all runs, and what that has cost.

A line is on the disk before the work begins, so an answer that is lost, a failure and a crash all count as given.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.deploy.chain import Chain, DamagedChainError, Line
from unisono.deploy.directories import ClientDirectory
from unisono.privacy.accountant import gaussian_epsilon
from unisono.runs.files import write_atomically

Kind = Literal["describe", "train", "evaluate"]
ANSWERS = ("train", "evaluate")
LEDGER = "ledger.jsonl"
FIRST_KEY = "first.pub"
"""The client's first public key, kept when it gets another: chains name it in their first line."""


@dataclass(frozen=True)
class Release:
    """Noise and privacy loss of one answer.

    Args:
        noise: this client's own noise in units of the clipping norm; 0 for none.
        local_epsilon: of centroids with noise of their own, by the recipe; 0 for none.
        local_delta: theirs.
    """

    noise: float = 0.0
    local_epsilon: float = 0.0
    local_delta: float = 0.0


class Ledger:
    """Every request that this client has begun to answer.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self.chain = open_chain(directory, LEDGER)

    @property
    def intents(self) -> list[Line]:
        """The lines that were written before an answer was computed."""
        return [line for line in self.chain.lines if line.get("result") == "intent"]

    def begin(self, entry: dict[str, Any]) -> int:
        """Write that a request is about to be answered, and return the number of the line."""
        return int(self.chain.append({**entry, "result": "intent"})["seq"])

    def end(
        self, intent: int, result: Literal["sent", "failed", "refused"], sent: int = 0, points: Mapping[str, int] | None = None
    ) -> None:
        """Write how it ended.

        Args:
            intent: the number that ``begin`` returned.
            result: what became of it.
            sent: bytes that leave.
            points: samples that go to peers, by their number.
        """
        line = self.chain.lines[intent]
        more = {"points": dict(points)} if points else {}
        self.chain.append({"kind": line["kind"], "run": line["run"], "intent": intent, "result": result, "bytes": sent, **more})

    def attempts(self, run: str, kind: Kind, round: int | None, phase: str) -> int:
        """Return how often this was asked for; in all rounds where None."""
        lines = [line for line in self.intents if (line["run"], line["kind"], line.get("phase")) == (run, kind, phase)]
        return sum(round is None or line.get("round") == round for line in lines)

    def models(self, run: str, kind: Kind, round: int) -> set[str]:
        """Return the hashes of the models that were sent with this question."""
        wanted = (run, kind, round)
        return {str(e["model"]) for e in self.intents if (e["run"], e["kind"], e.get("round")) == wanted and e.get("model")}

    def failures(self, run: str) -> int:
        """Return how often a request of a run failed here."""
        return sum(line.get("result") == "failed" and line["run"] == run for line in self.chain.lines)

    def spec(self, run: str) -> str | None:
        """Return the hash of the specification under which a run was first seen; None for a new run."""
        return next((line["spec"] for line in self.intents if line["run"] == run and line.get("spec")), None)

    def reveal(self, run: str, round: int, phase: str, survivors: Sequence[int]) -> None:
        """Write that this client lets the server take the masks off the sum over these clients."""
        place = {"run": run, "round": round, "phase": phase}
        self.chain.append({"kind": "reveal", **place, "result": "revealed", "survivors": list(survivors)})

    def revealed(self, run: str, round: int, phase: str) -> list[int] | None:
        """Return the clients of the sum that was revealed in a phase; None if there is none."""
        for line in self.chain.lines:
            if line.get("kind") == "reveal" and (line["run"], line["round"], line["phase"]) == (run, round, phase):
                return [int(client) for client in line["survivors"]]
        return None

    def runs(self, recipe: str | None = None) -> set[str]:
        """Return the runs that were answered, or those of one recipe."""
        answers = [line for line in self.intents if line["kind"] in ANSWERS]
        earlier = {str(run) for line in self._resets if recipe is None for run in line["runs"]}
        return {str(line["run"]) for line in answers if recipe is None or line.get("recipe") == recipe} | earlier

    def sizes(self) -> set[str]:
        """Return the image sizes and channels for which statistics were told."""
        return {str(line["size"]) for line in self.intents if line["kind"] == "describe"}

    def descriptions(self, since: datetime) -> int:
        """Return how often statistics were told since a time."""
        return sum(e["kind"] == "describe" and datetime.fromisoformat(e["time"]) > since for e in self.intents)

    def points(self, peer: int) -> int:
        """Return how many samples went to a peer."""
        return sum(int(line.get("points", {}).get(str(peer), 0)) for line in self.chain.lines)

    @property
    def rounds(self) -> int:
        """Number of answers begun."""
        return sum(line["kind"] in ANSWERS for line in self.intents) + sum(int(line["rounds"]) for line in self._resets)

    @property
    def _resets(self) -> list[Line]:
        return [line for line in self.chain.lines if line.get("kind") == "reset"]

    def epsilon(self, delta: float, more: Release | None = None) -> float:
        """Return the privacy loss of this client by its own noise on all updates: infinite as soon as one left without.

        Args:
            delta: at which it is stated.
            more: what another answer would let out.
        """
        spent = sum(float(line["spent_epsilon"]) for line in self._resets)
        noise = [float(line["noise"]) for line in self.intents if line["kind"] == "train"]
        noise += [] if more is None else [more.noise]
        return spent + gaussian_epsilon(Counter(noise), delta)

    @property
    def centroid_epsilon(self) -> tuple[float, float]:
        """Epsilon and delta of one sample by all noisy centroids that left, simply added up."""
        lines = [line for line in self.intents if line.get("local_epsilon")]
        return sum(float(e["local_epsilon"]) for e in lines), sum(float(e["local_delta"]) for e in lines)


def open_chain(directory: ClientDirectory, name: str) -> Chain:
    """Return a chained file of a client; raise a UserError that says what to do about a damaged one."""
    file = directory.path / name
    try:
        return Chain(file, _start(directory))
    except DamagedChainError as error:
        remedy = (
            f"unisono deploy ledger {directory.path} --reset --spent-epsilon X"
            if name == LEDGER
            else f"mv {file} {file}.damaged"
        )
        raise UserError(f"{error} Restore it from a copy, or begin a new one with '{remedy}'.") from error


def reset_ledger(directory: ClientDirectory, spent_epsilon: float) -> Path:
    """Put a damaged ledger aside, begin a new one that counts what can be read of the old, and return where the old one is.

    Args:
        directory: the client's.
        spent_epsilon: privacy loss that counts as spent, in place of what the old ledger says.
    """
    if not spent_epsilon >= 0:
        raise UserError(f"--spent-epsilon must be at least 0, got {spent_epsilon}.")
    file = directory.path / LEDGER
    if not file.is_file():
        raise UserError(f"There is no {file}: nothing was given yet.")
    content = file.read_bytes()
    rounds, runs, points = 0, set(), Counter[str]()
    for text in content.splitlines():
        try:
            line = parse_json(text)
            answered = line["kind"] in ANSWERS and line["result"] == "intent"
            rounds += answered + int(line.get("rounds", 0))
            runs |= {*([str(line["run"])] if answered else []), *line.get("runs", [])}
            points.update(line.get("points", {}))
        except (ValueError, LookupError, TypeError, AttributeError):
            rounds += 1  # a line that nobody can read counts as an answer
    entry = {
        "kind": "reset", "spent_epsilon": spent_epsilon, "rounds": rounds, "runs": sorted(runs), "points": dict(points),
        "old": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip
    return Chain.aside(file, _start(directory), entry)


def keep_first_key(path: Path) -> None:
    """Keep the public key that ledger and audit began with, before another takes its place.

    Args:
        path: the client's directory.
    """
    if (path / "node.pub").is_file() and not (path / FIRST_KEY).is_file():
        write_atomically(path / FIRST_KEY, (path / "node.pub").read_bytes())


def _start(directory: ClientDirectory) -> bytes:
    files = (directory.path / name for name in (FIRST_KEY, "node.pub"))
    return next((file.read_bytes() for file in files if file.is_file()), b"")
