"""The worker setup of a tiny federation, for actors of a simulation."""

from __future__ import annotations

import json
from typing import Any

from unisono.engines.shards import WorkerSetup
from unisono.testing.tiny import TinyFederation


def tiny_terms(method: str, over: dict[str, Any] | None = None) -> str:
    return json.dumps({"method": method, "over": over or {}})


def open_tiny(run_spec: str) -> tuple[WorkerSetup, str]:
    values = json.loads(run_spec)
    return TinyFederation(values["method"], over=values["over"]).setup, "cpu"
