from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: forks of a process with a pool of threads hang
# Tests neither read nor fill the user's cache; all processes of a run of the tests share one.
os.environ.setdefault("UNISONO_CACHE", str(Path(tempfile.gettempdir()) / f"unisono-tests-{os.getuid()}"))
settings.register_profile("untimed", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("untimed")


@pytest.fixture(scope="module")
def few_prototype_steps() -> Iterator[None]:
    """Orchestra's server takes 20 steps instead of 500, for tests that ask for nothing but the same or other bits."""
    from unisono.clustering.prototypes import prototype_clustering

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unisono.methods.orchestra.prototype_clustering", partial(prototype_clustering, num_steps=20))
        yield
