"""A directory of images, its subfolders standing for clients, classes, both or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unisono.core.errors import UnreadableImagesError, UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.arrays import number
from unisono.data.sources.images import list_images
from unisono.data.sources.locate import given_path
from unisono.data.sources.read_all import read_all, remarks
from unisono.data.sources.select import choose_rows


@datasets.register("folder")
def load(config: DataConfig) -> Dataset:
    """Images of ``data.path``: layout ``clients``, ``classes``, ``clients/classes`` or ``flat``.

    Where there are folders ``train`` and ``test``, they are the two parts and the layout begins below them. Otherwise
    ``test_fraction`` of the images are held out, in proportion from every class and client.
    """
    root = given_path(config, "a folder of images")
    if not root.is_dir():
        raise UserError(f"data.path must name a folder of images, but {root} is a file.")
    apart = (root / "train").is_dir() and (root / "test").is_dir()
    files, classes, clients = _list(root / "train" if apart else root, config.layout)
    num_train = len(files)
    if apart:
        test_files, test_classes, _ = _list(root / "test", config.layout)
        files, classes = files + test_files, classes + test_classes

    labels, class_names = number(classes, None, "Class folders") if classes else (None, ())
    owners, owner_names = number(clients, None, "Client folders") if clients else (None, ())
    train, test = choose_rows(
        None if labels is None else labels.numpy(),
        None if owners is None else owners.numpy(),
        num_train,
        len(files),
        config.test_fraction,
        config.limit,
        config.test_limit,
    )
    rows = np.concatenate((train, test))
    images, kept, problems = read_all([files[row] for row in rows], config)
    if problems and (config.on_error == "stop" or not kept):
        raise UnreadableImagesError(problems, len(rows))
    is_kept = np.isin(np.arange(len(rows)), kept)
    train, test = train[is_kept[: len(train)]], test[is_kept[len(train) :]]
    lost = set() if owners is None else set(range(len(owner_names))) - set(owners[train].tolist())
    if lost:
        raise UserError(
            f"No image of the client {owner_names[min(lost)]} is left to train on; remove its folder or mend its images."
        )
    return Dataset(
        "folder",
        images[: len(train)],
        None if labels is None else labels[train],
        images[len(train) :],
        None if labels is None else labels[test],
        class_names,
        None if owners is None else owners[train],
        owner_names,
        unreadable=tuple(problems),
        held_out=not apart,
        remarks=remarks([files[row] for row in rows], images, config),
    )


def _list(root: Path, layout: str) -> tuple[list[Path], list[str], list[str]]:
    """Return files below the root with the names of their classes and clients, an empty list for what the layout lacks."""
    levels = [] if layout == "flat" else layout.split("/")
    files = list_images([root])
    parts = [file.relative_to(root).parts for file in files]
    for file, names in zip(files, parts, strict=True):
        if len(names) <= len(levels):
            raise UserError(
                f"{file} lies outside of the folders that data.layout = {layout!r} asks for; move it or set data.layout."
            )
    used = {names[0] for names in parts}
    for folder in sorted(root.iterdir()) if levels else ():
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in used:
            raise UserError(f"The folder {folder} holds no images; remove it or fill it.")
    classes = [names[levels.index("classes")] for names in parts] if "classes" in levels else []
    clients = [names[levels.index("clients")] for names in parts] if "clients" in levels else []
    return files, classes, clients
