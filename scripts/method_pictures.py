"""Draw the pictures of the pages about methods: who computes what, and what goes between clients and server.

``python scripts/method_pictures.py`` writes ``docs/figures/method-*.svg``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
CLIENT, SERVER, PLAIN = ("#e8f1fb", "#0A67CF"), ("#fdeee7", "#CF3D0D"), ("#ffffff", "#777777")
LINE = 17
FONT = 13


@dataclass(frozen=True)
class Box:
    """A box with lines of text; the first line is bold.

    Args:
        x: left edge.
        y: upper edge.
        width: of the box.
        text: lines.
        colours: of ground and frame.
    """

    x: int
    y: int
    width: int
    text: tuple[str, ...]
    colours: tuple[str, str] = CLIENT

    @property
    def height(self) -> int:
        """Height that the lines need."""
        return len(self.text) * LINE + 16


@dataclass(frozen=True)
class Arrow:
    """An arrow with words above it.

    Args:
        start: where it begins.
        end: where its head is.
        text: lines above its middle.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: tuple[str, ...] = ()


Picture = tuple[int, list[Box | Arrow]]
"""Height, and what is drawn; all pictures are 760 wide."""

PICTURES: dict[str, Picture] = {
    "orchestra": (
        190,
        [
            Box(5, 10, 245, ("every client", "samples → encoder → vectors", "vectors → L clusters of equal size")),
            Arrow((250, 40), (505, 40), ("weights, L centroids",)),
            Box(505, 10, 250, ("server", "mean of the weights", "all centroids → G global clusters"), SERVER),
            Arrow((600, 77), (250, 140), ("weights, G centroids",)),
            Box(5, 100, 245, ("every client", "a sample and its view: one cluster", "of the G; how far was it rotated?")),
        ],
    ),
    "fedmcc": (
        205,
        [
            Box(5, 10, 245, ("stage 1, every client", "two views of a sample", "get similar vectors")),
            Arrow((250, 40), (505, 40), ("encoder, instance head",)),
            Box(505, 10, 250, ("server", "mean of the weights", "until stage 2 begins"), SERVER),
            Box(5, 115, 245, ("stage 2, every client", "encoder frozen: two views of a", "batch get the same K clusters")),
            Arrow((250, 145), (505, 145), ("cluster head",)),
            Box(505, 115, 250, ("server", "mean of the cluster heads", "= K clusters for everybody"), SERVER),
            Arrow((630, 77), (630, 115)),
        ],
    ),
    "user-verification": (
        165,
        [
            Box(5, 45, 120, ("client s", "a sample")),
            Arrow((125, 62), (185, 30)),
            Arrow((125, 78), (185, 110)),
            Box(185, 10, 130, ("view 1", "→ z₁")),
            Box(185, 90, 130, ("view 2", "→ z₂")),
            Arrow((315, 35), (370, 35)),
            Arrow((315, 115), (370, 115)),
            Box(370, 10, 210, ("SimCLR", "z₁ finds z₂ among the", "batch of this client"), PLAIN),
            Box(370, 90, 210, ("user verification", "which client is this?", "the answer: s"), PLAIN),
            Arrow((580, 75), (640, 75), ("weights",)),
            Box(640, 48, 115, ("server", "mean"), SERVER),
        ],
    ),
    "cfcl": (
        180,
        [
            Box(5, 10, 235, ("client", "chooses a few typical points", "of its own: the reserve")),
            Arrow((240, 35), (520, 35), ("reserve, to neighbours only",)),
            Box(520, 10, 235, ("neighbour", "which of my points would be", "hard negatives for these?")),
            Arrow((520, 62), (240, 62), ("points that matter most",)),
            Box(5, 105, 235, ("client", "learns on its own points", "and on those it received")),
            Arrow((240, 135), (520, 135), ("weights",)),
            Box(520, 105, 235, ("server", "mean of the weights", "every few steps"), SERVER),
        ],
    ),
    "fedu": (
        170,
        [
            Box(5, 50, 130, ("server", "global model"), SERVER),
            Arrow((135, 75), (215, 75), ("weights",)),
            Box(215, 40, 190, ("client", "how far is it from", "my own model? d")),
            Arrow((405, 60), (460, 28)),
            Arrow((405, 72), (460, 84)),
            Arrow((405, 84), (460, 138)),
            Box(460, 2, 295, ("FedU", "d large: keep my own predictor"), PLAIN),
            Box(460, 60, 295, ("FedEMA", "mix: the larger d, the more of my own"), PLAIN),
            Box(460, 118, 295, ("FedCA (no d)", "negatives: vectors of all clients"), PLAIN),
        ],
    ),
    "baselines": (
        175,
        [
            Box(5, 50, 130, ("client", "a sample")),
            Arrow((135, 65), (195, 35)),
            Arrow((135, 80), (195, 125)),
            Box(195, 10, 110, ("view a", "→ z")),
            Box(195, 105, 110, ("view b", "→ z")),
            Arrow((305, 35), (365, 35)),
            Arrow((305, 130), (365, 130)),
            Box(365, 10, 230, ("SimCLR, SpecLoss", "views of a sample attract,", "other samples repel"), PLAIN),
            Box(365, 90, 230, ("SimSiam, BYOL", "one view predicts the other;", "nothing repels"), PLAIN),
            Arrow((595, 80), (645, 80), ("weights",)),
            Box(645, 53, 110, ("server", "mean"), SERVER),
        ],
    ),
    "kmeans": (
        120,
        [
            Box(5, 20, 235, ("every client", "each sample to its nearest", "centroid; sum and number")),
            Arrow((240, 40), (520, 40), ("sums and numbers, K of each",)),
            Box(520, 20, 235, ("server", "sum / number", "= K new centroids"), SERVER),
            Arrow((520, 72), (240, 72), ("K centroids",)),
        ],
    ),
}  # fmt: skip


def drawn(picture: Picture) -> str:
    """Return an SVG file; it has its own white ground and needs no font but the reader's."""
    height, parts = picture
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760" height="{height}" '
        f'font-family="sans-serif" font-size="{FONT}">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>',
        f'<rect width="760" height="{height}" fill="#fff"/>',
    ]
    for part in parts:
        lines += _box(part) if isinstance(part, Box) else _arrow(part)
    return "\n".join([*lines, "</svg>", ""])


def _box(box: Box) -> list[str]:
    ground, frame = box.colours
    lines = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" fill="{ground}" stroke="{frame}"/>'
    ]
    for number, text in enumerate(box.text):
        weight = ' font-weight="bold"' if number == 0 else ""
        lines.append(f'<text x="{box.x + 10}" y="{box.y + 21 + LINE * number}" fill="#222"{weight}>{escape(text)}</text>')
    return lines


def _arrow(arrow: Arrow) -> list[str]:
    (left, top), (right, bottom) = arrow.start, arrow.end
    lines = [
        f'<line x1="{left}" y1="{top}" x2="{right}" y2="{bottom}" stroke="#444" stroke-width="1.4" marker-end="url(#head)"/>'
    ]
    for number, text in enumerate(arrow.text):
        place = f'x="{(left + right) // 2}" y="{(top + bottom) // 2 - 6 - LINE * (len(arrow.text) - 1 - number)}"'
        ground = 'stroke="#fff" stroke-width="5" paint-order="stroke"'  # a slanting arrow does not cross its words
        lines.append(f'<text {place} {ground} fill="#444" text-anchor="middle" font-size="12">{escape(text)}</text>')
    return lines


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (FIGURES / f"method-{name}.svg").write_text(drawn(picture), encoding="utf-8")
