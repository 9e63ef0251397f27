"""Every registered method keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unisono.core.method import methods
from unisono.testing import parametrize_with_checks


@pytest.mark.usefixtures("few_prototype_steps")
@parametrize_with_checks(list(methods))
def test_conformance(method: str, check: Callable[[str], None]) -> None:
    check(method)
