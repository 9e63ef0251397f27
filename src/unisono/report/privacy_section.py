"""Section on privacy: what left the clients, and what is guaranteed about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.core.config import Tree
from unisono.report.blocks import Block, Series, facts, lines, prose, table

REDUCED = {"MEAN": "mean over clients", "STACK": "kept apart by client", "ROWS": "own row of a table, mean over clients"}
EPSILONS = {"epsilon": "model updates", "centroid_epsilon": "centroids"}
"""Names in ``privacy.jsonl``, and what each is spent on."""


def privacy_blocks(
    tree: Tree, about: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]], promises: Mapping[str, Any]
) -> list[Block]:
    """Return the declared shares, what is promised in words, and the epsilon spent over rounds and by client.

    Args:
        tree: the resolved config.
        about: ``report/about.json``; may be empty.
        ledger: ``privacy.jsonl``.
        promises: ``privacy.json``; may be empty.
    """
    centroids = promises.get("centroids", {})
    blocks = [prose(warning, tone="warning") for warning in promises.get("warnings", ())]
    if about.get("shares"):
        rows = [[group, REDUCED.get(reduce, reduce.lower()), reveals.lower()] for group, reduce, reveals in about["shares"]]
        blocks.append(table("What leaves a client", ["group", "reduced to", "reveals"], rows, note=_consent(tree)))
    words = [("model updates", promises.get("model_updates", "")), ("centroids", centroids.get("statement", ""))]
    if any(text for _, text in words):
        blocks.append(facts("What is promised", words))
    elif not tree["privacy"]["noise_multiplier"]:
        blocks.append(prose("No noise is added to model updates, so they are not differentially private."))
    spent = _spent(ledger)
    blocks += [spent] if spent is not None else []
    by_client = centroids.get("epsilon_by_client")
    if by_client:
        epsilons: list[list[str | float]] = [[str(client), float(epsilon)] for client, epsilon in by_client.items()]
        blocks.append(table("Spent on centroids by each client", ["client", "epsilon"], epsilons))
    return blocks


def _spent(ledger: Sequence[Mapping[str, Any]]) -> Block | None:
    """Return epsilon over rounds; None where there is none to account for."""
    series, notes = [], []
    for key, what in EPSILONS.items():
        entries = [entry for entry in ledger if entry.get(key) is not None]
        if entries:
            series.append(Series(what, [entry["round"] + 1 for entry in entries], [entry[key] for entry in entries]))
            delta = entries[-1].get(key.replace("epsilon", "delta"))
            notes.append(f"{what.capitalize()}: at delta = {delta:g}." if delta is not None else "")
            missed = entries[-1].get("does_not_cover")
            notes.append(f"Not covered: {', '.join(missed)}." if missed else "")
    if not series:
        return None
    note = " ".join(filter(None, notes))
    return lines("Privacy spent", "round", "epsilon", series, note=note, from_zero=True, wide=True)


def _consent(tree: Tree) -> str:
    given = {"allow_raw_representations": "representations of single samples", "share_data": "samples"}
    allowed = [words for name, words in given.items() if tree["consent"].get(name)]
    if allowed:
        return f"The engine refuses anything else. Consent was given to send {' and '.join(allowed)}."
    return "The engine refuses anything else; no consent was given to send representations or samples."
