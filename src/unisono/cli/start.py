"""``unisono start``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unisono.cli.error_output import stopping
from unisono.cli.tables import make_console, make_table

if TYPE_CHECKING:
    from rich.console import Console

    from unisono.first_run import Plan
    from unisono.own_images import OwnImages

MOST_SITES = 12
"""Sites that the table shows one by one."""


def start(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", hidden=True)],
    labels: Annotated[bool, typer.Option("--labels", help="The folders inside each site name classes.")] = False,
    clients: Annotated[int | None, typer.Option(help="Deal the images of a single folder to so many clients.")] = None,
    method: Annotated[str, typer.Option(help="One of 'unisono list methods'; default simclr.", show_default=False)] = "simclr",
    views: Annotated[
        str | None,
        typer.Option(help="Preset of views, such as digits; default: fits the images.", show_default=False),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time that training may take here; default 2.", show_default=False)] = 2.0,
    name: Annotated[
        str | None, typer.Option(help="Name of the run directory and of the recipe; default: the folder's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run without a question.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")] = False,
    example: Annotated[bool, typer.Option("--example", help="First write example images of three sites to FOLDER.")] = False,
) -> None:
    """Learn from a folder of images, one folder per site.

    FOLDER is looked at: sites, sizes, channels, bits, files that cannot be read, exact duplicates. Image size, partition,
    views, network and length are chosen to fit the images and this machine, and written to a recipe that you can read and
    change. The recipe runs after a yes. All images are learnt from; none is held out, unless there are folders train and test.

    Example: unisono start sites --dry-run
    """
    from unisono.cli.summary import summarise
    from unisono.core.errors import left_out
    from unisono.first_run import Wanted, plan, take_name, written
    from unisono.own_images import first_problem, look
    from unisono.running import start as start_run

    console = make_console()
    if example and not dry_run:
        from unisono.data.example_sites import write_example

        console.print(f"{write_example(folder):,} example images of three sites written to {folder}\n", soft_wrap=True)
    found = look(folder)
    _print_found(console, found)
    wanted = Wanted(labels, clients, method, views, minutes, take_name(name, folder))
    planned = plan(found, wanted)
    bad = dict(planned.experiment.dataset.unreadable)
    seemed_good = [file for file, head in zip(found.files, found.heads, strict=True) if head is not None]
    late = [(file, bad[file.absolute()]) for file in seemed_good if file.absolute() in bad]
    if late:
        what = "more file" if found.problems else "file"
        console.print(f"note: {left_out(len(late), what)}: {first_problem(late)}", soft_wrap=True)
    _print_plan(console, planned)
    if dry_run:
        console.print(f"\nThe recipe:\n\n{planned.text}", soft_wrap=True)
        return
    recipe = written(planned)
    console.print(f"\nRecipe: {recipe}", soft_wrap=True)
    if not yes and not _agreed():
        console.print(f"Nothing was run. To run it: unisono run {recipe}", soft_wrap=True)
        return
    from unisono.cli.progress import Progress

    config = planned.experiment.config
    with stopping(planned.path), Progress(config, console) as progress:
        finished = start_run(planned.experiment, planned.path, callbacks=[progress])
    summarise(finished, quiet=False, json=False)
    query = next(file for file in seemed_good if file.absolute() not in bad)
    console.print("\nNext:")
    for words in (["neighbors", planned.path, query], ["duplicates", planned.path], ["outliers", planned.path]):
        console.print(f"  unisono {shlex.join(map(str, words))}", soft_wrap=True)


def _agreed() -> bool:
    """Return the answer of the user; no where nobody can answer."""
    return sys.stdin.isatty() and typer.confirm("Run it now?", default=True)


def _print_found(console: Console, found: OwnImages) -> None:
    """Print a row for each site, and what is wrong with the files."""
    from unisono.own_images import counted

    heads = {"": "images", "size": "size", "channels": "channels", "bits": "bits"}
    rows = []
    for site, positions in found.sites.items():
        known = [head for row in positions if (head := found.heads[row]) is not None]
        rows.append(
            [
                site or found.root.name,
                f"{len(positions):,}",
                counted([f"{head.width}x{head.height}" for head in known]),
                counted([str(head.channels) for head in known]),
                counted([str(head.bits) for head in known]),
            ]
        )
    hidden = len(rows) - MOST_SITES
    columns = ["site", *heads.values()]
    console.print(make_table(columns, rows[:MOST_SITES], right=["images"]))
    if hidden > 0:
        console.print(f"and {hidden:,} more")
    console.print(f"\n{len(found.files):,} images of {len(rows):,} {'site' if len(rows) == 1 else 'sites'}.")
    for sentence in found.remarks:
        console.print(f"note: {sentence}", soft_wrap=True)


def _print_plan(console: Console, planned: Plan) -> None:
    """Print what was chosen and how long it takes."""
    console.print("\nChosen:")
    console.print(make_table(["option", "value", "why"], planned.choices, heads=False, whole=["option"]))
    console.print(f"\n{planned.duration}", soft_wrap=True)
