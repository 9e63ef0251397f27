"""One word per thing: no old name is left in source, docs, help texts, recipes, studies, examples and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("src", "docs", "examples", "benchmarks", "scripts", "tests", "README.md", "CONTRIBUTING.md", "pyproject.toml")
SUFFIXES = (".py", ".md", ".toml")

NAMES = {
    r"[Oo]bservers?": "callback",
    r"[Ll]anes?|Lane[A-Z]\w+|deal_to_lanes|(num|NUM|HELD)_(lanes|LANES)": "shard, assign_shards",
    r"Fold|fold": "accumulator",
    r"[Ww]orkshops?|open_workshop|simulation_terms": "worker setup, build_worker_setup, simulation_spec",
    r"FederationSections|federation_sections": "LoopConfig, Config.loop",
    r"data_of|ClientStore|LocalStates": "client_data, ClientStateStore, ClientStateFiles",
    r"[Ww]hitelists?": "declared shares",
    r"Setting|setting_of|provisional_setting": "RunInfo",
    r"forewarnings|network_names|assigner|min_batch|(save|load)_setting|setting\.json": "the hooks and names of Method",
    r"DeviceGraph|num_devices|at_round_start|own_predictor": "ClientGraph, num_clients, embed_before_training",
    r"desk|(Client|Simulated)?Desk|_Bench|open_desk": "handler, DeployedClient, SimulatedClient, ClientRun",
    r"Fleet|(?<!/)fleet(?!/)|(Simulated)?Roster|roster|admit_by": "membership",
    r"Envelopes|work_off|_ShortRests": "RequestBuilder, serve_tasks, _CappedSleep",
    r"Agreement|misfit|check_terms|BorrowedEngine|SimulatedEngine": "DataSpec, negotiation, ExternalGridEngine, RayEngine",
    r"load_own_targets|WholeProbe|(Client)?Probing": "Evaluator, EvaluationCallback",
    r"Gathering|guarded\(\)|problems\.txt|(write|run|study|compare)_page": "ReportCollector, errors_logged, errors.txt, report",
    r"Watcher|(?<!-)twins?|take_over|OneRun|Effort|parse_effort": "StudyCallback, reusable run, copy_run, TimeToTarget",
    r"Meter|meter": "RunProgress",
    r"max_answer|state_memory|reference_(clients|participation)": "the option's new name",
}
"""Names and words that are gone, as regular expressions of whole words, and what stands in their place."""

PHRASES = {
    r"same bits": "bit-identical",
    r"tried again": "retried",
    r"client's turn": "client update",
    r"looks? on\b(?! the| a\b)": "callback",
    r"\bwishes\b": "defaults",
    r"[Tt]he house\b|\b(this|only|same) room\b": "package, layer",
    r"\bpage of (a|the) run\b|\brun's page\b": "report",
    r"(?<![\w-])--(picture|page|fresh)\b": "--plot, --html, --no-reuse",
    r"\bevaluation\.consistency\b": "evaluation.cluster_consistency",
    r"probes.*['\"]unsupervised['\"]": "the probe alignment",
    r"\bengine\.start\b(?!_)": "engine.start_method",
}
"""Phrases and options that are gone, as regular expressions."""

ALLOWED = {
    ("src/unisono/cli/tables.py", "fold"): "an option of rich",
    ("src/unisono/engines/flower/door.py", "Fleet"): "Flower's name of an API",
    ("src/unisono/engines/flower/internals.py", "fleet"): "Flower's name of a package",
    ("src/unisono/engines/flower/reliance.py", "fleet"): "Flower's name of a package",
}
"""File and word that may stay, and why."""

GONE = (
    "federation/rounds.py", "federation/worker.py", "federation/whitelist.py", "engines/lanes.py", "engines/pool.py",
    "runs/observers.py", "runs/probing.py", "runs/consistency.py", "runs/exchange_log.py",
    "deploy/desk.py", "deploy/layout.py", "deploy/creation.py", "deploy/agreement.py", "deploy/terms.py",
    "report/gathering.py", "report/ledger.py", "report/clock.py", "report/page.py", "report/run_page.py", "report/look",
    "studies/writing.py", "studies/page.py", "studies/compare_page.py", "cli/bars.py", "cli/meter.py", "cli/problems.py",
    "data/mail.py",
    "methods/own_predictor.py", "methods/round_start.py", "evaluation/unsupervised.py",
)  # fmt: skip
QUESTIONS = ("What", "Who", "Where", "How", "Which", "Whether", "Whose", "When", "Why")
CASES = [*((rf"(?<!\w)(?:{old})(?!\w)", new) for old, new in NAMES.items()), *PHRASES.items()]


@cache
def texts() -> dict[str, str]:
    """Return the text of every file that people read, by path; this file is left out."""
    found = {}
    for place in PLACES:
        path = ROOT / place
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in paths:
            if file.suffix in SUFFIXES and file.is_file() and file != Path(__file__).resolve():
                found[file.relative_to(ROOT).as_posix()] = file.read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize(("old", "new"), CASES, ids=[old for old, _ in CASES])
def test_an_old_word_is_gone(old: str, new: str) -> None:
    hits = [
        f"{path}:{number}: {match[0]!r} in {line.strip()[:100]!r}, now: {new}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        for match in re.finditer(old, line)
        if (path, match[0]) not in ALLOWED
    ]
    assert hits == []


def test_old_modules_are_gone() -> None:
    assert [name for name in GONE if (ROOT / "src/unisono" / name).exists()] == []


def test_exceptions_are_needed() -> None:
    unused = [key for key in ALLOWED if key[0] in texts() and not re.search(rf"\b{key[1]}\b", texts()[key[0]])]
    assert unused == []


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield place and first line of every docstring in the source, those of constants included."""
    for path, text in texts().items():
        if not path.startswith("src/") or not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            if not isinstance(body, list):
                continue
            for entry in body:
                if isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Constant) and isinstance(entry.value.value, str):
                    yield f"{path}:{entry.lineno}", entry.value.value.strip().split("\n")[0]


def test_no_docstring_begins_with_a_question_word() -> None:
    found = [f"{place}: {line}" for place, line in docstrings() if line.split(maxsplit=1)[:1] and line.split()[0] in QUESTIONS]
    assert found == []
    assert len(list(docstrings())) > 1000
