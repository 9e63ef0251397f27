"""Verdicts on claims by one rule.

With signs turned so that the expected side is up, and d the mean of the paired differences over n seeds:

- void: nothing was learnt that could tell (``voids``). not run: a cell is missing, or n < 3.
- holds: p of the paired t-test, after Holm, is below 0.05, and d > 0. holds by less: the same, but the 95% interval ends below
  the paper's effect (below the smallest interesting one where the paper has a picture only).
- does not hold: the 95% interval ends below the smallest interesting effect; reversed if it ends below 0.
- undecided: the rest, with the smallest effect that could have been seen.
- equality: holds if the 90% interval lies within the margin, does not hold if the 95% interval lies wholly outside.

Of a claim about several rivals each entry must pass: the largest p-value counts, and the weakest entry is reported. Holm
corrects the headline and main claims of a paper together, as far as they were run and are not void; claims of equality count
with the p-value of two one-sided tests. Minor claims have plain p-values. A correlation is judged by the interval of a
bootstrap over settings and is not among the corrected ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from unisono.studies.claims import ClaimConfig, ContrastConfig, Paper
from unisono.studies.contrasts import MissingError, UsedCell, contrast_entries, correlation_pairs, used_cells
from unisono.studies.correlation import correlation
from unisono.studies.numbers import Numbers
from unisono.studies.significance import ALPHA, LEAST_PAIRS, Difference, holm, margin_needed, summarise, t_interval
from unisono.studies.study import SCALES
from unisono.studies.voids import void_reason

RESAMPLES = 4000
"""Bootstrap samples of a correlation's settings."""
LEAST_SETTINGS = 4
"""Fewer settings say nothing about a correlation."""


class Word(StrEnum):
    """Verdicts."""

    holds = "holds"
    by_less = "holds by less"
    fails = "does not hold"
    reversed = "does not hold, reversed"
    undecided = "undecided"
    void = "void"
    not_run = "not run"


@dataclass(frozen=True)
class Measurement:
    """The outcome of a claim's contrast before the correction for many claims.

    Args:
        claim: the claim.
        scale: of the runs.
        word: void or not run; None where there is something to judge.
        reason: why it is void or was not run.
        differences: one for each entry, by its label, with the paper's sign; of a correlation its mean and interval.
        p: the largest p-value of the entries; None for a correlation.
    """

    claim: ClaimConfig
    scale: str
    word: Word | None = None
    reason: str = ""
    differences: Sequence[tuple[str, Difference]] = ()
    p: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim at one scale.

    Args:
        claim: the claim.
        scale: of the runs.
        word: the verdict.
        reason: why it is void or was not run; empty where the whole study was not run.
        label: the weakest entry of a claim about several.
        difference: of that entry.
        p: after the correction, plain for minor claims.
        could_see: the smallest effect that could have been seen.
    """

    claim: ClaimConfig
    scale: str
    word: Word
    reason: str = ""
    label: str = ""
    difference: Difference | None = None
    p: float | None = None
    could_see: float | None = None


def judge_paper(paper: Paper, numbers: Iterable[Numbers]) -> list[Verdict]:
    """Return a verdict for each claim at its own scale, and one for each other scale at which it was run.

    Verdicts at other scales than the claims' own are corrected among themselves.

    Args:
        paper: its claims.
        numbers: of studies at any scale.
    """
    by_scale: dict[str, dict[str, Numbers]] = {scale: {} for scale in SCALES}
    for one in numbers:
        by_scale[one.scale][one.study] = one
    own = [measure(claim, claim.scale, by_scale[claim.scale]) for claim in paper.claims]
    others = [measure(claim, scale, by_scale[scale]) for claim in paper.claims for scale in SCALES if scale != claim.scale]
    others = [one for one in others if one.word is not Word.not_run]
    verdicts = [*judge(own), *judge(others)]
    return [verdict for claim in paper.claims for verdict in verdicts if verdict.claim is claim]


def judge_study(papers: Iterable[Paper], numbers: Numbers) -> list[Verdict]:
    """Return verdicts on the claims that belong to a study, corrected among themselves.

    Args:
        papers: all claims.
        numbers: of the study at one scale.
    """
    claims = [claim for paper in papers for claim in paper.claims if claim.study == numbers.study]
    return judge([measure(claim, numbers.scale, {numbers.study: numbers}) for claim in claims])


def measure(claim: ClaimConfig, scale: str, studies: Mapping[str, Numbers]) -> Measurement:
    """Return the contrast of a claim, or why there is none.

    Args:
        claim: the claim.
        scale: of the numbers.
        studies: numbers of that scale, by study.
    """
    if claim.lacks:
        return Measurement(claim, scale, Word.not_run, claim.lacks)
    contrast = claim.contrast_at(scale)
    try:
        cells = used_cells(claim, scale, studies)
        if contrast.kind == "correlation":
            found = [("", _bootstrap(contrast, cells))]
        else:
            found = [(entry.label, summarise(list(entry.sample.values()))) for entry in contrast_entries(claim, scale, studies)]
    except MissingError as error:
        return Measurement(claim, scale, Word.not_run, str(error))
    fewest = min(difference.num_pairs for _, difference in found)
    if contrast.kind != "correlation" and fewest < LEAST_PAIRS:
        return Measurement(claim, scale, Word.not_run, f"{fewest} seeds in common, {LEAST_PAIRS} are needed")
    reason = void_reason(claim, contrast, cells)
    if reason:
        return Measurement(claim, scale, Word.void, reason)
    if contrast.kind == "correlation":
        return Measurement(claim, scale, differences=found)
    p_values = [_equality_p(claim, contrast, one) if claim.expected == "equal" else one.t_test for _, one in found]
    return Measurement(claim, scale, differences=found, p=max(p for p in p_values if p is not None))


def judge(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Return verdicts; the headline and main claims among them are corrected together.

    Args:
        measurements: of one paper or one study.
    """
    corrected = holm([one.p if one.claim.priority != "minor" else None for one in measurements])
    family = sum(p is not None for p in corrected)
    return [
        _verdict(one, one.p if p is None else p, 1 if p is None else family)
        for one, p in zip(measurements, corrected, strict=True)
    ]


def _verdict(measured: Measurement, p: float | None, num_tests: int) -> Verdict:
    claim, scale = measured.claim, measured.scale
    if measured.word is not None:
        return Verdict(claim, scale, measured.word, measured.reason)
    if claim.expected == "equal":
        return replace(_equality(claim, claim.contrast_at(scale), measured), p=p)
    sign = -1.0 if claim.expected == "less" else 1.0
    label, weakest = min(measured.differences, key=lambda entry: sign * _known(entry[1].mean))
    lowest = min(min(sign * end for end in _ends(one)) for _, one in measured.differences)
    upper = min(max(sign * end for end in _ends(one)) for _, one in measured.differences)
    effect = claim.paper_effect.value
    seen = weakest.could_see(num_tests)
    found = Verdict(claim, scale, Word.undecided, "", label if len(measured.differences) > 1 else "", weakest, p, seen)
    significant = lowest > 0 if p is None else p < ALPHA
    if significant and sign * _known(weakest.mean) > 0:
        less = max(sign * end for end in _ends(weakest)) < (claim.smallest_interesting if effect is None else sign * effect)
        return replace(found, word=Word.by_less if less else Word.holds)
    if upper < claim.smallest_interesting:
        return replace(found, word=Word.reversed if upper < 0 else Word.fails)
    return found


def _equality(claim: ClaimConfig, contrast: ContrastConfig, measured: Measurement) -> Verdict:
    """Return the verdict on a claim that two sides do not differ, or not in one direction."""
    margin = _known(claim.margin)
    low, high = (-math.inf if contrast.side == "not greater" else -margin, math.inf if contrast.side == "not less" else margin)

    def worse(entry: tuple[str, Difference]) -> float:
        mean = _known(entry[1].mean)
        return {"both": abs(mean), "not less": -mean, "not greater": mean}[contrast.side]

    label, worst = max(measured.differences, key=worse)
    narrow = [
        t_interval(_known(one.mean), _known(one.deviation), one.num_pairs, 1 - 2 * ALPHA) for _, one in measured.differences
    ]
    outside = any(_ends(one)[0] > high or _ends(one)[1] < low for _, one in measured.differences)
    needed = margin_needed(worst.num_pairs, one_sided=contrast.side != "both") * _known(worst.deviation)
    inside = all(low < bottom and top < high for bottom, top in narrow)
    word = Word.holds if inside else Word.fails if outside else Word.undecided
    return Verdict(claim, measured.scale, word, "", label if len(narrow) > 1 else "", worst, could_see=needed)


def _equality_p(claim: ClaimConfig, contrast: ContrastConfig, difference: Difference) -> float:
    """Return the p-value of two one-sided t-tests against the margin, or of one of them."""
    from scipy import stats

    margin, mean, deviation = (_known(value) for value in (claim.margin, difference.mean, difference.deviation))
    rooms = [] if contrast.side == "not greater" else [mean + margin]
    rooms += [] if contrast.side == "not less" else [margin - mean]
    error = deviation / math.sqrt(difference.num_pairs)
    if error == 0:
        return 0.0 if min(rooms) > 0 else 1.0
    return max(float(stats.t.sf(room / error, difference.num_pairs - 1)) for room in rooms)


def _bootstrap(contrast: ContrastConfig, cells: Sequence[UsedCell]) -> Difference:
    """Return the mean of the correlations within variants, and its 95% interval over resampled settings."""
    import numpy as np

    pairs = correlation_pairs(contrast, cells)
    settings = sorted(set.intersection(*(set(found) for found in pairs.values()))) if pairs else []
    if len(settings) < LEAST_SETTINGS:
        raise MissingError(f"{len(settings)} settings in common, {LEAST_SETTINGS} are needed")

    def mean_of(chosen: Sequence[str]) -> float | None:
        found = [correlation([pair for setting in chosen for pair in by_setting[setting]]) for by_setting in pairs.values()]
        known = [r for r in found if r is not None]
        return statistics.fmean(known) if len(known) == len(found) else None

    whole = mean_of(settings)
    if whole is None:
        raise MissingError("a metric does not vary over settings")
    random = np.random.default_rng(0)
    drawn = (
        mean_of([settings[place] for place in random.integers(len(settings), size=len(settings))]) for _ in range(RESAMPLES)
    )
    low, high = np.quantile([r for r in drawn if r is not None], [ALPHA / 2, 1 - ALPHA / 2])
    num_seeds = min(len(found) for by_setting in pairs.values() for found in by_setting.values())
    return Difference(whole, None, num_seeds, (float(low), float(high)))


def _ends(difference: Difference) -> tuple[float, float]:
    return difference.interval or (-math.inf, math.inf)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
