"""Approval of recipes by the owner of a client: what waits, what was decided, and whether a run may begin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Literal

from unisono import __version__
from unisono.config import Config
from unisono.core.config import parse_json
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.deploy.chain import Line
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger, open_chain
from unisono.deploy.policy_tables import canonical
from unisono.deploy.refusal import PENDING, RefusedError
from unisono.runs.files import write_atomically

Decision = Literal["approve", "deny"]
MOST_WAITING = 20
"""Recipes that are kept for the owner to look at; a server cannot fill the disk with more."""
SHOWN = 16
"""Digits of a hash that people read."""


def recipe_hash(config: Config) -> str:
    """Return SHA-256 of everything in a recipe that a client follows, and of the code that reads it; the seed is left out.

    Args:
        config: the run's, without "auto".
    """
    tree = {name: table for name, table in config.as_tree().items() if name not in ("run", "recipe")}
    return hashlib.sha256(canonical([tree, __version__, config.method_class.__module__])).hexdigest()


class Approvals:
    """The owner's decisions about recipes.

    Args:
        directory: the client's.
        today: the date.
    """

    def __init__(self, directory: ClientDirectory, today: Callable[[], date] = lambda: datetime.now(UTC).date()) -> None:
        self._directory = directory
        self._today = today
        self.chain = open_chain(directory, "approvals.jsonl")
        self._waiting = directory.path / "pending"

    def check(self, recipe: str, run: str | None, ledger: Ledger, config: Config, method: Method) -> None:
        """Refuse what the owner has not approved, and put it where the owner finds it.

        Args:
            recipe: its hash.
            run: names the run; None before it begins.
            ledger: tells which runs had a recipe.
            config: the run's.
            method: what is learnt.
        """
        mode = self._directory.config.allow.approve
        decision = self._decision(recipe)
        if decision is not None and decision["decision"] == "deny":
            raise RefusedError("the owner has denied this recipe.", "allow.approve")
        if mode == "always":
            return
        if decision is not None and self._today().isoformat() <= (decision["until"] or "9999"):
            begun = ledger.runs(recipe)
            limit = decision["runs"] or (1 if mode == "each" else None)
            if run in begun or limit is None or len(begun - set(decision["earlier"])) < limit:
                return
        self._ask(recipe, config, method)
        raise RefusedError(
            f"waits for its owner: unisono deploy approve {self._directory.path.name} {recipe[:SHOWN]}", code=PENDING
        )

    def waiting(self) -> list[dict[str, Any]]:
        """Return the recipes that wait, oldest first."""
        files = sorted(self._waiting.glob("*.json"), key=lambda file: file.stat().st_mtime)
        return [parse_json(file.read_text(encoding="utf-8")) for file in files]

    def decide(self, prefix: str, decision: Decision, runs: int | None = None, until: str | None = None) -> str:
        """Write a decision down, and return the whole hash.

        Args:
            prefix: the first digits of a hash that waits or was decided before.
            decision: the owner's.
            runs: so many runs; None as ``allow.approve`` says.
            until: last day, as 2027-01-31; None without end.
        """
        if until is not None:
            try:
                date.fromisoformat(until)
            except ValueError as error:
                raise UserError(f"--until must be a day such as 2027-01-31, got {until!r}.") from error
        if runs is not None and runs < 1:
            raise UserError(f"--runs must be at least 1, got {runs}.")
        known = {str(entry["recipe"]) for entry in (*self.waiting(), *self.chain.lines) if "recipe" in entry}
        found = sorted(recipe for recipe in known if recipe.startswith(prefix)) if prefix else []
        if len(found) != 1:
            listed = ", ".join(sorted(recipe[:SHOWN] for recipe in known)) or "none"
            raise UserError(f"{prefix!r} begins {len(found) or 'no'} recipe{'s' * (len(found) != 1)}. Known: {listed}.")
        earlier = sorted(Ledger(self._directory).runs(found[0]))
        entry = {"kind": "decision", "recipe": found[0], "decision": decision, "runs": runs, "until": until, "earlier": earlier}
        self.chain.append(entry)
        file = self._waiting / f"{found[0]}.json"
        if file.exists() and decision == "approve":
            write_atomically(self._directory.path / "approved.json", file.read_bytes())
        file.unlink(missing_ok=True)
        return found[0]

    def differences(self, config: dict[str, Any]) -> list[str]:
        """Return the options in which a recipe differs from the one that was approved last, one line each.

        Args:
            config: the recipe as a tree.
        """
        file = self._directory.path / "approved.json"
        if not file.is_file():
            return []
        before, now = _flat(parse_json(file.read_text(encoding="utf-8"))["config"]), _flat(config)
        changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        return [f"{name}: {before.get(name)} -> {now.get(name)}" for name in changed]

    def _decision(self, recipe: str) -> Line | None:
        self.chain.refresh()
        return next((line for line in reversed(self.chain.lines) if line.get("recipe") == recipe), None)

    def _ask(self, recipe: str, config: Config, method: Method) -> None:
        self._waiting.mkdir(mode=0o700, exist_ok=True)
        file = self._waiting / f"{recipe}.json"
        if file.exists() or len(list(self._waiting.glob("*.json"))) >= MOST_WAITING:
            return
        leaves = {group: [share.reveals.value, share.reduce.value] for group, share in method.shares.items()}
        entry = {
            "recipe": recipe,
            "method": config.method_name,
            "rounds": config.federation.rounds,
            "masked": config.privacy.secure_aggregation,
            "leaves": leaves,
            "config": config.as_tree(),
        }
        write_atomically(file, json.dumps(entry, indent=1).encode())


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every option by its path."""
    found: dict[str, str] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: json.dumps(value)}
    return found
