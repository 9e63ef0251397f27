"""``python -m reliability faults | chaos | fuzz | soak | robust``: the long tests, with a line per result and an exit code."""

import sys

from reliability.chaos import chaos
from reliability.faults import faults
from reliability.fuzz import fuzz
from reliability.robust import robust
from reliability.soak import soak

PARTS = {"faults": faults, "chaos": chaos, "fuzz": fuzz, "soak": soak, "robust": robust}

if __name__ == "__main__":
    sys.exit(PARTS[sys.argv[1]](*(int(word) for word in sys.argv[2:])))
