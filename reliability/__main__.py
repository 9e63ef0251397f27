"""``python -m reliability faults | chaos``: the long tests, each with a line per result and an exit code."""

import sys

from reliability.chaos import chaos
from reliability.faults import faults

PARTS = {"faults": faults, "chaos": chaos}

if __name__ == "__main__":
    sys.exit(PARTS[sys.argv[1]](*(int(word) for word in sys.argv[2:])))
