import os
from pathlib import Path

import pytest

from unisono.data.sources import idx, locate

REAL_DATA = os.environ.get(locate.ENVIRONMENT_VARIABLE)
DEBIAN_FOLDER = idx.DEBIAN_FOLDER


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch, tmp_path_factory):
    monkeypatch.delenv(locate.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", Path("nowhere"))
