"""The documentation's code runs, and what is too long to run is at least understood: commands, options, recipes, studies."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import unisono
from tests.studies.test_claims import missing
from unisono import tune_plan
from unisono.cli.main import app, main
from unisono.config import resolve
from unisono.core.config import make_section, merge, parse_overrides
from unisono.core.errors import UserError
from unisono.core.method import methods
from unisono.core.registry import is_code
from unisono.data import example_sites
from unisono.data.datasets import datasets
from unisono.data.partition import partitioners
from unisono.deploy.policy_tables import Policy
from unisono.evaluation.config import ProbeName
from unisono.experiment import check_privacy
from unisono.models.backbones import backbones
from unisono.recipes import Layer, build_tree, flag_layers, list_recipes
from unisono.runs.export import FORMATS
from unisono.studies.claims import read_paper
from unisono.studies.grid import make_cells, select
from unisono.studies.study import list_studies, read_study, scales_of
from unisono.tune_plan import make_plan, parse_grid

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SHORTCUTS = ("method", "dataset", "clients", "alpha", "rounds", "workers", "seed", "name")
SMALL = ("data.limit=100", "data.test_limit=50", "cohort.size=3", "model.backbone=cfcl-cnn")
QUICK = (*SMALL, "federation.rounds=1", "engine.workers=0")
BARE = ("evaluation.floors=false", "report.enabled=false")
"""For runs whose floors and report nobody looks at."""


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _read(name), flags=re.DOTALL)


def _inline(name: str) -> list[str]:
    """What stands between single backticks."""
    prose = re.sub(r"```.*?```", "", _read(name), flags=re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def _commands(name: str) -> Iterator[list[str]]:
    """The words of every command of the program in the page's shell blocks, and of those in its text."""
    typed = [line[2:] for block in _blocks(name, "console") for line in block.splitlines() if line.startswith("$ ")]
    for block in (*_blocks(name, "sh"), "\n".join(typed)):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["unisono"]:
                words = words[: words.index(">")] if ">" in words else words
                yield words[1:-1] if words[-1] == "&" else words[1:]
    yield from (shlex.split(code)[1:] for code in _inline(name) if re.match(r"unisono [a-z]", code) and "[OPTIONS]" not in code)


def _check_command(words: list[str], shown_study: str, folder: Path) -> None:
    """Raises what the program would say of a command that it does not understand; nothing runs.

    Args:
        words: after the program's name.
        shown_study: the file of a study that the page shows.
        folder: for that file.
    """
    command: Any = typer.main.get_command(app)
    path = []
    while hasattr(command, "commands") and words:
        word, *words = words
        if word not in command.commands:
            raise UserError(f"there is no command {word!r}")
        path.append(word)
        command = command.commands[word]
    # NAME stands for the reader's own; an option keeps it.
    given = [word for before, word in pairwise(["", *words]) if before.startswith("--") or not re.fullmatch("[A-Z_]+", word)]
    if not given:  # no more than the command's name
        return
    try:
        params: dict[str, Any] = command.make_context(path[-1], given).params
    except Exception as error:
        if type(error).__name__ == "MissingParameter":
            return
        raise
    settings = list(params.get("settings") or ())
    if path == ["views"] and params["preset"]:
        settings.append(f"views.preset={params['preset']}")
    if path == ["study"]:
        _check_study(params, settings, shown_study, folder)
    elif path[-1] in ("run", "config", "tune", "partition", "graph", "views") and (params["reference"] or settings):
        _check_recipe(params, settings)
    elif path == ["export"] and params["format"] not in FORMATS:
        raise UserError(f"there is no format {params['format']!r}")
    elif path == ["evaluate"] and not set(params["probes"] or ()) <= set(get_args(ProbeName)):
        raise UserError(f"there is no probe {params['probes']}")


def _check_recipe(params: Mapping[str, Any], settings: list[str]) -> None:
    reference = params["reference"] or "simclr"
    if reference.endswith((".toml", ".py")):  # of the reader's own
        reference, settings = "simclr", [text for text in settings if not text.startswith("method.")]
    grid = parse_grid(params.get("grid") or ())
    settings += [f"{key}={value}" for key, values in grid.items() for value in values[:1]]
    config = resolve(build_tree(reference, {name: params.get(name) for name in SHORTCUTS}, settings))
    assert datasets[config.data.dataset]
    assert partitioners[config.partition.scheme]
    assert config.model.backbone == "auto" or is_code(config.model.backbone) or backbones[config.model.backbone]


def _check_study(params: Mapping[str, Any], settings: list[str], shown_study: str, folder: Path) -> None:
    reference = params["reference"]
    if reference.endswith(".toml"):
        shown, reference = ROOT / reference, folder / Path(reference).name
        reference.write_text(shown.read_text() if shown.is_file() else shown_study)
    study = read_study(reference, params["scale"])
    cells = select(make_cells(study, Path("runs"), seeds=[0], overrides=settings), study, params["only"] or ())
    own = params["reference"].endswith(".toml")
    for cell in cells if settings or own else cells[:1]:  # tests/studies resolves all cells of ours
        cell.config()


def _shown_study(name: str) -> str:
    """The file of a study that the page shows; empty where it shows none."""
    return next((text for text in _blocks(name, "toml") if "[study]" in text), "")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_understood(name: str, tmp_path: Path) -> None:
    for words in _commands(name):
        try:
            _check_command(words, _shown_study(name), tmp_path)
        except Exception as error:
            pytest.fail(f"{name}: unisono {shlex.join(words)}: {error}")


@pytest.mark.parametrize(
    "command",
    [
        "runn simclr",
        "run simclr --round 3",
        "run orchestra/fashion-minor",
        "run orchestra/fashion-mini --method biol",
        "run simclr --dataset fashion-minor",
        "run simclr --set training.learning_rat=0.1",
        "run simclr --set method.ema=0.9",
        "run orchestra --set model.backbone=resnet17",
        "partition --scheme iid --set partition.num_client=3",
        "views --dataset digits --set views.rotate=3",
        "views --dataset digits --preset digit",
        "tune orchestra/fashion-mini --grid training.rate=0.1,0.2",
        "study orchestra-margins",
        "study orchestra-margin --scale large",
        "study orchestra-margin --only SimKLR",
        "list method",
        "export runs/x --format onyx",
        "evaluate runs/x --probe lineal",
        "deploy init federation --client 3",
    ],
)
def test_a_command_with_a_slip_is_noticed(command: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"."):
        _check_command(command.split(), "", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_recipe_in_the_text_exists(name: str) -> None:
    tree = resolve({"method": {"name": "simclr"}}).as_tree()
    known = {table: set(options) for table, options in tree.items() if isinstance(options, dict)}
    for table, section in Policy().tables.items():  # of client.toml
        known.setdefault(table, set()).update(type(section).model_fields)
    known["method"] = {"name"}.union(*(methods[method].Config.model_fields for method in methods))
    papers = {name.partition("/")[0] for name in list_recipes() if "/" in name}
    recipe = re.compile(rf"({'|'.join(papers)})/[a-z0-9-]+|({'|'.join(methods)})-[a-z0-9-]*(paper|mini|mnist|cifar10|silo)")
    for code in _inline(name):
        option = re.match(r"([a-z]+)\.([a-z_]+)($| *=)", code)
        if option and option[1] in known and option[2] not in ("html", "json", "jsonl", "toml", "md", "py", "safetensors"):
            assert option[2] in known[option[1]], f"{name}: {code}"
        if recipe.fullmatch(code):
            assert code in {**list_recipes(), **list_studies()}, f"{name}: {code}"


@pytest.mark.parametrize("name", NAMES)
def test_every_toml_block_is_read(name: str, tmp_path: Path) -> None:
    for text in _blocks(name, "toml"):
        tree = tomllib.loads(text)
        if "study" in tree:
            path = tmp_path / "study.toml"
            path.write_text(text)
            for scale in scales_of(path):
                for cell in make_cells(read_study(path, scale), tmp_path):
                    cell.config()
        elif "claim" in tree:
            path = tmp_path / "paper.toml"
            path.write_text(text + '[paper]\ntitle = "T"\nreference = "R"\n')
            assert [missing(claim) for claim in read_paper(path).claims] == [[]]
        elif set(tree) & {"allow", "require", "bounds", "budget", "resources", "peers"} or "use" in tree.get("labels", {}):
            make_section(Policy, tree, "client")
        elif "project" not in tree:
            check_privacy(resolve(build_tree(merge({"method": {"name": "simclr"}}, tree))))


def test_the_worked_example_of_a_method_runs(tmp_path: Path) -> None:
    source = _blocks("docs/adding-a-method.md", "python")[0]
    command = _blocks("docs/adding-a-method.md", "sh")[0].split()
    (tmp_path / "barlow_twins.py").write_text(source)
    assert command[:2] == ["unisono", "run"]
    quick = ["--name", "doc", "--workers", "0", "--set", "data.limit=200", "--set", "model.backbone=cfcl-cnn"]
    quick += [word for setting in BARE for word in ("--set", setting)]
    program = str(Path(sys.executable).with_name("unisono"))
    finished = subprocess.run([program, *command[1:], *quick], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    run = unisono.load(tmp_path / "runs" / "doc")
    assert run.round == 5
    assert "on_diagonal" in run.metrics[-1]
    check = _blocks("docs/adding-a-method.md", "sh")[1].split()
    assert check[:2] == ["unisono", "check"]
    finished = subprocess.run([program, *check[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize("document", ["quick-start.md", "own-images.md"])
def test_tutorials_run_word_for_word(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with fewer images and shorter training; the real federation has tests of its own."""
    monkeypatch.setattr(example_sites, "PER_SITE", 40)
    example_sites.write_example(tmp_path / "sites")
    query = min(file.name for file in (tmp_path / "sites" / "north").iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    run = unisono.run
    monkeypatch.setattr(unisono, "run", lambda method, **flags: run(method, **flags, set=[*QUICK, *BARE]), raising=False)
    for language, code in re.findall(r"```(python|sh)\n(.*?)```", _read(f"docs/{document}"), flags=re.DOTALL):
        if code.startswith(("pip", "unisono deploy")):
            continue
        quick = re.sub(r"sites/north/0\S*\.png", f"sites/north/{query}", code)
        if language == "python":
            exec(quick, {})
            continue
        for line in quick.replace("sites --example --yes", "sites --yes --minutes 0.001").splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "unisono"
            settings = QUICK if words[0] == "run" else ()
            with pytest.raises(SystemExit) as end:
                main([*words, *(word for setting in settings for word in ("--set", setting))])
            assert not end.value.code, line
    assert list((tmp_path / "runs").iterdir())


def test_the_python_of_the_tuning_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    small = [*flag_layers({"clients": 3}), Layer("--set", parse_overrides(QUICK))]
    monkeypatch.setattr(tune_plan, "make_plan", lambda reference, grid: make_plan(reference, small, grid, rounds=1))
    (code,) = _blocks("docs/tuning.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert {trial.values["training.learning_rate"] for trial in names["found"].trials} == {0.03, 0.01}
    assert (tmp_path / "tuning" / "mine" / "orchestra-fashion-mini.toml").is_file()


@pytest.mark.parametrize("heading", ["Your own views", "Your own backbone"])
def test_code_of_your_own_runs(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that a section shows, and each of its commands."""
    section = _read("docs/configuration.md").partition(f"### {heading}\n")[2].partition("\n### ")[0]
    (source,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    (file,) = set(re.findall(r"(\w+\.py):", commands))
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(source)
    for words in map(shlex.split, commands.replace("\\\n", " ").splitlines()):
        settings = [setting for setting in (*QUICK, *BARE) if words[1] == "run" and not setting.startswith("model.")]
        quick = [word for setting in settings for word in ("--set", setting)]
        with pytest.raises(SystemExit) as end:
            main([*words[1:], *quick])
        assert not end.value.code, words


def test_the_page_of_your_own_is_drawn() -> None:
    (code,) = _blocks("docs/report.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert "<title>My page</title>" in names["html"]
    assert '"y":[5.1,4.2,3.9]' in names["html"]


def test_every_study_named_in_the_text_exists() -> None:
    named = {words[1] for name in NAMES for words in _commands(name) if words[0] == "study" and len(words) > 1}
    assert {name for name in named if name.islower() and not name.endswith(".toml")} <= set(list_studies())
