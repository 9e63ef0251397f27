"""Verdicts on claims as text: one line, a row of a table, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.studies.claims import Unit
from unisono.studies.tables import TextTable
from unisono.studies.verdicts import Verdict, Word

DIGITS: dict[Unit, int] = {"classes": 2, "share": 4, "R": 2, "log ratio": 2}
"""Digits behind the point; one for other units."""
ENDINGS: dict[Unit, str] = {
    "rounds": " rounds",
    "steps": " steps",
    "classes": " classes",
    "percent of minus": "%",
    "log ratio": " (log ratio)",
}
HEADS = ("claim", "paper", "ours (95% interval)", "seeds", "verdict")
SMALL_PRINT = (
    "Differences are paired by seed and in points where no unit is said. A claim holds if p is below 0.05 after Holm over "
    "the headline and main claims of this table; minor claims have plain p-values. 'Could see' is the smallest true effect "
    "that as many seeds would have shown with a chance of 80%."
)


def effect(value: float, unit: Unit, ending: bool = True) -> str:
    """Return an effect with its sign and, unless it is in points, its unit."""
    text = f"{value:+.{DIGITS.get(unit, 1)}f}"
    return text + (ENDINGS.get(unit, "") if ending else "")


def paper_effect(verdict: Verdict) -> str:
    """Return the effect that the paper reports, and the numbers that it comes from."""
    claim = verdict.claim
    if claim.paper_effect.value is None:
        return claim.paper_effect.source
    return f"{effect(claim.paper_effect.value, claim.unit)} ({claim.paper_effect.source})"


def our_effect(verdict: Verdict) -> str:
    """Return the effect that was measured, with its interval; empty where there is none."""
    difference, unit = verdict.difference, verdict.claim.unit
    if difference is None or difference.mean is None or difference.interval is None:
        return ""
    low, high = (effect(end, unit, ending=False) for end in difference.interval)
    text = f"{effect(difference.mean, unit)} ({low} to {high})"
    return f"{text}, {verdict.label}" if verdict.label else text


def verdict_words(verdict: Verdict) -> str:
    """Return the verdict in words, with the reason where there is one."""
    if verdict.word is Word.not_run:
        return "not run at this scale" + (f": {verdict.reason}" if verdict.reason else "")
    if verdict.word is Word.void:
        return f"void: {verdict.reason}"
    if verdict.word is Word.undecided and verdict.could_see is not None:
        seen = f"{verdict.could_see:.{DIGITS.get(verdict.claim.unit, 1)}f}{ENDINGS.get(verdict.claim.unit, '')}"
        return f"undecided ({'a margin of ' if verdict.claim.expected == 'equal' else 'could see '}{seen})"
    return str(verdict.word)


def num_seeds(verdict: Verdict) -> str:
    """Return the number of seeds; empty where nothing was judged."""
    return "" if verdict.difference is None else str(verdict.difference.num_pairs)


def verdict_table(verdicts: Sequence[Verdict]) -> TextTable:
    """Return a table of verdicts, a row per claim."""
    rows = [
        [verdict.claim.text, paper_effect(verdict), our_effect(verdict), num_seeds(verdict), verdict_words(verdict)]
        for verdict in verdicts
    ]
    return TextTable(HEADS, rows, num_names=len(HEADS))


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON, for other programs."""
    difference = verdict.difference
    return {
        "claim": verdict.claim.id,
        "verdict": str(verdict.word),
        "reason": verdict.reason,
        "entry": verdict.label,
        "mean": None if difference is None else difference.mean,
        "interval": None if difference is None else difference.interval,
        "seeds": None if difference is None else difference.num_pairs,
        "p": verdict.p,
        "could_see": verdict.could_see,
        "unit": verdict.claim.unit,
    }
