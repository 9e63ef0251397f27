from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL
from unisono.core.errors import UserError
from unisono.studies.grid import Cell, check_cells, make_cells, select
from unisono.studies.results import Results
from unisono.studies.study import UNTRAINED, Study, read_study
from unisono.studies.tables import study_table


@pytest.fixture
def study(small_file: Path) -> Study:
    return read_study(small_file)


def find(cells: list[Cell], variant: str, setting: str, seed: int) -> Cell:
    return next(cell for cell in cells if (cell.variant, cell.setting, cell.seed) == (variant, setting, seed))


def test_every_cell_once_and_the_first_seed_first(study: Study) -> None:
    cells = make_cells(study, Path("runs"))
    assert [cell.seed for cell in cells] == [0] * 6 + [1] * 6
    places = [(cell.variant, cell.setting) for cell in cells[:6]]
    assert places == [(name, setting) for setting in study.setting_names for name in study.row_names]
    assert len({cell.path for cell in cells}) == 12
    assert {cell.path.parent for cell in cells} == {Path("runs/small")}


def test_configs_follow_setting_variant_and_exception(study: Study) -> None:
    cells = make_cells(study, Path("runs"))
    simclr = find(cells, "SimCLR", "alpha 10", 1).config()
    assert (simclr.method_name, simclr.partition.alpha, simclr.run.seed) == ("simclr", 10.0, 1)
    orchestra = find(cells, "Orchestra", "alpha 0.1", 0).config()
    assert (orchestra.method_name, orchestra.training.learning_rate) == ("orchestra", 0.01)
    assert find(cells, "Orchestra", "alpha 10", 0).config().training.learning_rate == 0.02
    assert find(cells, UNTRAINED, "alpha 10", 0).config().method_name == "simclr"
    assert (Path(simclr.run.directory), simclr.run.name) == (Path("runs/small"), "simclr_alpha-10_seed-1")


def test_overrides_and_seeds_win(study: Study) -> None:
    cells = make_cells(study, Path("runs"), seeds=[5], overrides=["training.learning_rate=0.5", "run.seed=9"])
    assert {cell.config().training.learning_rate for cell in cells} == {0.5}
    assert {cell.config().run.seed for cell in cells} == {5}, "the study's own seed is not up for change"


def test_a_study_needs_two_centroids_for_each_global_cluster(study: Study) -> None:
    """Two clients send 16; the paper's own numbers may have fewer for prototypes, not for clusters of equal size."""

    def check(scale: str, *overrides: str) -> None:
        check_cells(make_cells(study, Path("runs"), seeds=[0], overrides=overrides), scale)

    check("small")
    few = "method.num_global_clusters=9"
    cells = [cell for cell in make_cells(study, Path("runs"), seeds=[0], overrides=[few]) if cell.variant == "Orchestra"]
    sentence = r"^Orchestra, alpha 0.1, seed 0: 2 clients send 16 centroids for method.num_global_clusters = 9, .*size\.$"
    with pytest.raises(UserError, match=sentence):
        check_cells(cells, "small")
    check_cells(cells, "paper")
    equal = [replace(cell, overrides=(few, "method.global_clustering=equal-size")) for cell in cells]
    with pytest.raises(UserError, match=sentence):
        check_cells(equal, "paper")
    check_cells([replace(cell, untrained=True) for cell in equal], "paper")
    reps = ("method.share=representations", "consent.allow_raw_representations=true")
    check_cells([replace(cell, overrides=(few, *reps)) for cell in cells], "small")


def test_another_variants_run(tmp_path: Path) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(SMALL.replace('"method.projection_dim=16"', '"model.pretrained={run of SimCLR}"'))
    cells = make_cells(read_study(path), Path("here"))
    orchestra = find(cells, "Orchestra", "alpha 10", 1)
    assert orchestra.config().model.pretrained == "here/chain/simclr_alpha-10_seed-1"
    assert orchestra.needs == (find(cells, "SimCLR", "alpha 10", 1).path,)
    path.write_text(SMALL.replace('"method.projection_dim=16"', '"model.pretrained={run of SimCLRR}"'))
    with pytest.raises(UserError, match="Did you mean 'SimCLR'"):
        make_cells(read_study(path), Path("here"))


def test_a_recipe_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[method]\nname = "byol"\n')
    path = tmp_path / "study.toml"
    path.write_text('[study]\ntitle = "T"\nrecipe = "own.toml"\n')
    (cell, *_) = make_cells(read_study(path), Path("runs"))
    assert cell.config().method_name == "byol"


def test_skipped_cells(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(SMALL.replace('set = ["training.learning_rate=0.02"]', "skip = true"))
    cells = make_cells(read_study(path), Path("runs"), seeds=[0])
    assert ("Orchestra", "alpha 10") not in {(cell.variant, cell.setting) for cell in cells}
    assert len(cells) == 5


def test_select_by_variant_and_setting(study: Study) -> None:
    cells = make_cells(study, Path("runs"), seeds=[0])
    assert len(select(cells, study, [])) == 6
    assert {cell.variant for cell in select(cells, study, ["simclr"])} == {"SimCLR"}
    both = select(cells, study, ["SimCLR", "orchestra", "alpha 10"])
    assert [(cell.variant, cell.setting) for cell in both] == [("SimCLR", "alpha 10"), ("Orchestra", "alpha 10")]
    assert {cell.setting for cell in select(cells, study, ["alpha-0.1"])} == {"alpha 0.1"}, "as directories of runs have it"
    with pytest.raises(UserError, match=r"--only names 'simclear'.* Did you mean 'simclr'\?"):
        select(cells, study, ["simclear"])


def test_a_quoted_row_is_shown_and_not_run(tmp_path: Path) -> None:
    quoted = '\n[[variant]]\nname = "Quoted"\nquoted = true\n\n[[setting]]\nname = "alpha 0.1"'
    text = SMALL.replace('\n[[setting]]\nname = "alpha 0.1"', quoted, 1)
    (tmp_path / "quoted.toml").write_text(text + '"Quoted" = { "alpha 0.1" = 94.3 }\n')
    study = read_study(tmp_path / "quoted.toml")
    cells = make_cells(study, tmp_path)
    assert "Quoted" not in {cell.variant for cell in cells}
    table = study_table(Results(study, []), "knn")
    assert ["Quoted", "- [94.3]", ""] in table.rows
