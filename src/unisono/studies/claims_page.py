"""The page of all claims: a table per paper, made from the claims and from the numbers that are kept in ``docs/results``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unisono.studies.claims import Paper
from unisono.studies.numbers import Numbers
from unisono.studies.study import SCALES
from unisono.studies.tables import TextTable
from unisono.studies.verdict_text import num_seeds, our_effect, paper_effect, verdict_words
from unisono.studies.verdicts import Verdict, Word, judge_paper

INTRODUCTION = """# Claims

This page lists the empirical claims of the four papers and our own about CF-CL, the study that tests each, and the verdict.
The command `python scripts/claims.py page` writes it from `src/unisono/studies/papers/` (the claims) and `docs/results/` (our
numbers). A page per paper reads the results: [Orchestra](findings/orchestra.md),
[user verification](findings/user-verification.md), [FedMCC](findings/fedmcc.md), [CF-CL](findings/cfcl.md).
Every claim is judged at one scale:

| scale | meaning |
|---|---|
| mini | fashion-mini and a small convnet, about a minute a run |
| small | the paper's kind of data on two cores, at most six minutes a run |
| long | the same, up to an hour a run |
| paper | the paper's own setting; that of CF-CL fits two cores |

A claim that does not hold at a small scale may hold at the paper's.

**The rule.** Runs of one seed share their partition and cohorts. So we compare seed by seed: the mean of the paired differences
and its t interval at 95%. With signs turned so that the expected side is up, a claim

- *holds* if the p-value of the paired t-test is below 0.05 and the difference is positive; it *holds by less* if the interval
  ends below the paper's effect (below the smallest effect of interest if the paper has a picture only);
- *does not hold* if the interval ends below the smallest effect of interest, and is *reversed* if it ends below 0;
- is *undecided* otherwise. *Could see* is the smallest true effect that as many seeds would have shown with a chance of 80%;
- is *void* if an encoder is not above raw pixels and untrained weights, if a run diverged or had fewer clusters than asked for,
  if most runs never reach the accuracy in question, or if two encoders are said to be equal that have hardly learnt anything;
- is *not run* if a cell is missing or has fewer than three seeds.

A claim of equality holds if the interval at 90% lies within the margin, and does not hold if the interval at 95% lies wholly
outside. If a claim is about several rivals, each must pass: the largest p-value counts, and the weakest difference is shown.
P-values of the headline and main claims of a paper are corrected together (Holm); those of minor claims are not. A correlation
is judged by a bootstrap over settings. A claim that was also run at another scale has a row for it; these rows are corrected
among themselves.

Effects are in points of accuracy unless a unit is given.

**Tuning.** `unisono study NAME --tune 5` gives every row of a table the same effort: the learning rate of four with the best
label-free score ([tuning](tuning.md)). Tables and figures of Orchestra at mini scale were tuned so, in trials of five
rounds; the rates are in their recipe. That score chose the second-worst of RotPred's rates. The others were not tuned, as it
takes longer than their runs could be given: by its own estimate 11 to 15 minutes of two cores for each of the seven methods
of `orchestra-table-1` at small scale, where all have one rate of ours. User verification and its rival differ in `uv_weight`
alone at mini and small scale, with one rate of ours. FedMCC's tables of clusters have one rate of ours, its tables of
features the paper's, and their baselines, FedU in both, the rate of FedU's public code. CF-CL's rows have the paper's rate,
and rows marked *ours* one of ours. A verdict on such a table may be one on the rate.
"""
NOTHING_YET = "**No result is kept yet**, so every claim reads *not run at this scale*."
CHANGES = (
    "The first page of claims, before networks, views and recipes were redone, judged {claims} of these claims by a "
    "weaker rule (the mean of three seeds against their deviation), mostly on encoders that knew less than raw pixels. "
    "{open} of them were not run again, and their earlier verdicts do not count any more. The others have {judged} "
    "verdicts now, some at two scales. {same} say the same as before (*unclear* counts as *undecided*), and {changed} are "
    "different:"
)
SAME = {"unclear": "undecided"}
"""Verdicts of the first page that have another word now."""
PRIORITIES = ("headline", "main", "minor")
HEADS = ("claim", "source", "paper", "ours (95% interval)", "seeds", "scale", "verdict")


def claims_page(papers: Sequence[Paper], numbers: Sequence[Numbers]) -> str:
    """Return the page as Markdown.

    Args:
        papers: with their claims.
        numbers: of studies, at any scale.
    """
    verdicts = {paper.name: judge_paper(paper, numbers) for paper in papers}
    parts = [INTRODUCTION, *([_summary(papers, verdicts), _hours(numbers)] if numbers else [NOTHING_YET])]
    parts += [_section(paper, verdicts[paper.name]) for paper in papers]
    parts.append(_changes([one for paper in papers for one in verdicts[paper.name]]))
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _summary(papers: Sequence[Paper], verdicts: dict[str, list[Verdict]]) -> str:
    """Return how many claims of each paper have which verdict at their own scale."""
    rows = []
    for paper in papers:
        counted = Counter(one.word for one in verdicts[paper.name] if one.scale == one.claim.scale)
        rows.append([paper.config.title, *(str(counted[word] or "") for word in Word)])
    return "Verdicts at the scale of each claim:\n\n" + TextTable(["", *map(str, Word)], rows).as_markdown()


def _hours(numbers: Sequence[Numbers]) -> str:
    """Return how many runs were made at each scale, and how long they took."""
    rows = []
    for scale in SCALES:
        seconds = [value for one in numbers if one.scale == scale for cell in one.cells.values() for value in cell.seconds]
        own = [value for value in seconds if value > 0]
        studies = ", ".join(f"`{one.study}`" for one in numbers if one.scale == scale)
        if studies:
            rows.append([scale, studies, str(len(own)), f"{sum(own) / 3600:.1f}"])
    table = TextTable(["scale", "studies", "runs", "hours"], rows, num_names=2).as_markdown()
    about = "Runs behind this page, and the hours of their rounds by the clock of machines that did other work, too"
    return f"{about}; copies of other runs are left out:\n\n{table}"


def _section(paper: Paper, verdicts: Sequence[Verdict]) -> str:
    notes: list[str] = []
    parts = [f"## {paper.config.title}", f"{paper.config.reference}."]
    for priority in PRIORITIES:
        rows = [_row(one, notes) for one in verdicts if one.claim.priority == priority]
        if rows:
            parts += [
                f"### {paper.config.title}: {priority} claims",
                TextTable(HEADS, rows, num_names=len(HEADS)).as_markdown().strip(),
            ]
    if notes:
        parts += ["Notes:", "\n".join(f"{place}. {note}" for place, note in enumerate(notes, start=1))]
    return "\n\n".join(parts) + "\n"


def _changes(verdicts: Sequence[Verdict]) -> str:
    """Return the claims whose verdict is another than on the first page of claims."""
    known = [one for one in verdicts if one.claim.earlier]
    judged = [one for one in known if one.word is not Word.not_run]
    rows = [
        [one.claim.text, f"{one.claim.source}; `{one.claim.study}`", one.claim.earlier, one.scale, verdict_words(one)]
        for one in judged
        if str(one.word).removesuffix(", reversed") != SAME.get(one.claim.earlier, one.claim.earlier)
    ]
    claims = {one.claim.id for one in known}
    judged_ids, changed = {one.claim.id for one in judged}, len(rows)
    parts = [
        "## What changed",
        CHANGES.format(
            claims=len(claims), open=len(claims - judged_ids), judged=len(judged), same=len(judged) - changed, changed=changed
        ),
    ]
    if rows:
        parts.append(TextTable(["claim", "source", "earlier", "scale", "now"], rows, num_names=5).as_markdown().strip())
    return "\n\n".join(parts) + "\n"


def _row(verdict: Verdict, notes: list[str]) -> list[str]:
    """Return a row of the table; the note of a claim goes below it, and its number behind the claim."""
    claim, mark = verdict.claim, ""
    if claim.note and verdict.scale == claim.scale:
        notes.append(claim.note)
        mark = f" ({len(notes)})"
    source = f"{claim.source}; `{claim.study}`"
    ours, seeds = our_effect(verdict), num_seeds(verdict)
    return [claim.text + mark, source, paper_effect(verdict), ours, seeds, verdict.scale, verdict_words(verdict)]
