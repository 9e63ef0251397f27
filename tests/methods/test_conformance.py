"""Every registered method keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

from unisono.core.method import methods
from unisono.testing import parametrize_with_checks


@parametrize_with_checks(list(methods))
def test_conformance(method: str, check: Callable[[str], None]) -> None:
    check(method)
