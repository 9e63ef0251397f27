"""Run the checks of the contract on a method, by hand or as tests of pytest."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from unisono.core.config import closest
from unisono.core.errors import UserError
from unisono.core.method import Method, methods
from unisono.engines.devices import threads
from unisono.testing.checks import CHECKS, Subject

NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Args:
        name: a name of ``CHECKS``.
        passed: whether the method does what the contract says.
        summary: what was checked, a sentence.
        message: what is wrong, a sentence; empty where nothing is.
        seconds: how long it took.
    """

    name: str
    passed: bool
    summary: str
    message: str = ""
    seconds: float = 0.0


def check_method(
    method: str | type[Method],
    *,
    options: Mapping[str, Any] = NO_OPTIONS,
    only: Sequence[str] = (),
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> list[CheckResult]:
    """Run the checks on a method, in a federation of six clients with random images, and return their results.

    Args:
        method: a class, a registered name, ``package.module:NAME`` or ``file.py``.
        options: config tables, such as ``{"method": {"temperature": 0.5}}``.
        only: names of the checks to run; all where empty.
        on_result: told each result as soon as it is there.
    """
    for name in only:
        if name not in CHECKS:
            raise UserError(f"There is no check {name!r}.{closest(name, CHECKS)} Known: {', '.join(CHECKS)}.")
    subject = Subject(_reference(method), options)
    _ = subject.cls  # a method that cannot be imported is no failed check
    results = []
    for name in only or CHECKS:
        with threads(1):  # as in the engines: another number of threads gives other last digits
            results.append(_result(name, subject))
        on_result(results[-1])
    return results


def parametrize_with_checks(
    methods: Sequence[str | type[Method]],
    *,
    options: Mapping[str, Any] = NO_OPTIONS,
    expected_failures: Mapping[str, str] = NO_OPTIONS,
) -> Any:
    """Return a decorator of pytest that calls a test with ``method`` and ``check`` for every method and check.

    The test is ``def test_conformance(method, check): check(method)``.

    Args:
        methods: classes or names.
        options: config tables, as ``check_method`` takes them.
        expected_failures: by the name of a check, why it is expected to fail.
    """
    import pytest

    text = json.dumps(options, sort_keys=True)
    values = []
    for method in methods:
        name = method if isinstance(method, str) else method.name
        for check in CHECKS:
            marks = [pytest.mark.xfail(reason=expected_failures[check], strict=True)] if check in expected_failures else []
            values.append(pytest.param(method, partial(_run, check, text), id=f"{name}-{check}", marks=marks))
    return pytest.mark.parametrize(("method", "check"), values)


def _run(check: str, options: str, method: str | type[Method]) -> None:
    """Run one check; raises what is wrong."""
    with threads(1):
        CHECKS[check](_subject(_reference(method), options))


@lru_cache(maxsize=1)
def _subject(method: str, options: str) -> Subject:
    """Return the subject of consecutive tests, which share its runs."""
    return Subject(method, json.loads(options))


def _result(name: str, subject: Subject) -> CheckResult:
    check, start, message = CHECKS[name], time.perf_counter(), ""
    try:
        check(subject)
    except (AssertionError, UserError) as error:
        message = str(error)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    summary = (check.__doc__ or "").strip()
    return CheckResult(name, not message, summary, " ".join(message.split()), time.perf_counter() - start)


def _reference(method: str | type[Method]) -> str:
    """Return the name by which configs know a method; a UserError for a class that nobody can import."""
    if isinstance(method, str):
        return method
    if method.name in methods and methods[method.name] is method:
        return method.name
    if getattr(sys.modules.get(method.__module__), method.__name__, None) is not method:
        raise UserError(f"{method.__qualname__} must be defined at the top of a module: worker processes import it.")
    return f"{method.__module__}:{method.__name__}"
