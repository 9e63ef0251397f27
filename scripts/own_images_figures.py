"""Draw the pictures of docs/own-images.md from the run of its first command, and compare what was found with the file names.

``python scripts/own_images_figures.py runs/sites docs/figures`` after ``unisono start sites --example --yes``.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from PIL import Image

from unisono import LoadedRun, load
from unisono.core.context import Context
from unisono.evaluation.clusters import clustering_accuracy
from unisono.evaluation.features import embed
from unisono.evaluation.kmeans import kmeans_clusters
from unisono.evaluation.search import nearest_rows
from unisono.report.gallery import gallery_document

EDGE, GAP, TOP = 56, 6, 10
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


def compare(run: LoadedRun) -> None:
    """Print clustering accuracy and the share of right neighbours, of the run, of untrained weights and of pixels."""
    found = run.embedded()
    images = torch.cat([values for values, _, _ in found.samples.batches()])
    kinds = [Path(name).stem.partition("-")[2] for name in found.samples.names]
    truth = torch.tensor([sorted(set(kinds)).index(kind) for kind in kinds])
    sites = torch.tensor([sorted(set(found.samples.folders)).index(site) for site in found.samples.folders])
    untrained = run.method.encoder(run.method.init_server(Context(0)))
    for name, features in {
        "this run": found.features,
        "untrained weights": embed(untrained, images),
        "raw pixels": images.flatten(1).float() / 255,
    }.items():
        rows, _ = nearest_rows(features, features, TOP, torch.arange(len(features)))
        everywhere = float((truth[rows] == truth[:, None]).float().mean())
        shares = []
        for site in sites.unique():
            own = sites == site
            rows, _ = nearest_rows(features[own], features[~own], TOP)
            shares.append(float((truth[~own][rows] == truth[own][:, None]).float().mean()))
        directions = F.normalize(features, dim=1)
        clusters = kmeans_clusters(directions, directions, len(set(kinds)), torch.Generator().manual_seed(0))
        accuracy = clustering_accuracy(truth, clusters)
        print(f"{name:18} clusters {accuracy:.3f}  neighbours {everywhere:.3f}  in other sites {fmean(shares):.3f}")


def main() -> None:
    """Write three pictures and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    run = load(options.run)
    compare(run)
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
