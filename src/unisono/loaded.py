"""A run read back from its directory: encoder, embeddings, clusters, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.core.method import Method, RunInfo
from unisono.core.payload import Payload
from unisono.data.value_range import as_samples
from unisono.evaluation.features import embed
from unisono.methods.federated_kmeans import NearestMean
from unisono.models.heads import Normalized
from unisono.report.gallery import feature_clusters
from unisono.runs.checkpoint import DamagedError
from unisono.runs.directory import RunDirectory
from unisono.runs.export import save_model
from unisono.sample_set import OnError, Source, gather, own_data
from unisono.search import Duplicates, Embedded, Neighbors, Outliers, embed_all, find_duplicates, find_neighbors, find_outliers

log = logging.getLogger("unisono")


class LoadedRun:
    """A run and its model.

    Args:
        directory: its files.
        config: as it was run.
        method: gives encoder and cluster_model.
        server: the server's payload after ``round`` rounds.
        round: how many rounds it has seen.
    """

    def __init__(self, directory: RunDirectory, config: Config, method: Method, server: Payload, round: int) -> None:
        self.directory = directory
        self.config = config
        self.method = method
        self.server = server
        self.round = round

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def encoder(self) -> nn.Module:
        """The network from samples to features; it takes images as floats in [0, 1], and series as they are."""
        return self.method.encoder(self.server)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per round."""
        return self.directory.logs["metrics"].read()

    def embed(self, samples: Tensor | NDArray[Any], batch_size: int = 512) -> NDArray[np.float32]:
        """Return features of samples, shape (num_samples, feature_dim).

        Args:
            samples: images, uint8, uint16 or floats in [0, 1], of shape (num_samples, channels, height, width) or
                (num_samples, height, width, channels); series of shape (num_samples, channels, length).
            batch_size: samples per forward pass.
        """
        tensor = self._fitting(samples)
        features: NDArray[np.float32] = embed(self.encoder, tensor, batch_size=batch_size).numpy()
        return features

    def cluster(
        self, samples: Tensor | NDArray[Any], batch_size: int = 512, num_clusters: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return cluster index and confidence of samples; where the method learns no clusters, those of the gallery.

        Args:
            samples: as for ``embed``.
            batch_size: samples per forward pass.
            num_clusters: of k-means, for a method that learns none; None takes as many as there are classes, else 10.
        """
        scores = embed(self._cluster_model(num_clusters), self._fitting(samples), batch_size=batch_size).softmax(dim=1)
        confidence, index = scores.max(dim=1)
        return index.numpy(), confidence.numpy()

    def clustered(self, source: Source, num_clusters: int | None = None, *, on_error: OnError | None = None) -> Embedded:
        """Return samples with names and, as their features, probabilities of all clusters, shape (num_samples, num_clusters).

        Args:
            source: samples, an image, a folder of images or a file of arrays.
            num_clusters: as for ``cluster``.
            on_error: "stop" ends with a list of all files that cannot be read, "skip" leaves them out; None is data.on_error.
        """
        model = self._cluster_model(num_clusters)
        return self._outputs(source, lambda batch: embed(model, batch).softmax(dim=1), on_error)

    def neighbors(
        self, queries: Source, among: Source | None = None, top: int = 10, *, on_error: OnError | None = None
    ) -> Neighbors:
        """Return the most similar samples of each query by the cosine of their features; a query is no answer to itself.

        Args:
            queries: samples, an image, a folder of images or a file of arrays.
            among: what is searched, likewise; the run's own data where None.
            top: how many per query.
            on_error: "stop" ends with a list of all files that cannot be read, "skip" leaves them out; None is data.on_error.
        """
        asked = self.embedded(queries, on_error=on_error)
        searched = asked if queries is among else self.embedded(among, on_error=on_error)
        return find_neighbors(asked, searched, top)

    def duplicates(
        self, among: Source | None = None, threshold: float | None = None, *, on_error: OnError | None = None
    ) -> Duplicates:
        """Return pairs of samples that are equal byte by byte, and pairs with a high cosine of their features.

        Args:
            among: samples, a folder of images or a file of arrays; the run's own data where None.
            threshold: the least cosine of near duplicates; None reads it off the samples.
            on_error: "stop" ends with a list of all files that cannot be read, "skip" leaves them out; None is data.on_error.
        """
        return find_duplicates(self.embedded(among, on_error=on_error), threshold)

    def outliers(self, among: Source | None = None, num_neighbors: int = 10, *, on_error: OnError | None = None) -> Outliers:
        """Return samples ranked by the mean cosine distance to their nearest others, the farthest first.

        Args:
            among: samples, a folder of images or a file of arrays; the run's own data where None.
            num_neighbors: how many of the nearest others count.
            on_error: "stop" ends with a list of all files that cannot be read, "skip" leaves them out; None is data.on_error.
        """
        return find_outliers(self.embedded(among, on_error=on_error), num_neighbors)

    def embedded(self, source: Source | None = None, *, on_error: OnError | None = None) -> Embedded:
        """Return samples with names and features.

        Args:
            source: samples, an image, a folder of images or a file of arrays; the run's own data where None.
            on_error: "stop" ends with a list of all files that cannot be read, "skip" leaves them out; None is data.on_error.
        """
        encoder = self.encoder
        return self._outputs(source, lambda batch: embed(encoder, batch), on_error)

    def _outputs(self, source: Source | None, embed: Callable[[Tensor], Tensor], on_error: OnError | None) -> Embedded:
        shape, data = self.method.info.input_shape, self.config.data
        samples = own_data(self.config, shape) if source is None else gather(source, shape, data.squeeze, data.bits)
        return embed_all(samples, embed, on_error or data.on_error)

    def save_model(self) -> None:
        """Write ``model/``: weights, what they need to be used, and a model card."""
        save_model(self.directory, self.encoder, self.config.as_tree(), self.metrics)

    def _cluster_model(self, num_clusters: int | None = None) -> nn.Module:
        """Return the method's clusters, or those of k-means on the features that the run kept for its report."""
        model, name = self.method.cluster_model(self.server), self.config.method_name
        if model is not None and num_clusters is not None:
            raise UserError(f"The number of clusters is that of the run, because {name} learns its own; leave it out.")
        if model is not None:
            return model
        found = feature_clusters(self.directory, num_clusters)
        if found is None:
            raise UserError(
                f"method {name!r} learns no clusters, and the run kept no features to find some; 'unisono report "
                f"{self.path}' adds them."
            )
        return NearestMean(Normalized(self.encoder), *found).eval()

    def _fitting(self, samples: Tensor | NDArray[Any]) -> Tensor:
        return as_samples(samples, self.method.info.input_shape, self.config.data.bits)


def load(path: str | Path, round: int | None = None) -> LoadedRun:
    """Read a run back without its data.

    Args:
        path: the run directory.
        round: a round that has a checkpoint; the newest readable one where None.
    """
    directory = RunDirectory.open(Path(path))
    config = resolve(directory.config_tree)
    try:
        info = RunInfo(**directory.load_run_info(), sections=config.method_sections)
    except TypeError as error:
        raise UserError(f"{directory.path / 'run_info.json'} is damaged ({error}); see 'unisono verify {path}'.") from error
    method = config.method_class(config.method, info)
    checkpoints = directory.checkpoints()
    available = checkpoints.rounds()
    if round is not None and round not in available:
        raise UserError(f"{path} has no checkpoint of round {round}; it has {', '.join(map(str, available)) or 'none'}.")
    problem: DamagedError | None = None
    for candidate in [round] if round is not None else reversed(available):
        try:
            found = LoadedRun(directory, config, method, checkpoints.server_at(candidate), candidate)
        except DamagedError as error:
            problem = error
            continue
        if problem is not None:
            log.error("%s: %s; the one of round %d is used.", path, problem, candidate)
        return found
    if not available:
        raise UserError(f"{path} has no checkpoint yet: continue it with 'unisono resume {path}'.")
    raise UserError(f"{path} cannot be read: {problem}.")
