"""The contract of methods: what they are told of their run, and how the framework asks what they can do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono.core
from tests.federation.counting import Counting
from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.core.method import Method, RunInfo, methods
from unisono.core.payload import Payload

ROOT = Path(unisono.core.__file__ or "").parents[1]
INFO = RunInfo((1, 8, 8), (0.5,), (0.25,), None, 4, 2)


class Views(Section):
    flip: float = 0.5


class Model(Section):
    width: float = 1.0


def test_run_info_gives_the_runs_table_or_its_defaults() -> None:
    info = RunInfo((1, 8, 8), (0.5,), (0.25,), None, 4, 2, (Views(flip=0.1),))
    assert info.section(Views) == Views(flip=0.1)
    assert info.section(Model) == Model()


def test_config_and_info_are_there_when_setup_runs() -> None:
    class Careful(Counting):
        def setup(self) -> None:
            self.seen = (self.config, self.info)

    config = Views(flip=0.1)
    method = Careful(config, INFO)
    assert method.seen == (config, INFO)
    assert method.config is config
    assert method.info is INFO


def test_an_own_init_is_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match=r"Stubborn must not define __init__, .*: write setup\(self\)"):

        class Stubborn(Counting):
            def __init__(self) -> None: ...


def test_a_method_that_lacks_hooks_is_refused_with_their_names() -> None:
    class Half(methods["supervised"]):  # type: ignore[misc]
        encoder = Method.encoder
        broadcast = Method.broadcast

    with pytest.raises(UserError, match=r"^Half is not complete: it must write broadcast, encoder\.$"):
        Half(Section(), INFO)


def test_a_method_knows_its_name() -> None:
    class Nameless(methods["simclr"]):  # type: ignore[misc]
        pass

    assert methods["simclr"].name == "simclr"
    assert Nameless.name == "Nameless"


def test_hooks_that_are_not_overridden_are_capabilities_that_a_method_lacks() -> None:
    found = {hook: {name for name in methods if methods[name].overrides(hook)} for hook in CAPABILITIES}
    assert found == CAPABILITIES
    method = Counting.make()
    assert method.cluster_model(method.init_server(None)) is None  # type: ignore[arg-type]
    assert method.client_graph(0) is None
    assert (method.exchange_phases, method.exchange_ledger(Payload()), method.drawn_rows(Payload(), 0)) == ((), {}, {})
    assert method.release_guarantee() is None
    assert method.cluster_consistency(None, [], None) is None  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Method.overrides("cluster model")


CAPABILITIES = {
    "cluster_model": {"cc", "mcc", "fedmcc", "orchestra", "federated-kmeans"},
    "client_graph": {"cfcl"},
    "exchange_ledger": {"cfcl"},
    "drawn_rows": {"cfcl"},
    "release_guarantee": {"orchestra"},
    "cluster_consistency": {"orchestra"},
}


def questions(source: str, method_classes: set[str]) -> Iterator[str]:
    """Yield every place of a file that asks for the class of a method, or looks at a hook in place of ``overrides``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            asked |= {part.attr for part in ast.walk(node.args[1]) if isinstance(part, ast.Attribute)}
            subject = ast.unparse(node.args[0]).rpartition(".")[2].strip("_")
            if asked & method_classes or (subject in ("method", "method_class") and asked != {"str"}):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            for side in (node.left, *node.comparators):
                if isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id in method_classes:
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def method_classes() -> set[str]:
    """Return the names of all classes of methods and templates."""
    list(methods)  # imports every module
    found, todo = set(), [Method]
    while todo:
        cls = todo.pop()
        if cls.__module__.startswith("unisono."):
            found.add(cls.__name__)
        todo += cls.__subclasses__()
    return found


def test_nobody_outside_of_methods_asks_for_the_class_of_a_method() -> None:
    names = method_classes()
    assert {"Method", "LocalTraining", "SimCLR"} <= names
    files = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "methods"]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): list(questions(path.read_text(encoding="utf-8"), names)) for path in files}
    del found["core/method.py"]  # it defines overrides
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(thing, SimCLR)",
        "isinstance(thing, (int, methods.SimCLR))",
        "issubclass(thing, int | SimCLR)",
        "isinstance(self._method, Protocol)",
        "f(isinstance(experiment.method, X))",
        "Method.cluster_model is not kind.cluster_model",
    ],
)
def test_a_question_for_a_class_is_found(line: str) -> None:
    assert len(list(questions(line, {"Method", "SimCLR"}))) == 1
    assert not list(
        questions("isinstance(thing, str)\nisinstance(method, str)\nmethod.overrides('x')\nvalue is None", {"Method"})
    )
