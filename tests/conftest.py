from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("untimed")
