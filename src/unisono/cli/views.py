"""``unisono views``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unisono.cli import options
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from rich.table import Table

    from unisono.data.views import Views


def views(
    reference: options.OptionalRecipe = None,
    method: options.Method = None,
    dataset: options.Dataset = None,
    preset: Annotated[str | None, typer.Option(help="A preset, or your own code as file.py:function (views.preset).")] = None,
    samples: Annotated[int, typer.Option(min=1, max=50, help="Rows, one per sample; default 8.", show_default=False)] = 8,
    number: Annotated[
        int, typer.Option(min=1, max=20, help="Views of either kind in a row; default 5.", show_default=False)
    ] = 5,
    seed: options.Seed = None,
    settings: options.Overrides = None,
    plot: Annotated[Path, typer.Option(metavar="FILE.png", help="The file; default views.png.", show_default=False)] = Path(
        "views.png"
    ),
) -> None:
    """Draw what methods see of the samples.

    RECIPE|METHOD is as for 'unisono run': whose data and views to take; nothing is trained. Without a preset, digits and
    clothing get the views that fit them, as for a method by name.

    Example: unisono views --dataset digits --preset digits --plot views.png
    """
    import torch

    from unisono.config import resolve
    from unisono.core.client_data import as_float
    from unisono.core.config import parse_overrides
    from unisono.core.errors import UserError
    from unisono.data.datasets import load_dataset
    from unisono.data.views import make_views
    from unisono.data.views_plot import draw_views
    from unisono.fitting import fit_views
    from unisono.recipes import Layer, assemble, flag_layers
    from unisono.runs.files import explained

    # A config names a method; without a recipe any will do, as none runs.
    layers = flag_layers({"method": method, "dataset": dataset, "seed": seed})
    layers += [Layer("--set", parse_overrides(settings or ()))]
    layers += [] if preset is None else [Layer("--preset", {"views": {"preset": preset}})]
    config = resolve(fit_views(assemble(reference or "simclr", layers)).tree)
    data = load_dataset(config.data)
    made = make_views(config.views, data.input_shape, config.model.input_size)
    generator = torch.Generator().manual_seed(config.run.seed)
    rows = torch.randperm(len(data.samples), generator=generator)[:samples]
    title = f"{data.name}, views {Path(config.views.preset).name}"
    try:
        with explained(plot):
            draw_views(made, as_float(data.samples[rows]), number, generator, title, plot)
    except ValueError as error:
        raise UserError(f"--plot must name an image file such as views.png, got {plot}: {error}.") from error
    console = make_console()
    console.print(f"{title}: {len(rows)} samples, {number} first and {number} second views of each\n", soft_wrap=True)
    table = _table(made)
    if table is not None:
        console.print(table)
    console.print(f"\nDrawn in {plot}", soft_wrap=True)


def _table(made: Views) -> Table | None:
    """Return the numbers that change anything; None for a function of the user's own or where nothing does."""
    from unisono.data.image_views import ImageAugmentation
    from unisono.data.series_views import SeriesAugmentation

    augment = made.augment
    if not isinstance(augment, ImageAugmentation | SeriesAugmentation):
        return None
    rows = []
    for field in fields(augment.first):
        first, second = getattr(augment.first, field.name), getattr(augment.second, field.name)
        if (first, second) != (field.default, field.default):
            rows.append([field.name, _shown(first), _shown(second)])
    return make_table(["option of [views]", "first", "second"], rows) if rows else None


def _shown(value: Any) -> str:
    return f"{value[0]:g} to {value[1]:g}" if isinstance(value, tuple) else value if isinstance(value, str) else f"{value:g}"
