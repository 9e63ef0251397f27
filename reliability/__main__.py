"""``python -m reliability faults``: the long tests, each with a line per result and an exit code."""

import sys

from reliability.faults import faults

if __name__ == "__main__":
    sys.exit(faults(*(int(word) for word in sys.argv[2:])))
