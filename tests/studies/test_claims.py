"""Claims of the papers: they fit the studies, and the page is what the generator makes of them."""

from __future__ import annotations

import runpy
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_cell, make_numbers
from unisono.core.errors import UserError
from unisono.studies.claims import ClaimConfig, read_paper, read_papers
from unisono.studies.claims_page import claims_page
from unisono.studies.grid import make_cells
from unisono.studies.kept_results import keep, read_kept, stale_cells
from unisono.studies.numbers import config_hash
from unisono.studies.study import list_studies, read_study, scales_of

ROOT = Path(__file__).parents[2]
CLAIMS = [claim for paper in read_papers() for claim in paper.claims]
OURS = ("orchestra-margin", "uv-margin", "uv-scale", "cfcl-decides")
"""Studies that test no claim of a paper."""


@cache
def cells_and_metrics(study: str, scale: str) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
    read = read_study(study, scale)
    return {(cell.variant, cell.setting) for cell in make_cells(read, Path("runs"), seeds=[0])}, tuple(read.config.metrics)


def missing(claim: ClaimConfig) -> list[object]:
    """Return what a claim names and its study does not have, at the scale that decides it and at those it speaks of."""
    found: list[object] = []
    for scale in dict.fromkeys([claim.scale, *claim.at]):
        contrast = claim.contrast_at(scale)
        if scale not in scales_of(list_studies()[claim.study]):
            return [scale]
        cells, metrics = cells_and_metrics(claim.study, scale)
        for own, side in contrast.sides:
            theirs, measured = cells_and_metrics(side.study or claim.study, scale)
            found += [] if side.constants else sorted(set(side.cells) - theirs)
            found += sorted({own} - set(measured) if own else set(claim.metrics_at(scale)) - set(measured))
        if contrast.kind == "correlation":
            found += sorted({str(contrast.x), str(contrast.y)} - set(metrics))
            found += sorted(set(contrast.within) - {variant for variant, _ in cells})
    return found


def test_the_study_of_a_claim_has_all_that_it_names() -> None:
    for claim in CLAIMS:
        if claim.lacks:
            assert missing(claim), f"{claim.id} says that {claim.lacks}, but the study has it: remove 'lacks'"
        else:
            assert missing(claim) == [], claim.id


def test_every_table_and_figure_has_a_claim() -> None:
    named = {claim.study for claim in CLAIMS}
    named |= {side.study for claim in CLAIMS for _, side in claim.contrast.sides if side.study}
    assert sorted(set(list_studies()) - named - set(OURS)) == []


def test_ids_are_unique_and_begin_with_the_paper() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.id.startswith(paper.name) for paper in read_papers() for claim in paper.claims)
    assert [paper.name for paper in read_papers()] == ["orchestra", "uv", "fedmcc", "cfcl", "received"]


def test_the_papers_effect_has_the_expected_sign() -> None:
    for claim in CLAIMS:
        value = claim.paper_effect.value
        if value is not None and claim.expected != "equal":
            assert (value > 0) == (claim.expected == "greater"), claim.id


def test_mistakes_in_a_file_of_claims_are_sentences(tmp_path: Path) -> None:
    text = (ROOT / "src" / "unisono" / "studies" / "papers" / "cfcl.toml").read_text(encoding="utf-8")
    path = tmp_path / "cfcl.toml"
    for old, new, sentence in (
        ("format = 1", "format = 2", "reads format 1"),
        ('expected = "less"', 'expected = "fewer"', "claim.0.expected must be"),
        ("smallest_interesting", "smalest_interesting", "claim.0.smalest_interesting is not a known option"),
        ('id = "cfcl-less-delay-than-uniform"', 'id = "cfcl-fewer-steps-than-uniform"', "two claims have the id"),
    ):
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UserError, match=sentence):
            read_paper(path)


def test_the_page_is_what_the_generator_makes() -> None:
    page = claims_page(read_papers(), read_kept(ROOT / "docs" / "results"))
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == page, "run python scripts/claims.py page"
    assert all(claim.text in page for claim in CLAIMS)


def test_kept_results_are_those_of_the_studies_as_they_are() -> None:
    problems = [problem for numbers in read_kept(ROOT / "docs" / "results") for problem in stale_cells(numbers).values()]
    assert not problems, "\n".join(problems)
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "results").glob("*.json")) < 500_000


def test_without_results_every_claim_is_not_run() -> None:
    page = claims_page(read_papers(), [])
    assert "**No result is kept yet**" in page
    assert page.count("| not run at this scale") == len(CLAIMS)


def made_results(directory: Path, ahead: float = 0.08) -> Path:
    """Keep results in which Orchestra is 8 points ahead of SpecLoss, or as much as said, and no other cell was run."""
    study = read_study("orchestra-table-1")
    hashes = {(cell.variant, cell.setting): config_hash(cell) for cell in make_cells(study, Path("runs"), seeds=[0])}
    cells = [
        make_cell(name, values, "cross-device", config=hashes[name, "cross-device"])
        for name, values in (("Orchestra", [0.70, 0.71, 0.73]), ("SpecLoss", [0.70 - ahead, 0.71 - ahead, 0.7301 - ahead]))
    ]
    return keep(make_numbers(*cells, study=study.name, scale=study.config.scale), directory).path


def test_the_page_with_results(tmp_path: Path) -> None:
    made_results(tmp_path)
    (numbers,) = read_kept(tmp_path)
    page = claims_page(read_papers(), [numbers])
    assert "Verdicts at the scale of each claim" in page
    (row,) = [line for line in page.splitlines() if line.endswith(f"| {numbers.scale} | holds |")]
    assert "| +8.0 (+8.0 to +8.0) | 3 |" in row
    assert "ahead of federated spectral contrastive learning" in row
    changed = page.partition("## What changed")[2]
    assert "1 say the same as before" in changed, "it held on the first page of claims, too"
    assert "ahead of federated spectral contrastive learning" not in changed


def test_verdicts_that_changed_are_listed(tmp_path: Path) -> None:
    made_results(tmp_path, ahead=-0.08)
    changed = claims_page(read_papers(), read_kept(tmp_path)).partition("## What changed")[2]
    (row,) = [line for line in changed.splitlines() if "spectral contrastive learning" in line]
    assert row.endswith("| holds | mini | does not hold, reversed |")


def test_the_script_collects_checks_plans_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    made = made_results(tmp_path)
    (runs / "any-name").mkdir(parents=True)
    docs.mkdir()
    made.rename(runs / "any-name" / "results.json")
    main = runpy.run_path(str(ROOT / "scripts" / "claims.py"))["main"]

    def script(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["claims.py", "--docs", str(docs), *words])
        code = main()
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert script("collect", str(runs))[0] == 0
    (kept,) = (docs / "results").glob("orchestra-table-1-*.json")
    assert script("page")[0] == 0
    assert "| holds |" in (docs / "claims.md").read_text(encoding="utf-8")
    assert script("check")[0] == 0
    planned = script("plan", "--scale", "mini", "--seeds", "4")[1].splitlines()
    (one,) = [line for place, line in enumerate(planned) if "orchestra-global-clusters-flat" in planned[place - 1]]
    assert one.startswith("  unisono study orchestra-table-2 --scale mini --seeds 0,1,2,3 --only ")
    kept.write_text(kept.read_text().replace('"config":"', '"config":"x'))
    code, printed = script("check")
    assert code == 1
    assert "was run with other options than the study has now" in printed
    kept.rename(runs / "any-name" / "results.json")
    code, printed = script("collect", str(runs / "any-name"))
    assert code == 1
    assert "left out" in printed
    assert not kept.exists()
    assert "There is no results.json" in script("collect", str(docs))[1]
