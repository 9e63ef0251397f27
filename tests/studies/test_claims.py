"""Claims of the papers: they fit the studies, and the page is what the generator makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies.claim_numbers import make_cell, make_numbers
from unisono.core.errors import UserError
from unisono.studies.claims import ClaimConfig, read_paper, read_papers, unknown_names
from unisono.studies.claims_page import claims_page
from unisono.studies.grid import make_cells
from unisono.studies.kept_results import keep, other_settings, read_kept
from unisono.studies.numbers import config_hash
from unisono.studies.study import list_studies, read_study

ROOT = Path(__file__).parents[2]
CLAIMS = [claim for paper in read_papers() for claim in paper.claims]
OURS = ("orchestra-margin", "uv-margin", "uv-scale", "cfcl-decides")
"""Studies that test no claim of a paper."""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_name_in_a_claim_is_one_of_its_study(claim: ClaimConfig) -> None:
    problems = unknown_names(claim)
    if claim.lacks:
        assert problems, f"{claim.id} says that {claim.lacks}, but the study has every name in it: remove 'lacks'"
    else:
        assert not problems, "\n".join(problems)


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


def test_an_unknown_name_is_a_sentence_with_a_remedy() -> None:
    claim = next(claim for claim in CLAIMS if claim.id == "orchestra-device-over-specloss")
    wrong = claim.model_copy(update={"study": "orchestra-tabel-1"})
    assert unknown_names(wrong) == [f"{claim.id}: there is no study 'orchestra-tabel-1'. Did you mean 'orchestra-table-1'?"]
    metric = claim.model_copy(update={"metric": "lineal"})
    assert unknown_names(metric)[0].startswith(f"{claim.id}: the study orchestra-table-1 has no metric 'lineal'. Did you mean")


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
    problems = [problem for numbers in read_kept(ROOT / "docs" / "results") for problem in other_settings(numbers)]
    assert not problems, "\n".join(problems)
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "results").glob("*.json")) < 500_000


def test_without_results_every_claim_is_not_run() -> None:
    page = claims_page(read_papers(), [])
    assert "**No result is kept yet**" in page
    assert page.count("| not run at this scale") == len(CLAIMS)


def made_results(directory: Path) -> Path:
    """Keep results in which Orchestra is 8 points ahead of SpecLoss, and no other cell was run."""
    study = read_study("orchestra-table-1")
    hashes = {(cell.variant, cell.setting): config_hash(cell) for cell in make_cells(study, Path("runs"), seeds=[0])}
    cells = [
        make_cell(name, values, "cross-device", config=hashes[name, "cross-device"])
        for name, values in (("Orchestra", [0.70, 0.71, 0.73]), ("SpecLoss", [0.62, 0.63, 0.6501]))
    ]
    return keep(make_numbers(*cells, study=study.name, scale=study.config.scale), directory)


def test_the_page_with_results(tmp_path: Path) -> None:
    made_results(tmp_path)
    (numbers,) = read_kept(tmp_path)
    page = claims_page(read_papers(), [numbers])
    assert "Verdicts at the scale of each claim" in page
    (row,) = [line for line in page.splitlines() if line.endswith(f"| {numbers.scale} | holds |")]
    assert "| +8.0 (+8.0 to +8.0) | 3 |" in row
    assert "ahead of federated spectral contrastive learning" in row


def test_the_script_collects_checks_and_writes_the_page(tmp_path: Path) -> None:
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    made = made_results(tmp_path)
    (runs / "any-name").mkdir(parents=True)
    docs.mkdir()
    made.rename(runs / "any-name" / "results.json")

    def script(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "claims.py"), "--docs", str(docs), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    collected = script("collect", str(runs))
    assert collected.returncode == 0, collected
    (kept,) = (docs / "results").glob("orchestra-table-1-*.json")
    assert script("page").returncode == 0
    assert "| holds |" in (docs / "claims.md").read_text(encoding="utf-8")
    assert script("check").returncode == 0
    kept.write_text(kept.read_text().replace('"config":"', '"config":"x'))
    checked = script("check")
    assert checked.returncode == 1
    assert "was run with other options than the study has now" in checked.stdout
    kept.rename(runs / "any-name" / "results.json")
    refused = script("collect", str(runs / "any-name"))
    assert refused.returncode == 1
    assert "left out" in refused.stdout
    assert not kept.exists()
    nothing = script("collect", str(docs))
    assert "There is no results.json" in nothing.stderr
