from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.conftest import SMALL
from unisono.core.errors import UserError
from unisono.studies.grid import make_cells
from unisono.studies.study import UNTRAINED, list_studies, read_study, scales_of, slug

TWO_SCALES = """
[study]
title = "T"
recipe = "digits-smoke"
set = ["training.learning_rate=0.1"]
[scale.small]
seeds = [7]
set = ["federation.rounds=1"]
cost = "a minute"
[scale.paper]
recipe = "orchestra/cifar10"
[[variant]]
name = "a"
[[variant]]
name = "b"
small.skip = true
[paper.linear]
"b" = { "all" = 1.0 }
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_a_study_without_scales_has_one(small_file: Path) -> None:
    study = read_study(small_file)
    assert study.name == study.directory == "small"
    assert study.config.scale == "small"
    assert study.row_names == [UNTRAINED, "SimCLR", "Orchestra"]
    assert study.setting_names == ["alpha 0.1", "alpha 10"]
    assert study.paper_number("knn", "SimCLR", "alpha 0.1") == 64.3
    assert study.paper_number("knn", "Orchestra", "alpha 0.1") is None
    with pytest.raises(UserError, match=r"no scale 'paper'; it has small\."):
        read_study(small_file, "paper")


def test_a_scale_replaces_fields_and_adds_assignments(tmp_path: Path) -> None:
    path = write(tmp_path, TWO_SCALES)
    small, paper = read_study(path), read_study(path, "paper")
    assert (small.config.scale, paper.config.scale) == ("small", "paper")
    assert (small.directory, paper.directory) == ("study-small", "study-paper")
    assert small.config.seeds == (7,)
    assert small.config.set == ("training.learning_rate=0.1", "federation.rounds=1")
    assert paper.config.recipe == "orchestra/cifar10"
    assert [variant.name for variant in small.variants] == ["a"]
    assert [variant.name for variant in paper.variants] == ["a", "b"]
    assert paper.has_paper_numbers("linear")
    assert not small.has_paper_numbers("linear")
    assert scales_of(path) == ["small", "paper"]


def test_the_smallest_of_four_scales_is_the_default(tmp_path: Path) -> None:
    text = TWO_SCALES.replace("[[variant]]", "[scale.long]\nseeds = [5]\n[scale.mini]\nseeds = [4]\n[[variant]]", 1)
    path = write(tmp_path, text.replace("small.skip = true", "mini.skip = true\nlong.set = ['federation.rounds=3']"))
    assert scales_of(path) == ["mini", "small", "long", "paper"]
    assert read_study(path).config.seeds == (4,)
    assert [variant.name for variant in read_study(path, "mini").variants] == ["a"]
    assert [variant.name for variant in read_study(path, "small").variants] == ["a", "b"]
    cell = make_cells(read_study(path, "long"), tmp_path)[-1]
    assert (cell.variant, cell.config().federation.rounds, cell.seed) == ("b", 3, 5)
    with pytest.raises(UserError, match=r"scale\.smal is not a known scale\. Did you mean 'small'\? Known: mini, small"):
        read_study(write(tmp_path, TWO_SCALES.replace("scale.small", "scale.smal")))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[study]", "[stduy]", "stduy is not a known table. Did you mean 'study'?"),
        ('title = "Two methods"', "", "study.title is required."),
        ("untrained = true", "untraind = true", "study.untraind is not a known option. Did you mean 'untrained'?"),
        ('plot = "line"', 'plot = "pie"', "study.plot must be 'bars', 'line', 'curves', 'scatter' or 'embeddings', got 'pie'."),
        ('name = "Orchestra"', 'name = "SIMCLR"', "'SIMCLR' and 'SimCLR' would share a directory"),
        ('variants = ["Orchestra"]', 'variants = ["Orchester"]', "'Orchester', which the study does not have. Did you mean"),
        ('"SimCLR" = { "alpha 0.1" = 64.3', '"SimCLR" = { "alpha 1" = 64.3', "names the setting 'alpha 1'"),
        ("seeds = [0, 1]", "seeds = []", "study.seeds"),
        ("format = 1", "format = 9", "install a newer one"),
        ('metrics = ["knn", ', 'metrics = ["liner", ', "'liner', which no probe gives. Did you mean 'linear'?"),
        ('[[variant]]\nname = "SimCLR"\n', "", "paper.knn names the variant 'SimCLR'"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in SMALL
    with pytest.raises(UserError) as error:
        read_study(write(tmp_path, SMALL.replace(old, new, 1)))
    assert sentence in str(error.value)


def test_an_unknown_name_and_a_missing_file() -> None:
    with pytest.raises(UserError, match=r"no study 'orchestra-figure-55'\. Did you mean 'orchestra-figure-5'\?"):
        read_study("orchestra-figure-55")
    with pytest.raises(UserError, match=r"There is no file nowhere\.toml"):
        read_study("nowhere.toml")


def test_slugs() -> None:
    assert slug("alpha 0.1") == "alpha-0.1"
    assert slug("FedMCC (m = 0.99)") == "fedmcc-m-0.99"
    assert slug("***") == "x"


def test_there_are_studies() -> None:
    assert "orchestra-figure-5" in list_studies()
