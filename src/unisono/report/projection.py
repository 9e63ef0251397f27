"""Embeddings of several rounds in two dimensions, so that a sample stays near its place from one round to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unisono.core.progress import tell

Array = NDArray[np.float64]
ENOUGH_FOR_TSNE = 500
MOST_DIMENSIONS = 50
"""t-SNE looks at this many principal components."""
ITERATIONS = 500
LATER_ITERATIONS = 350
"""Iterations for a round that starts from the places of another."""


def chosen_projection(projection: Literal["auto", "tsne", "pca"], num_points: int) -> Literal["tsne", "pca"]:
    """Return the projection for this many points; t-SNE needs a few neighbours for each."""
    if projection == "auto":
        return "tsne" if num_points >= ENOUGH_FOR_TSNE else "pca"
    return "tsne" if projection == "tsne" and num_points >= 10 else "pca"


def project(features: Sequence[Array], kind: Literal["tsne", "pca"], seed: int) -> list[Array]:
    """Return places in the unit square, one array of shape (num_points, 2) per round.

    The last round is laid out first; each earlier one starts from the places of the one after it, and is turned onto them.

    Args:
        features: the same samples in every round, each of shape (num_points, feature_dim).
        kind: t-SNE, or the two main principal components.
        seed: of t-SNE.
    """
    places: list[Array] = []
    for done, values in enumerate(reversed(features), start=1):
        components = principal_components(_unit(values), MOST_DIMENSIONS)
        after = places[0] if places else None
        found = _tsne(components, after, seed) if kind == "tsne" else components[:, :2]
        # The last round lies on its longer side, for screens are wider than high.
        places.insert(0, principal_components(found, 2) if after is None else turned_onto(found, after))
        tell("drawing maps of samples", done, len(features))
    return [_in_unit_square(found) for found in places]


def principal_components(values: Array, most: int) -> Array:
    """Return the leading principal components, shape (num_points, 2 to ``most``); zeros where there are fewer."""
    centred = values - values.mean(axis=0)
    left, scales, right = np.linalg.svd(centred, full_matrices=False)
    # The sign of a component is arbitrary; this one depends on the data alone.
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
    components: Array = (left * scales * np.where(signs == 0, 1.0, signs))[:, :most]
    return np.pad(components, ((0, 0), (0, max(0, 2 - components.shape[1]))))


def turned_onto(places: Array, target: Array) -> Array:
    """Return the same places turned, mirrored and moved, never bent, to lie as near to the target as they can (Procrustes).

    Args:
        places: shape (num_points, 2).
        target: shape (num_points, 2).
    """
    centred = places - places.mean(axis=0)
    left, _, right = np.linalg.svd(centred.T @ (target - target.mean(axis=0)))
    turned: Array = centred @ (left @ right) + target.mean(axis=0)
    return turned


def _tsne(components: Array, start: Array | None, seed: int) -> Array:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    steps = ITERATIONS if start is None else LATER_ITERATIONS
    first = components[:, :2] if start is None else start
    # scikit-learn's own start has this spread; a wider one would keep points from sorting themselves anew.
    first = (first / max(float(first[:, 0].std()), 1e-12) * 1e-4).astype(np.float32)
    perplexity = min(30.0, (len(components) - 1) / 3)
    layout = TSNE(perplexity=perplexity, init=first, max_iter=steps, random_state=seed, n_jobs=1)
    # On a busy machine several threads wait for each other far longer than they compute.
    with threadpool_limits(limits=1):
        found: Array = layout.fit_transform(components.astype(np.float32)).astype(np.float64)
    return found


def _unit(values: Array) -> Array:
    """Return rows of length 1, since probes compare directions too; rows that are not finite become 0."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    unit: Array = finite / np.maximum(np.linalg.norm(finite, axis=1, keepdims=True), 1e-12)
    return unit


def _in_unit_square(places: Array) -> Array:
    """Return the points moved and scaled alike in both directions; a few far-off points may not squeeze the rest."""
    low, high = np.quantile(places, 0.002, axis=0), np.quantile(places, 0.998, axis=0)
    span = max(float((high - low).max()), 1e-12)
    inside: Array = ((places - (low + high) / 2) / span * 0.96 + 0.5).clip(0, 1)
    return inside
