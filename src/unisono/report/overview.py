"""Overview of a run: the method in a sentence, the data, the split, the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unisono.core.config import Tree
from unisono.data.partition import mean_number_held
from unisono.report.blocks import Block, columns, facts

MOST_COLUMNS = 200
"""More clients than these are shown by every second, third, ... of them, in the order of their sizes."""


def what_was_run(tree: Tree, about: Mapping[str, Any], *, of_federation: bool = False) -> Block:
    """Return the facts of a config, as people say them.

    Args:
        tree: the resolved config.
        about: ``report/about.json``; may be empty.
        of_federation: whether the run was on a real federation, where clients bring their own samples.
    """
    model, training = tree["model"], tree["training"]
    server, privacy = tree["server"], tree["privacy"]
    steps, epochs = training.get("local_steps"), training.get("local_epochs")
    local = plural(steps, "step") if steps is not None else plural(epochs, "epoch")
    parameters = f", {about['parameters']:,} parameters" if about else ""
    noise = f", clipped to {privacy['clip_norm']:g}, noise x {privacy['noise_multiplier']:g}" if _is_private(tree) else ""
    recipe = tree.get("recipe", {})
    return facts(
        "",
        [
            ("recipe", recipe.get("title", "")),
            ("source", recipe.get("source", "")),
            ("method", method_in_words(tree["method"]["name"], about.get("sentence", ""))),
            *(_own_data(tree, about) if of_federation else _data(tree, about)),
            ("encoder", f"{model['backbone']}, width {model['width']:g}, {model['norm']} norm{parameters}"),
            (
                "a client update",
                f"{local}, batches of {training['batch_size']}, {training['optimizer']} at "
                f"{training['learning_rate']:g}, views {tree['views']['preset']}",
            ),
            ("a round", f"{_cohort(tree)}; {tree['aggregation']['rule']}, {server['optimizer']}{noise}"),
            ("screening", _screening(tree, of_federation)),
            ("length", f"{plural(tree['federation']['rounds'], 'round')}, seed {tree['run']['seed']}"),
        ],
    )


def _screening(tree: Tree, of_federation: bool) -> str:
    limit = tree["aggregation"]["screen"]
    if of_federation and tree["privacy"]["secure_aggregation"]:
        return "none: the server of a secure sum sees no single update"
    if limit == 0:
        return "none: aggregation.screen = 0" if of_federation else ""
    return f"an update more than {limit:g} robust standard deviations longer than the median of its round is left out"


def _data(tree: Tree, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    path = tree["data"].get("path")
    samples = (
        f", {about['train_samples']:,} training and {about['test_samples']:,} test samples of {_shape(about)}" if about else ""
    )
    return [
        ("data set", tree["data"]["dataset"] + (f" in {path}" if path else "") + samples),
        ("split", split_in_words(tree)),
        ("shift", "" if tree["shift"]["kind"] == "none" else f"{tree['shift']['kind']}, alpha {tree['shift']['alpha']:g}"),
        ("labels", "" if tree["labels"]["fraction"] == 1 else f"{tree['labels']['fraction']:.1%} of them visible"),
    ]


def _own_data(tree: Tree, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a federation's data; the recipe's data, split and shift are not used there."""
    clients = plural(tree["partition"]["num_clients"], "client")
    return [("federation", clients), ("data", f"the clients' own{', samples of ' + _shape(about) if about else ''}")]


def _shape(about: Mapping[str, Any]) -> str:
    return " x ".join(map(str, about["input_shape"]))


def method_in_words(name: str, sentence: str) -> str:
    """Return the method's sentence, with its name before it where it does not begin with it."""
    return sentence if sentence.lower().startswith(name.lower()) else f"{name}: {sentence}".removesuffix(": ")


def split_in_words(tree: Tree) -> str:
    """Return a split such as ``50 clients, dirichlet with alpha 0.1``."""
    split = tree["partition"]
    if split["scheme"] == "natural":
        return "clients as the data set has them"
    details = {
        "dirichlet": f" with alpha {split['alpha']:g}",
        "dirichlet-prior": f" with alpha {split['alpha']:g}",
        "pachinko": f" with alpha {split['alpha']:g} and {split['fine_alpha']:g}",
        "classes-per-client": f", {split['classes_per_client']} classes each",
        "quantity-skew": f" with sigma {split['sigma']:g}",
    }
    return f"{plural(split['num_clients'], 'client')}, {split['scheme']}{details.get(split['scheme'], '')}"


def split_chart(split: Mapping[str, Any], classes: Sequence[str], client_names: Sequence[str]) -> Block:
    """Return a chart of the samples of each client, a column per client.

    Args:
        split: ``report/split.json``: samples per client, and per client and class.
        classes: their names; empty without labels.
        client_names: names of the clients; empty where they have none.
    """
    counts, sizes = split["counts"], split["sizes"]
    note = f"{sum(sizes):,} samples, {min(sizes):,} to {max(sizes):,} a client"
    if classes:
        note += f"; {mean_number_held(torch.tensor(counts)):.1f} of {len(classes)} classes a client on average"
    return _columns_by_client(
        "Who holds what", counts, sizes, list(classes[: len(counts[0])]) or ["samples"], client_names, note
    )


def turn_chart(split: Mapping[str, Any], client_names: Sequence[str]) -> Block | None:
    """Return a chart of the rotations of each client's images, a column per client; None without a rotation shift.

    Args:
        split: ``report/split.json``: its ``turns`` are samples per client and bin of angles.
        client_names: names of the clients; empty where they have none.
    """
    turns = split.get("turns")
    if not turns:
        return None
    width = 360 / len(turns[0])
    bins = [f"{number * width:g} to {(number + 1) * width:g}°" for number in range(len(turns[0]))]
    note = f"{mean_number_held(torch.tensor(turns)):.1f} of {len(bins)} angles a client on average"
    return _columns_by_client("Rotation of images", turns, split["sizes"], bins, client_names, note)


def _columns_by_client(
    title: str,
    counts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    parts: Sequence[str],
    client_names: Sequence[str],
    note: str,
) -> Block:
    """Return a column per client; some of them, in the order of their sizes, where there are too many."""
    names = list(client_names) or [str(client) for client in range(len(sizes))]
    shown = list(range(len(sizes)))
    if len(shown) > MOST_COLUMNS:
        by_size = sorted(shown, key=lambda client: -sizes[client])
        step = -(-len(by_size) // MOST_COLUMNS)
        shown = by_size[::step]
        note += f"; {len(shown)} of {len(sizes):,} clients shown, largest first"
    groups, values = [names[client] for client in shown], [counts[client] for client in shown]
    return columns(title, "client", "samples", groups, parts, values, note=f"{note}.", shares=len(parts) > 1)


def _cohort(tree: Tree) -> str:
    cohort = tree["cohort"]
    if cohort.get("size") is not None:
        asked = f"{cohort['size']} clients"
    elif cohort.get("participation") is not None:
        asked = f"{cohort['participation']:.0%} of the clients"
    else:
        asked = "all clients"
    return asked if cohort["availability"] == "always" else f"{asked}, availability {cohort['availability']}"


def _is_private(tree: Tree) -> bool:
    return float(tree["privacy"]["noise_multiplier"]) > 0


def plural(number: int, word: str) -> str:
    """Return a number with its noun, such as ``1 run`` or ``2 runs``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
