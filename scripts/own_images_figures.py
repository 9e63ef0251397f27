"""Draw the pictures of docs/own-images.md from the run of its first command.

``python scripts/own_images_figures.py runs/sites docs/figures`` after ``unisono start sites --example --yes``.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from unisono import load
from unisono.report.gallery import gallery_document

EDGE, GAP = 56, 6
PER_SITE, CLUSTERS, PER_CLUSTER = 12, 6, 12
QUERIES = ("ankle-boot", "trouser", "bag")
Picture = Image.Image


def sheet(rows: Sequence[Sequence[Picture]], first_apart: bool = False) -> Picture:
    """Return pictures row by row on white; a gap follows the first of each row if it is the query of the others."""
    width = max(map(len, rows)) * (EDGE + GAP) + GAP + (2 * GAP if first_apart else 0)
    whole = Image.new("RGB", (width, len(rows) * (EDGE + GAP) + GAP), "white")
    for line, column in ((line, column) for line, row in enumerate(rows) for column in range(len(row))):
        left = GAP + column * (EDGE + GAP) + (2 * GAP if first_apart and column else 0)
        small = rows[line][column].convert("RGB").resize((EDGE, EDGE), Image.Resampling.BICUBIC)
        whole.paste(small, (left, GAP + line * (EDGE + GAP)))
    return whole


def main() -> None:
    """Write three pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    run = load(options.run)
    root = Path(str(run.config.data.path))
    sites = sorted(folder for folder in root.iterdir() if folder.is_dir())
    files = {site: sorted(site.iterdir()) for site in sites}
    shown = [[Image.open(file) for file in files[site][:PER_SITE]] for site in sites]
    sheet(shown).save(options.output / "own-images-sites.png", optimize=True)

    document = gallery_document(run.directory)
    assert document is not None
    sheets = [block for section in document["sections"][:CLUSTERS] for block in section["blocks"] if block["kind"] == "sheet"]
    (sprite,) = document["assets"].values()
    picture = Image.open(io.BytesIO(base64.b64decode(sprite["source"].partition(",")[2])))

    def cut(member: int) -> Picture:
        line, column = divmod(member, sprite["columns"])
        left, top = column * sprite["cell_width"], line * sprite["cell_height"]
        return picture.crop((left, top, left + sprite["width"], top + sprite["height"]))

    typical = [[cut(member) for member in block["rows"][0]["members"][:PER_CLUSTER]] for block in sheets]
    sheet(typical).save(options.output / "own-images-clusters.png", optimize=True)

    asked = [next(file for file in files[site] if kind in file.name) for site, kind in zip(sites, QUERIES, strict=True)]
    rows = []
    for query in asked:
        table = run.neighbors(query, root, top=PER_CLUSTER - 1).table()
        rows.append([Image.open(name) for name in [query, *(Path(str(row["file"])) for row in table)]])
    sheet(rows, first_apart=True).save(options.output / "own-images-neighbors.png", optimize=True)


if __name__ == "__main__":
    main()
