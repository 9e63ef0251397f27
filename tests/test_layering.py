"""Imports go downward only: the layers of the package, read off the syntax of every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono.core

PACKAGE = "unisono"
TOP = "top"
"""The modules that lie directly in the package: running, experiment, loaded, config and ``__init__``."""
DOOR = "__main__"
"""``python -m unisono``, the way into the command line."""
LAYERS = (
    {DOOR},
    {"cli"},
    {"deploy"},
    {"studies", "testing"},
    {TOP},
    {"report"},
    {"runs", "engines"},
    {"federation"},
    {"methods"},
    {"evaluation", "privacy", "losses", "clustering", "models", "data"},
    {"core"},
)
RANK = {layer: rank for rank, layers in enumerate(LAYERS) for layer in layers}
SHARED_METHOD_MODULES = (
    "training_loop",
    "local_training",
    "cluster_heads",
    "momentum_target",
    "divergence",
    "exchange",
    "negatives",
    "schedule",
    "selection",
    "user_verification",
    "two_views",
    "label_head",
    "before_training",
    "personal_predictor",
)


PUBLIC_FLOWER = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")
INTERNALS = f"{PACKAGE}.engines.flower.internals"


def violations(root: Path) -> list[str]:
    """One sentence for every import below ``root``, the package's directory, that breaks a rule."""
    found = []
    for path in sorted(root.rglob("*.py")):
        importer = module_name(path.relative_to(root))
        for line, imported in imports(path, importer, root):
            problem = broken_rule(importer, imported)
            if problem:
                found.append(f"{path.relative_to(root)}:{line} imports {imported}: {problem}")
    return found


def module_name(path: Path) -> str:
    """``data/views.py`` is ``unisono.data.views``, and ``data/__init__.py`` is ``unisono.data``."""
    parts = [PACKAGE, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, importer: str, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, wherever in the file the import stands."""
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if is_module(whole, root) else base
        elif is_import_call(node):
            assert isinstance(node, ast.Call)
            assert isinstance(node.args[0], ast.Constant)
            yield node.lineno, str(node.args[0].value)


def is_module(name: str, root: Path) -> bool:
    """Whether a name below the package is a module, and not something inside one."""
    path = root.joinpath(*name.split(".")[1:])
    return name.startswith(f"{PACKAGE}.") and (path.is_dir() or path.with_suffix(".py").is_file())


def is_import_call(node: ast.AST) -> bool:
    """Whether this is ``import_module("name")`` or ``__import__("name")``."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__")


def broken_rule(importer: str, imported: str) -> str | None:
    """What is wrong with an import, if anything."""
    distribution = imported.partition(".")[0]
    if distribution == "flwr":
        return flower_rule(importer, imported)
    if distribution != PACKAGE:
        return None
    own, other = layer_of(importer), layer_of(imported)
    if own == other:
        return method_rule(importer, imported) if own == "methods" else None
    if RANK[own] >= RANK[other]:
        return f"{own} lies beside or below {other}"
    return None


def flower_rule(importer: str, imported: str) -> str | None:
    """Flower's public packages belong to one package of ours, everything else of Flower to one module of it."""
    if importer.split(".")[:3] != [PACKAGE, "engines", "flower"]:
        return "only engines/flower/ imports flwr"
    if imported not in PUBLIC_FLOWER and importer != INTERNALS:
        return "only engines/flower/internals.py imports private flwr"
    return None


def layer_of(module: str) -> str:
    """Return the layer of a module; those directly in the package share one."""
    parts = module.split(".")
    layer = parts[1] if len(parts) > 1 else TOP
    return layer if layer in RANK else TOP


def method_rule(importer: str, imported: str) -> str | None:
    """Methods share by calling what lies below them, never each other."""
    own, other = (module.split(".")[2] if module.count(".") > 1 else "" for module in (importer, imported))
    return None if other in (own, "", *SHARED_METHOD_MODULES) else "methods never import each other"


def test_every_package_has_a_layer() -> None:
    root = Path(unisono.core.__file__ or "").parents[1]
    layers = {path.name for path in root.iterdir() if (path / "__init__.py").is_file()}
    assert layers == set(RANK) - {TOP, DOOR}


def test_imports_go_downward_only() -> None:
    root = Path(unisono.core.__file__ or "").parents[1]
    assert len(list(root.rglob("*.py"))) > 50
    assert violations(root) == []


# --- the rules themselves, on a small tree that keeps them and on one violation at a time

KEPT = {
    "__init__.py": "from unisono.running import run",
    "config.py": "from unisono.methods.simclr import X",
    "experiment.py": "from unisono import config\nfrom unisono.engines.embedded import E\nfrom .runs import directory",
    "cli/__init__.py": "",
    "cli/main.py": "import unisono\nfrom unisono.running import run\nfrom unisono.cli import run_progress",
    "cli/run_progress.py": "def f():\n    from unisono.runs.directory import D",
    "runs/__init__.py": "",
    "runs/directory.py": "from unisono.federation.loop import State\nfrom unisono.privacy import accountant",
    "engines/__init__.py": "",
    "engines/embedded.py": "from unisono.federation import loop\nfrom . import worker_pool",
    "engines/worker_pool.py": "import torch",
    "engines/flower/__init__.py": "import flwr.app",
    "engines/flower/internals.py": "import flwr\nfrom flwr.supercore.control import C",
    "engines/flower/messages.py": "from flwr.app import A\nfrom ..embedded import E\nfrom ...federation.loop import State",
    "federation/__init__.py": "",
    "federation/loop.py": "from unisono.methods.local_training import T",
    "methods/__init__.py": "",
    "methods/local_training.py": "from unisono.data.views import V",
    "methods/simclr.py": "from unisono.methods.local_training import T\nfrom .local_training import U\nimport unisono.losses.a",
    "methods/byol.py": "from unisono.methods import local_training",
    "data/__init__.py": "",
    "data/views.py": "from unisono.core.config import Section\nfrom unisono.data import shift",
    "data/shift.py": "",
    "privacy/__init__.py": "",
    "privacy/accountant.py": "",
    "losses/__init__.py": "",
    "losses/a.py": "import torch\nimport unisonous",
    "core/__init__.py": "",
    "core/config.py": "import pydantic\nfrom importlib import import_module\nimport_module(name)",
}
BROKEN = {
    "upward": ("core/config.py", "from unisono.data.views import V", "core lies beside or below data"),
    "upward, whole module": ("core/config.py", "import unisono.federation.loop", "core lies beside or below federation"),
    "upward, as a name": ("data/shift.py", "from unisono import methods", "data lies beside or below methods"),
    "upward, to the package": ("runs/directory.py", "from unisono import run", "runs lies beside or below top"),
    "upward, to a top module": ("federation/loop.py", "from unisono.config import C", "federation lies beside or below top"),
    "to the command line": ("experiment.py", "from unisono.cli.main import main", "top lies beside or below cli"),
    "relative": ("federation/loop.py", "from ..runs import directory", "federation lies beside or below runs"),
    "relative, two dots": ("data/shift.py", "from .. import federation", "data lies beside or below federation"),
    "inside a function": ("methods/simclr.py", "def f():\n    from unisono.federation import loop", "below federation"),
    "inside a condition": (
        "losses/a.py",
        "if TYPE_CHECKING:\n    from unisono.models import x",
        "losses lies beside or below models",
    ),
    "by a call": ("core/config.py", "importlib.import_module('unisono.data')", "core lies beside or below data"),
    "runs to engines": ("runs/directory.py", "import unisono.engines.embedded", "runs lies beside or below engines"),
    "engines to runs": ("engines/worker_pool.py", "from unisono.runs.directory import D", "engines lies beside or below runs"),
    "method to method": ("methods/byol.py", "from unisono.methods.simclr import X", "methods never import each other"),
    "method to method, relative": ("methods/byol.py", "from . import simclr", "methods never import each other"),
    "template to method": ("methods/local_training.py", "import unisono.methods.simclr", "methods never import each other"),
    "flwr in an engine": ("engines/worker_pool.py", "def f():\n    import flwr.client", "only engines/flower/ imports flwr"),
    "flwr at the top": ("experiment.py", "from flwr import x", "only engines/flower/ imports flwr"),
    "private flwr": (
        "engines/flower/messages.py",
        "from flwr.common.constant import C",
        "only engines/flower/internals.py imports private flwr",
    ),
    "private flwr, inside a public package": (
        "engines/flower/messages.py",
        "def f():\n    import flwr.app.metadata",
        "only engines/flower/internals.py imports private flwr",
    ),
    "flwr as a whole": (
        "engines/flower/__init__.py",
        "from flwr import common",
        "only engines/flower/internals.py imports private flwr",
    ),
    "flwr by a call": ("cli/main.py", "import_module('flwr')", "only engines/flower/ imports flwr"),
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_tree_that_keeps_the_rules_passes(tmp_path: Path) -> None:
    assert violations(write_tree(tmp_path, KEPT)) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_violation_is_found(tmp_path: Path, name: str) -> None:
    path, text, rule = BROKEN[name]
    found = violations(write_tree(tmp_path, {**KEPT, path: f"{KEPT[path]}\n{text}"}))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")
    assert found[0].endswith(rule)


def test_one_function_runs_the_rounds() -> None:
    """Every kind of run goes through ``running.execute``: nothing else makes a round loop but what is no run."""
    root = Path(unisono.core.__file__ or "").parents[1]
    makers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RoundLoop"
    }
    assert makers - {"cli/bench.py", "testing/tiny.py", "rehearsal.py"} == {"running.py"}
