"""The page of file formats names what a run writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
LEFT_OUT = {"probe.NAME"}


def test_keys_are_those_of_a_finished_run(finished: Path) -> None:
    rows = dict(re.findall(r"^\| `(\S+\.jsonl?)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    assert {"metrics.jsonl", "clients.jsonl", "timings.jsonl", "status.json", "run_info.json"} <= set(rows)
    there = {path.name for path in finished.glob("*.json*")}
    assert there <= set(rows), "a file that the page does not name"
    for name in there - {"floors.json", "environment.json", "manifest.json"}:
        entry = json.loads(
            (finished / name).read_text(encoding="utf-8").splitlines()[0]
            if name.endswith("l")
            else (finished / name).read_text()
        )
        found = set(entry).union(*entry.get("clients", ()), *(set(entry.get(key) or ()) for key in ("seconds",)))
        assert set(re.findall(r"`([^`]+)`", rows[name])) - LEFT_OUT <= found, (name, found)


def test_folders_are_there(finished: Path) -> None:
    for name in re.findall(
        r"`([a-z_]+\.(?:safetensors|json|md|html))`",
        PAGE.read_text(encoding="utf-8").partition("| `model/` |")[2].partition("\n\n")[0],
    ):
        assert list(finished.rglob(name)), name
