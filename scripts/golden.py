"""Compare what every method computes, and what every study runs, between two states of the source.

    python scripts/golden.py save before.json       # before a refactoring
    python scripts/golden.py compare before.json    # after it: lists every difference, exit status 1 if there is one

Two parts: hashes of the server state of every method after three rounds of a tiny federation, with 0 and 2 workers; and the
resolved config of every cell of every study, at every scale. Hashes hold for one kind of processor only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from unisono.core.method import methods  # noqa: E402
from unisono.core.wire import CHECKSUM, to_bytes  # noqa: E402
from unisono.studies.grid import make_cells  # noqa: E402
from unisono.studies.runner import comparable  # noqa: E402
from unisono.studies.study import list_studies, read_study, scales_of  # noqa: E402
from unisono.testing.tiny import TinyFederation  # noqa: E402


def end_states() -> dict[str, str]:
    """Return a hash of the server state after three rounds, by method and number of workers."""
    found = {}
    for method in methods:
        for workers in (0, 2):
            state = TinyFederation(method, workers=workers).run()
            content = to_bytes(state.server)[:-CHECKSUM] + to_bytes(state.optimizer)[:-CHECKSUM]
            found[f"{method}, {workers} workers"] = hashlib.sha256(content).hexdigest()
    return found


def cell_configs() -> dict[str, dict[str, Any]]:
    """Return the resolved options of every study cell of the first seed."""
    found = {}
    for name, path in list_studies().items():
        for scale in scales_of(path):
            study = read_study(name, scale)
            for cell in make_cells(study, Path("runs"), seeds=study.config.seeds[:1]):
                key = f"{name} ({scale}): {cell.variant} / {cell.setting}"
                found[key] = json.loads(json.dumps(comparable(cell.config().as_tree())))
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for everything that is new, gone or different."""
    lines = []
    for part in ("states", "cells"):
        for key in sorted(before[part].keys() | after[part].keys()):
            old, new = before[part].get(key), after[part].get(key)
            if old is None or new is None:
                lines.append(f"{key}: {'new' if old is None else 'gone'}")
            elif part == "states" and old != new:
                lines.append(f"{key}: another end state")
            elif part == "cells":
                for option in sorted(old.keys() | new.keys()):
                    if old.get(option) != new.get(option):
                        lines.append(f"{key}: {option} was {old.get(option)!r}, is {new.get(option)!r}")
    return lines


def main() -> None:
    """Save the present state to a file, or compare it with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", choices=("states", "cells"), help="leave the other part out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        "states": {} if args.only == "cells" else end_states(),
        "cells": {} if args.only == "states" else cell_configs(),
    }
    if args.action == "save":
        args.file.write_text(json.dumps(found, indent=1, sort_keys=True))
        print(f"{len(found['states'])} end states and {len(found['cells'])} cells are in {args.file}.")
        return
    before = json.loads(args.file.read_text())
    for part in ("states", "cells"):
        before[part] = before[part] if found[part] else {}
    lines = differences(before, found)
    print("\n".join(lines) or f"No difference in {len(found['states'])} end states and {len(found['cells'])} cells.")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
