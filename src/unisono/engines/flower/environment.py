"""Environment of Flower's processes: variables that switch off telemetry, update checks and installs, and its own files.

Nothing here imports flwr, so that it can be called before flwr is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

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

SIMULATION_NOTE = (
    "engine.kind = 'flower' stands on Flower's run_simulation, which Flower calls deprecated since 1.41; it works with every "
    "flwr that unisono accepts (below 1.43)"
)
"""Note for users of the simulation; docs/deployment.md says why it stays."""


def keep_quiet() -> None:
    """Set the variables for this process and those it starts, where the user has not."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def process_environment(home: Path) -> dict[str, str]:
    """Return the variables for Flower's own processes: its home, and this interpreter's programs first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path, "PYTHONWARNINGS": "ignore"}


def require_flower(*, ray: bool = False) -> None:
    """Raise a UserError that says what to install if a package is missing.

    Args:
        ray: whether a simulation is wanted.
    """
    missing = [name for name in ("flwr", *(["ray"] if ray else [])) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"This needs {' and '.join(missing)}, the extra 'flower': pip install 'unisono[flower]'.")
