"""Environment variables that keep Flower and Ray to themselves: no telemetry, no update check, nothing installed at run time.

Nothing here imports flwr, so that it can be called before flwr is imported.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from unisono.core.errors import UserError

ENVIRONMENT: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def keep_quiet() -> None:
    """Sets the variables for this process and those it starts, where the user has not."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def require_flower(*, ray: bool = False) -> None:
    """Nothing, or a UserError that says what to install.

    Args:
        ray: whether a simulation is wanted.
    """
    missing = [name for name in ("flwr", *(["ray"] if ray else [])) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"This needs {' and '.join(missing)}, the extra 'flower': pip install 'unisono[flower]'.")
