"""Colours remain apart for those who see fewer of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from unisono.report.palette import DARK, LIGHT, SCALE_DARK, SCALE_LIGHT

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.
SEEN = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "everything": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: str) -> NDArray[np.float64]:
    """CIELAB of a colour as it is seen."""
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt((TO_XYZ @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1)) / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("seen", SEEN)
def test_every_two_colours_differ(palette: tuple[str, ...], seen: str) -> None:
    distances = {pair: float(np.linalg.norm(lab(pair[0], seen) - lab(pair[1], seen))) for pair in combinations(palette, 2)}
    assert min(distances.values()) > 25, min(distances, key=lambda pair: distances[pair])


@pytest.mark.parametrize("scale", [SCALE_LIGHT, SCALE_DARK])
@pytest.mark.parametrize("seen", SEEN)
def test_a_scale_rises_in_lightness_to_everybody(scale: tuple[str, ...], seen: str) -> None:
    steps = np.diff([lab(colour, seen)[0] for colour in scale])
    assert steps.min() > 4


def test_no_end_of_a_scale_fades_into_the_page() -> None:
    assert abs(lab(SCALE_LIGHT[-1], "everything")[0] - lab("#ffffff", "everything")[0]) > 12
    assert abs(lab(SCALE_DARK[0], "everything")[0] - lab("#1a2029", "everything")[0]) > 12


def test_all_lists_are_as_long_as_the_scripts_say() -> None:
    assert len(LIGHT) == len(DARK) == 10
    assert len(SCALE_LIGHT) == len(SCALE_DARK) == 9
