from __future__ import annotations

import platform

import torch

from unisono import __version__
from unisono.report.environment import environment


def test_it_names_the_program_and_the_machine() -> None:
    found = environment("cpu")
    assert found["unisono"] == __version__
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["device"].startswith("cpu")
    assert "cores" in found["processor"]
