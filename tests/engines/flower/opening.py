"""The workshop of a tiny federation, for actors of a simulation."""

from __future__ import annotations

import json
from typing import Any

from unisono.engines.lanes import Workshop
from unisono.testing.tiny import TinyFederation


def tiny_terms(method: str, over: dict[str, Any] | None = None) -> str:
    return json.dumps({"method": method, "over": over or {}})


def open_tiny(terms: str) -> tuple[Workshop, str]:
    values = json.loads(terms)
    return TinyFederation(values["method"], over=values["over"]).workshop, "cpu"
