"""Write the table of attacks that the tests try into docs/security.md: ``python scripts/attacks.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.attacks import PAGE, page_with_table

if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
