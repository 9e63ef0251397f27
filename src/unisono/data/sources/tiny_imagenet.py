"""Tiny ImageNet from its official directory.

Le and Yang, Tiny ImageNet visual recognition challenge, CS 231N, 2015.
"""

from __future__ import annotations

from pathlib import Path

import torch

from unisono.core.errors import UserError
from unisono.data.datasets import DataConfig, Dataset, datasets
from unisono.data.sources.images import list_images, read_images
from unisono.data.sources.locate import candidates, find_folder, reading
from unisono.data.sources.select import choose_rows

SIZE = (64, 64)
ORIGIN = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


@datasets.register("tiny-imagenet")
def load(config: DataConfig) -> Dataset:
    """Tiny ImageNet: 100,000 training images of 3x64x64 in 200 classes.

    Its 10,000 validation images are the test part, as in the literature: the labels of the test folder are not public.
    """
    needed = ("wnids.txt", "words.txt", "train", "val/val_annotations.txt", "val/images")
    folder = find_folder(config, list(candidates(config, ("tiny-imagenet-200",))), needed, ORIGIN)
    wnids = _lines(folder / "wnids.txt")
    words = dict(line.split("\t", 1) for line in _lines(folder / "words.txt"))
    place = {wnid: position for position, wnid in enumerate(wnids)}

    files = [list_images([folder / "train" / wnid / "images"]) for wnid in wnids]
    pairs = [(file, label) for label, in_class in enumerate(files) for file in in_class]
    num_train = len(pairs)
    annotations = folder / "val" / "val_annotations.txt"
    for line in _lines(annotations):
        name, wnid = (line + "\t").split("\t")[:2]
        if wnid not in place:
            raise UserError(f"{annotations} names the class {wnid!r}, which wnids.txt does not; get both from {ORIGIN}.")
        pairs.append((folder / "val" / "images" / name, place[wnid]))

    labels = torch.tensor([label for _, label in pairs])
    train, test = choose_rows(labels.numpy(), None, num_train, len(pairs), 0.0, config.limit, config.test_limit)
    return Dataset(
        "tiny-imagenet",
        read_images([pairs[row][0] for row in train], 3, SIZE),
        labels[train],
        read_images([pairs[row][0] for row in test], 3, SIZE),
        labels[test],
        class_names=tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids),
    )


def _lines(path: Path) -> list[str]:
    with reading(path):
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
