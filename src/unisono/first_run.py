"""The first run on a folder of images: a recipe that fits the images and the machine, as text that a person can read.

The method is SimCLR with a narrow convolutional network, which learns within minutes on two cores: docs/own-images.md shows
what it reaches on the example, beside raw pixels and untrained weights.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unisono.config import Config, resolve
from unisono.core.config import Tree, merge
from unisono.core.errors import UserError
from unisono.data.datasets import load_dataset
from unisono.experiment import Experiment, run_path
from unisono.fitting import COHORT, LEARNING_RATE, estimate_seconds, fit_method, in_minutes, num_workers
from unisono.own_images import OwnImages
from unisono.recipes import build_tree
from unisono.runs.files import write_atomically

SIZE_ON_CPU, SIZE_ON_GPU = 32, 96
BATCH_SIZE = 64
FEWEST_PASSES, MOST_PASSES = 3, 200
PASSES_PER_ROUND_SQUARED = 2.5
"""Passes over the images and rounds: 40 passes are 10 rounds of 4."""
MOST_NAMES = 1000
LAYOUTS = {
    "clients": "each folder is a site; --labels takes {which} for classes",
    "clients/classes": "each folder is a site, and the folders inside it are classes",
    "classes": "each folder is a class of one site",
    "flat": "all images are of one site",
}
"""Meaning of the levels of folders."""
LONG = 1.3
"""Images longer than this are resized without a crop, so that nothing is cut away."""


@dataclass(frozen=True)
class Wanted:
    """Options of the user.

    Args:
        labels: whether the folders inside each site name classes.
        clients: clients that one folder is dealt to; None: one.
        method: what is learnt.
        views: preset of the views; None takes one that fits the images.
        minutes: how long training may take.
        name: of the run.
    """

    labels: bool = False
    clients: int | None = None
    method: str = "simclr"
    views: str | None = None
    minutes: float = 2.0
    name: str = "first"


@dataclass(frozen=True)
class Plan:
    """A run that is ready to start.

    Args:
        recipe: the options, in the order of the text.
        reasons: a sentence on each of them, by table and key.
        experiment: the images, read, and all that the recipe describes.
        seconds: how long training takes if the machine does nothing else; None where it cannot be told.
    """

    recipe: Tree
    reasons: dict[str, str]
    experiment: Experiment
    seconds: float | None

    @property
    def path(self) -> Path:
        """The run directory."""
        return run_path(self.experiment.config)

    @property
    def text(self) -> str:
        """The recipe as commented TOML."""
        lines = ["# Written by 'unisono start'. Run it with 'unisono run' and the name of this file; change what you like."]
        lines.append("format = 1")
        for table, options in self.recipe.items():
            if not isinstance(options, dict):
                continue
            lines += ["", f"[{table}]"]
            for key, value in options.items():
                reason = self.reasons.get(f"{table}.{key}")
                lines += [f"# {reason}"] if reason else []
                lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"

    @property
    def choices(self) -> list[list[str]]:
        """Rows of option, value and reason, for those that have one."""
        rows = []
        for option, reason in self.reasons.items():
            table, _, key = option.partition(".")
            value = self.recipe[table][key]
            rows.append([option, value if isinstance(value, str) else json.dumps(value), reason])
        return rows

    @property
    def duration(self) -> str:
        """A sentence on the time that the run takes."""
        number = num_workers(self.experiment.config)
        on = "1 process" if number == 1 else f"{number} processes"
        if self.seconds is None:
            return f"How long {self.experiment.config.method_name} takes cannot be told in advance; it trains on {on}."
        how_long = in_minutes(self.seconds)
        return f"Training takes about {how_long} on {on} that nothing else slows down; scores and pages come after it."


def plan(found: OwnImages, wanted: Wanted) -> Plan:
    """Return a run that fits the images and the machine; reads all images.

    Args:
        found: the folder, looked at.
        wanted: what the user asked for.
    """
    if wanted.minutes <= 0:
        raise UserError(f"--minutes must be above 0, got {wanted.minutes:g}.")
    recipe, reasons = _choose(found, wanted)
    config = _config(recipe)
    dataset = load_dataset(config.data)
    # The time of one round of one pass gives the number of passes; what else the machine does now must not shorten the run.
    once = merge(recipe, {"training": {"local_epochs": 1}, "federation": {"rounds": 1}})
    one_pass = estimate_seconds(Experiment.prepare(_config(once), dataset), time.process_time)
    passes = MOST_PASSES if one_pass is None else wanted.minutes * 60 / max(one_pass, 1e-3)
    passes = min(MOST_PASSES, max(FEWEST_PASSES, passes))
    rounds = max(3, round(math.sqrt(PASSES_PER_ROUND_SQUARED * passes)))
    epochs = max(1, round(passes / rounds))
    recipe = merge(recipe, {"training": {"local_epochs": epochs}, "federation": {"rounds": rounds}})
    reasons["training.local_epochs"] = "passes over the images in a round"
    why = f"to take about {wanted.minutes:g} min" if passes < MOST_PASSES else f"of at most {MOST_PASSES}"
    reasons["federation.rounds"] = f"{rounds * epochs} passes in all, {why}"
    fitted = fit_method(Experiment.prepare(_config(recipe), dataset))
    recipe = merge(recipe, fitted)
    reasons |= {f"method.{option}": "to fit the number of sites and of steps" for option in fitted["method"]}
    experiment = Experiment.prepare(_config(recipe), dataset)
    return Plan(recipe, reasons, experiment, None if one_pass is None else one_pass * rounds * epochs)


def written(planned: Plan) -> Path:
    """Write the recipe into the current folder and return its path; a file of that name with other content is kept.

    Args:
        planned: whose recipe it is.
    """
    name = planned.experiment.config.run.name
    for number in range(1, MOST_NAMES):
        path = Path(f"{name}.toml" if number == 1 else f"{name}-{number}.toml")
        if path.is_file() and path.read_bytes() == planned.text.encode():
            return path
        if not path.exists():
            write_atomically(path, planned.text.encode())
            return path
    raise UserError(f"There are {MOST_NAMES:,} recipes named {name} in this folder; remove some or give --name.")


def take_name(given: str | None, folder: Path) -> str:
    """Return the name of a new run: the given one, or that of the folder, with a number if there is such a run.

    Args:
        given: by the user; must be new.
        folder: of the images.
    """
    runs = Path("runs")
    if given is not None:
        if (runs / given).exists():
            raise UserError(f"--name {given}: {runs / given} exists already; choose another name.")
        return given
    name = re.sub(r"[^\w.-]+", "-", folder.absolute().name).strip(".-") or "first"
    names = (name if number == 1 else f"{name}-{number}" for number in range(1, MOST_NAMES))
    found = next((name for name in names if not (runs / name).exists()), None)
    if found is None:
        raise UserError(f"There are {MOST_NAMES:,} runs named {name}; remove some or give --name.")
    return found


def _choose(found: OwnImages, wanted: Wanted) -> tuple[Tree, dict[str, str]]:
    """Return the recipe without its length, and reasons."""
    on_gpu = torch.cuda.is_available()
    side = found.short_side
    largest = SIZE_ON_GPU if on_gpu else SIZE_ON_CPU
    size = min(side, largest)
    channels = found.channels
    bands = {1: "all images are grey", 3: "grey images become RGB too"}.get(channels, f"most images have {channels}")
    layout, partition, split = _layout(found, wanted)
    squeeze = found.stretch > LONG
    held_out = "the images below test/ are held out" if found.apart else "no image is held out: all are learnt from"
    num_clients = partition.get("num_clients", len(found.sites))
    data: dict[str, Any] = {
        "dataset": "folder",
        "path": str(found.root.absolute()),
        "layout": layout,
        "image_size": size,
        "squeeze": squeeze,
        "channels": channels,
        "test_fraction": 0.0,
        "on_error": "skip",
    }
    if found.bits is not None:
        data["bits"] = found.bits
    recipe: Tree = {
        "format": 1,
        "recipe": {"title": f"First run on the images in {found.root.absolute().name}"},
        "method": {"name": wanted.method},
        "data": data,
        "partition": partition,
        "cohort": {"size": min(COHORT, num_clients)},
        "views": {"preset": wanted.views or ("orchestra" if channels == 3 else "clothing")},
        "model": {"backbone": "resnet18" if on_gpu else "convnet"},
        "training": {"batch_size": _batch_size(found), "learning_rate": LEARNING_RATE, "local_epochs": 1},
        "federation": {"rounds": 1},
        "evaluation": {"probe_every": 0},
        "run": {"name": wanted.name},
    }
    if wanted.method != "simclr" and wanted.views is None:
        del recipe["views"]  # those of the method
    if wanted.method == "simclr" and not wanted.labels:
        recipe["evaluation"]["probes"] = ["unlabelled"]
    fits = "their own size" if size == side else f"their median side is {side}; twice the size takes four times as long"
    reasons = {
        "method.name": "as asked by --method" if wanted.method != "simclr" else "learns within minutes; --method names another",
        "data.layout": LAYOUTS[layout].format(which="the folders" if found.depth == 1 else "the folders inside"),
        "data.image_size": f"edge in pixels: {fits}",
        "data.squeeze": "resized without a crop, because many are longer than wide" if squeeze else "cropped to a square first",
        "data.channels": bands,
        "data.bits": f"no value of 16 bits exceeds {max(found.highest.values(), default=0):,}; 16 would read them nearly black",
        "data.test_fraction": held_out,
        "data.on_error": "images that cannot be read are left out and listed in unreadable.txt of the run",
        "partition.scheme": split,
        "cohort.size": "clients that train in a round",
        "views.preset": _why_views(channels, wanted),
        "model.backbone": "an 18-layer ResNet" if on_gpu else "a narrow network of stride-2 convolutions that fits a CPU",
        "evaluation.probe_every": "looks at the encoder at the end only; 5 would do so every 5 rounds",
    }
    given = {option: option.partition(".") for option in reasons}
    return recipe, {option: reasons[option] for option, (table, _, key) in given.items() if key in recipe.get(table, {})}


def _why_views(channels: int, wanted: Wanted) -> str:
    """Return a sentence on the preset of the views."""
    if wanted.views is not None:
        return "as asked by --views"
    made_of = "crops, flips, brightness, contrast, blur, some inverted" + (", and colours" if channels == 3 else "")
    fit = ", which are safe on grey images" if channels == 1 else ""
    return f"{made_of}{fit}; --views names another, and 'unisono views' draws those of the recipe"


def _layout(found: OwnImages, wanted: Wanted) -> tuple[str, dict[str, Any], str]:
    """Return data.layout, the table [partition] and a sentence about it."""
    depth, clients = found.depth, wanted.clients
    if clients is not None and clients < 1:
        raise UserError(f"--clients must be at least 1, got {clients}.")
    if wanted.labels and depth == 0:
        raise UserError(f"--labels needs a folder per class, and the images of {found.root} lie in no folder.")
    one_folder = depth == 0 or (len(found.sites) == 1 and not wanted.labels) or (wanted.labels and depth == 1)
    if not one_folder:
        if clients is not None:
            raise UserError(
                f"--clients splits a single folder, and {found.root} holds {len(found.sites)}, one client each; leave it out."
            )
        layout = "clients/classes" if wanted.labels else "clients"
        return layout, {"scheme": "natural"}, "one client per folder"
    layout = "classes" if wanted.labels else "flat"
    number = clients or 1
    if number > len(found.readable) // 2:
        raise UserError(f"--clients {number} is too many for {len(found.readable)} images; give each client two at least.")
    said = f"dealt to {number} clients at random" if number > 1 else "one client holds all; --clients 5 deals them to five"
    return layout, {"scheme": "iid", "num_clients": number}, said


def _batch_size(found: OwnImages) -> int:
    """Return the samples of a step: fewer where half of the sites have fewer images."""
    sizes = sorted(len(rows) for rows in found.sites.values())
    return max(2, min(BATCH_SIZE, sizes[len(sizes) // 2]))


def _config(recipe: Tree) -> Config:
    return resolve(build_tree(recipe))
