"""The private parts of Flower that unisono relies on are what it takes them for."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.task_identity import TaskIdentity

from tests.test_layering import PUBLIC_FLOWER
from unisono.core.errors import UserError
from unisono.engines.flower import internals
from unisono.engines.flower.handlers import patient, seldom, uncounted
from unisono.engines.flower.internals import CLIENT_TASKS, imports_late
from unisono.engines.flower.reliance import RELIES_ON, Reliance
from unisono.engines.flower.supernode import OWN_CLIENT, _CappedSleep

MAX_MODULES = 22
GUARD = RELIES_ON["flwr.superlink.main.create_app"]
REST = RELIES_ON["flwr.supernode.start_client_internal.time"]


def said(name: str, reliance: Reliance, found: object) -> str:
    """What to read when a new flwr breaks a reliance."""
    return f"{name}: expected {reliance.parameters}, found {found}. Needed: {reliance.reason}. Without it: {reliance.breaks}."


def find(name: str) -> Any:
    """The module, or what is inside of one, by its dotted name."""
    first, *others = name.split(".")
    found, path = import_module(first), first
    for part in others:
        path = f"{path}.{part}"
        if not hasattr(found, part) and inspect.ismodule(found):
            import_module(path)
        found = getattr(found, part)
    return found


def check(name: str, reliance: Reliance) -> None:
    """Fails with the reason if the installed flwr is not what a reliance says."""
    try:
        found = find(name)
    except (ModuleNotFoundError, AttributeError) as error:
        pytest.fail(said(name, reliance, error))
    if reliance.parameters is None:
        return
    if hasattr(found, "DESCRIPTOR"):
        fields = set(found.DESCRIPTOR.fields_by_name)
        assert set(reliance.parameters) <= fields, said(name, reliance, fields)
    else:
        parameters = tuple(inspect.signature(found).parameters)
        assert parameters == reliance.parameters, said(name, reliance, parameters)


def private_imports() -> set[str]:
    """Dotted names of all that internals.py imports of private flwr."""
    names = set()
    for node in ast.walk(ast.parse(Path(internals.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr") and node.module not in PUBLIC_FLOWER:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        assert not (isinstance(node, ast.Import) and any(alias.name.startswith("flwr") for alias in node.names))
    return names


@pytest.mark.parametrize("name", RELIES_ON)
def test_the_installed_flower_is_what_we_rely_on(name: str) -> None:
    check(name, RELIES_ON[name])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("flwr.supercore.gone.f", ""),
        ("flwr.supercore.retry.gone", ""),
        ("flwr.supercore.retry.make_simple_http_retry_invoker", "tries"),
        ("flwr.proto.node_pb2.Node", "gone"),
    ],
)
def test_a_flower_that_changed_fails_with_the_reason(name: str, parameters: str) -> None:
    with pytest.raises((pytest.fail.Exception, AssertionError), match=r"Needed: to see it\. Without it: nothing works"):
        check(name, Reliance(tuple(parameters.split()), "to see it", "nothing works"))


def test_every_private_import_says_why_and_every_reason_is_for_one() -> None:
    imported = private_imports()
    for name in imported:
        assert any(f"{known}.".startswith(f"{name}.") for known in RELIES_ON), f"{name} has no entry in RELIES_ON"
    used = {name for name in RELIES_ON if any(f"{name}.".startswith(f"{one}.") for one in imported)}
    responses = {"flwr.proto.control_pb2.ListNodesResponse", "flwr.proto.control_pb2.ListRunsResponse"}
    assert set(RELIES_ON) - used == responses
    modules = {name.rpartition(".")[0] if not inspect.ismodule(find(name)) else name for name in imported}
    assert 10 < len(modules) <= MAX_MODULES


def test_words_that_travel_are_flowers() -> None:
    assert TaskType.CLIENT_APP == CLIENT_TASKS
    source = inspect.getsource(internals.TaskSession.finish)
    assert f'"{SubStatus.FAILED}" if failure else "{SubStatus.COMPLETED}"' in source


def test_a_message_keeps_its_number_where_we_write_it() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), 7, "train")
    message.metadata.__dict__["_message_id"] = "number"
    assert message.metadata.message_id == "number"


def test_the_superlink_looks_its_app_up_when_it_starts() -> None:
    from flwr.superlink.cli import flower_superlink

    assert imports_late(flower_superlink, "flwr.superlink.main", "create_app"), said("create_app", GUARD, "an early import")


def test_the_supernode_sleeps_by_the_module_we_replace() -> None:
    module = find("flwr.supernode.start_client_internal")
    assert module.time is time, said("time", REST, module.time)
    source = inspect.getsource(module.start_client_internal)
    assert "time.sleep(3)" in source, said("time.sleep(3)", REST, "another way to rest")


def test_a_superlink_that_would_be_without_guard_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink.cli import flower_superlink

    monkeypatch.setitem(flower_superlink.__globals__, "create_app", object())  # as an import at the top would
    with pytest.raises(UserError, match="nothing would keep its Control API to this machine: install flwr 1"):
        internals.serve_superlink([], lambda app: app)


def test_the_guard_is_put_before_the_app() -> None:
    """In a process of its own, since Flower's modules stay as they were left."""
    script = """
import sys
from unittest.mock import Mock
from flwr.superlink import main
import flwr.superlink.cli
from unisono.engines.flower import internals
from unisono.engines.flower.handlers import patient, seldom, uncounted
app = Mock()
main.create_app = lambda *args: app
uvicorn = None
def serve():
    from flwr.superlink.main import create_app
    create_app("config", "class")
flwr.superlink.cli.flower_superlink = serve
internals.imports_late = lambda *args: True
internals.serve_superlink(["--insecure"], "guard")
assert [call.args[0] for call in app.add_middleware.call_args_list] == [internals.LongPoll, "guard"], "the last stands first"
assert sys.argv == ["flower-superlink", "--insecure"]
print("guarded")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == "guarded\n", done.stderr


def test_a_supernode_that_sleeps_in_another_way_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import flwr.supernode.cli

    started: list[list[str]] = []
    module = find("flwr.supernode.start_client_internal")
    monkeypatch.setattr(flwr.supernode.cli, "flower_supernode", lambda: started.append(sys.argv))
    monkeypatch.setattr(sys, "argv", [])
    handlers = find("flwr.supernode.servicer.runtime.runtime_handlers")
    monkeypatch.setattr(handlers, "acquire_task", handlers.acquire_task)  # put back at the end
    clock = _CappedSleep(0.01)
    monkeypatch.setattr(module, "time", time)
    internals.serve_supernode(["--insecure"], clock)
    assert module.time is clock
    monkeypatch.delattr(module, "time")
    internals.serve_supernode(["--insecure"], clock)
    assert not hasattr(module, "time")
    assert "poll in client.toml has no effect" in capsys.readouterr().err
    assert started == [["flower-supernode", "--insecure"]] * 2


def test_parts_of_a_message_that_are_on_their_way_are_looked_for_soon() -> None:
    """In a process of its own, since Flower's function stays as it was left."""
    script = """
import threading
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from unisono.engines.flower import internals
from unisono.engines.flower.handlers import patient, seldom, uncounted
waits = []
class Event(threading.Event):
    def wait(self, timeout=None):
        waits.append(timeout)
def pull(number):
    if len(waits) < 600:
        raise ObjectUnavailableError(number)
    return b"part"
internals.look_for_parts_soon()
pull_objects.__globals__["threading"] = type("threads", (), {"Event": Event, "Lock": threading.Lock})
assert pull_objects(["a"], pull) == {"a": b"part"}
assert 0.8 * internals.PARTS_FIRST <= waits[0] <= 1.2 * internals.PARTS_FIRST
assert 0.8 * internals.PARTS_MOST <= waits[-1] <= max(waits) <= 1.2 * internals.PARTS_MOST
print("soon")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == "soon\n", done.stderr


def test_a_question_for_a_task_waits_for_one() -> None:
    asked: list[str] = []

    def acquire(request: str, state: str) -> SimpleNamespace:
        asked.append(request + state)
        return SimpleNamespace(token="t" if len(asked) == 3 else "")

    assert patient(acquire, pause=0.001)("r", "s").token == "t"
    assert asked == ["rs"] * 3
    assert patient(acquire, seconds=0.0)("r", "s").token == ""


def test_the_superlink_looks_for_dead_tasks_seldom_and_counts_no_bytes() -> None:
    looked: list[str] = []
    clean_up = seldom(looked.append, seconds=1e9)
    clean_up("a")
    clean_up("b")
    assert looked == ["a"]
    often = seldom(looked.append, seconds=0.0)
    often("c")
    often("d")
    assert looked == ["a", "c", "d"]
    uncounted(None, 1, bytes_sent=1, bytes_recv=0)  # it needs no state


def test_sleeps_are_capped_and_the_rest_of_the_clock_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = _CappedSleep(0.01)
    clock.sleep(3)
    clock.sleep(0.5)
    clock.sleep(0.001)
    assert slept == [0.01, OWN_CLIENT, 0.001]
    assert clock.monotonic is time.monotonic
