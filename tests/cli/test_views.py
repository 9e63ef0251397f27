from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command

DIGITS = ("views", "--dataset", "digits", "--samples", 3, "--number", 2)


def sheet(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("L"), dtype=float)


def test_numbers_of_both_views_are_shown_and_a_sheet_is_drawn(unisono: Command, tmp_path: Path) -> None:
    text = unisono(*DIGITS, "--preset", "orchestra", "--plot", "some.png").out
    assert "digits, views orchestra: 3 samples, 2 first and 2 second views of each" in text
    assert ["blur", "0.5", "0.1"] in [line.split() for line in text.splitlines()]
    assert "crop_scale" in text
    assert "rotation" not in text
    assert "Drawn in some.png" in text
    assert max(map(len, text.splitlines())) <= 80
    assert min(sheet(tmp_path / "some.png").shape) > 100


def test_the_sheet_shows_the_views_that_were_asked_for(unisono: Command, tmp_path: Path) -> None:
    def drawn(*arguments: object) -> np.ndarray:
        assert unisono(*DIGITS, *arguments).code == 0
        return sheet(tmp_path / "views.png")

    plain, again, turned, other = (
        drawn(*words)
        for words in (
            ("--preset", "none"),
            ("--preset", "none"),
            ("--preset", "none", "--set", "views.rotation=90"),
            ("--preset", "none", "--set", "views.rotation=90", "--seed", 1),
        )
    )
    assert np.array_equal(plain, again)
    assert not np.array_equal(plain, turned)
    assert not np.array_equal(turned, other)
    assert np.array_equal(plain[60:, : plain.shape[1] // 6], turned[60:, : plain.shape[1] // 6])  # the originals


def test_a_recipe_gives_data_and_views(unisono: Command) -> None:
    text = unisono("views", "digits-smoke", "--samples", 1).out
    assert "digits, views simclr" in text


def test_the_views_fit_the_data_unless_given(unisono: Command) -> None:
    assert "digits, views digits" in unisono(*DIGITS).out
    assert "digits, views photos" in unisono(*DIGITS, "--preset", "photos").out
    assert "digits, views simclr" in unisono(*DIGITS, "--set", "views.preset=simclr").out


def test_series_are_drawn_as_lines(unisono: Command, tmp_path: Path) -> None:
    samples = np.sin(np.linspace(0, 9, 40)).astype("float32") * np.ones((30, 2, 1), dtype="float32")
    np.savez(tmp_path / "series.npz", x=samples)
    result = unisono("views", "--dataset", "npz", "--set", "data.path=series.npz", "--samples", 2)
    assert "scaling" in result.out, result
    assert len(np.unique(sheet(tmp_path / "views.png"))) > 10


def test_a_function_of_ones_own_is_drawn(unisono: Command, tmp_path: Path) -> None:
    (tmp_path / "dark.py").write_text("def dark(batch, generator):\n    return 0.2 * batch\n")
    result = unisono(*DIGITS, "--preset", "dark.py:dark")
    assert "digits, views dark.py:dark" in result.out, result
    pixels = sheet(tmp_path / "views.png")[60:]
    half = pixels.shape[1] // 2
    assert np.median(pixels[:, half:]) < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "digit"), "views.preset must be 'digits', "),
        (("--preset", "absent.py:f"), "cannot be imported: there is no file"),
        (("--set", "views.rotation=400"), "views.rotation must be less than or equal to 180, got 400."),
        (("--plot", "views.txt"), "--plot must name an image file such as views.png, got views.txt"),
        (("--plot", "absent/views.png"), "absent"),
    ],
)
def test_mistakes_get_one_sentence(unisono: Command, arguments: tuple[str, ...], message: str) -> None:
    assert message in unisono(*DIGITS, *arguments).sentence
