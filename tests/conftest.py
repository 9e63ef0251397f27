from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: forks of a process with a pool of threads hang
# Tests neither read nor fill the user's cache; all processes of a run of the tests share one.
os.environ.setdefault("UNISONO_CACHE", str(Path(tempfile.gettempdir()) / f"unisono-tests-{os.getuid()}"))
settings.register_profile("untimed", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("untimed")
