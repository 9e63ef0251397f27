"""Trackers of metrics: TensorBoard, MLflow, Weights & Biases, each through its own client.

All are off by default. Each is a package of its own that must be installed. What a tracker sends, and where, is its own affair:
TensorBoard writes files into the run directory, MLflow writes to its tracking address, Weights & Biases to its servers unless
told otherwise (``WANDB_MODE=offline``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from pydantic import Field

from unisono.core.config import Section
from unisono.core.errors import UserError
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.runs.directory import RunDirectory

PACKAGES = ("tensorboard", "mlflow", "wandb")
"""Options of the table that name trackers, and the package that each needs."""
IDS = "trackers.json"
"""File with the run's names at the trackers, so that a resumed run continues in the same place."""
LONGEST_PARAMETER = 500
"""Characters of an option's value that MLflow takes in all of its versions."""


class TrackConfig(Section):
    """Destinations of metrics besides the run directory: the table ``[track]``."""

    tensorboard: bool = Field(False, description="event files in the run directory, for the package tensorboard")
    mlflow: bool = Field(False, description="a run at mlflow_uri, by the package mlflow")
    mlflow_uri: str | None = Field(None, description="address of MLflow, such as sqlite:///mlflow.db; unset: its own choice")
    wandb: bool = Field(False, description="a run at Weights & Biases, by the package wandb")
    project: str = Field("unisono", min_length=1, description="name of the experiment or project at MLflow and W&B")


class Tracker(Protocol):
    """One service, for one run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round."""

    def close(self) -> None:
        """Mark the run as finished."""


def check_trackers(config: TrackConfig) -> None:
    """Raise a UserError that says which package is missing, if one is."""
    for name in PACKAGES:
        if getattr(config, name) and find_spec(name) is None:
            raise UserError(f"track.{name} needs the package {name}: pip install {name}, or set track.{name} to false.")


class Tracking(Callback):
    """Callback that sends every round's numbers to the trackers of the config; steps are numbers of rounds done.

    One that cannot begin is a UserError. One that fails during a run, such as for want of a network, is noted and left out from
    then on: the run directory has all numbers anyway.

    Args:
        config: the table.
        directory: of the run.
        tree: the run's whole config, shown as its parameters.
        num_rounds: length of the run.
    """

    def __init__(self, config: TrackConfig, directory: RunDirectory, tree: Mapping[str, Any], num_rounds: int) -> None:
        self._config = config
        self._directory = directory
        self._tree = tree
        self._num_rounds = num_rounds
        self._trackers: dict[str, Tracker] = {}

    def on_run_start(self, state: ServerState) -> None:
        path = self._directory.path / IDS
        ids: dict[str, Any] = self._directory.read_json(IDS) if path.is_file() else {}
        makers: dict[str, Callable[..., Tracker]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow, "wandb": _WandB}
        for name, maker in makers.items():
            if getattr(self._config, name):
                try:
                    self._trackers[name] = maker(self._config, self._directory, self._tree, ids, state.round)
                except Exception as error:  # each client has exceptions of its own
                    reason = " ".join(f"{type(error).__name__}: {error}".split())
                    raise UserError(
                        f"track.{name} could not begin ({reason}): set that right and go on with 'unisono resume "
                        f"{self._directory.path}', or set track.{name} to false."
                    ) from error
        if ids:
            self._directory.write_json(IDS, ids)

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        values = {"bytes_down": record.bytes_down, "bytes_up": record.bytes_up, **record.metrics}
        values |= {f"seconds.{name}": seconds for name, seconds in record.seconds.items()}
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(values, state.round)
                if state.round == self._num_rounds:
                    tracker.close()
            except Exception as error:  # each client has exceptions of its own
                record.notes.append(f"track.{name} failed and is left out from now on: {type(error).__name__}: {error}")
                del self._trackers[name]


class _TensorBoard:
    def __init__(
        self, config: TrackConfig, directory: RunDirectory, tree: Mapping[str, Any], ids: dict[str, Any], round: int
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What was written after the checkpoint that a run goes on from is struck out.
        self._writer = SummaryWriter(str(directory.path / "tensorboard"), purge_step=round + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(".", "/"), value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _MLflow:
    """Tracker through MLflow's client object, because its module-level functions keep one run per process."""

    def __init__(
        self, config: TrackConfig, directory: RunDirectory, tree: Mapping[str, Any], ids: dict[str, Any], round: int
    ) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=config.mlflow_uri)
        if "mlflow" not in ids:
            known = self._client.get_experiment_by_name(config.project)
            experiment = self._client.create_experiment(config.project) if known is None else known.experiment_id
            ids["mlflow"] = self._client.create_run(experiment, run_name=directory.path.name).info.run_id
            options = [Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in _flat(tree).items()]
            for first in range(0, len(options), 100):
                self._client.log_batch(ids["mlflow"], params=options[first : first + 100])
        self._run_id = ids["mlflow"]

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, metrics=[self._metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class _WandB:
    def __init__(
        self, config: TrackConfig, directory: RunDirectory, tree: Mapping[str, Any], ids: dict[str, Any], round: int
    ) -> None:
        import wandb

        self._run = wandb.init(
            project=config.project,
            name=directory.path.name,
            id=ids.get("wandb"),
            resume="allow",
            dir=str(directory.path),
            config=_flat(tree),
            reinit=True,
        )
        ids["wandb"] = self._run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option by its full name."""
    return {
        f"{table}.{key}": value
        for table, values in tree.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
        if value is not None
    }
