from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from unisono.data.graph import GraphConfig, make_graph
from unisono.data.graph_plot import draw_graph


@pytest.mark.parametrize("topology", ["geometric", "ring"])
@pytest.mark.parametrize("counts", [None, torch.tensor([[3, 0], [0, 0], [1, 1]]), torch.ones(3, 30, dtype=torch.int64)])
def test_picture(tmp_path: Path, topology: str, counts: torch.Tensor | None) -> None:
    path = tmp_path / "graph.png"
    names = () if counts is None else [f"class {number}" for number in range(counts.shape[1])]
    draw_graph(make_graph(GraphConfig(topology=topology), 3, 0), counts, names, path)  # type: ignore[arg-type]
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(2**16) or []) > 10
