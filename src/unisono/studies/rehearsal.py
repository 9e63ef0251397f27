"""Rehearsal of a study: every cell is prepared, and every network, batch and method of it makes a step in a process of its own.

Cells that differ in nothing that a step depends on, such as the learning rate or the seed, share one measurement.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.core.errors import ClientError, UserError
from unisono.core.registry import UserFiles
from unisono.data.datasets import Dataset
from unisono.data.shift import ShiftConfig, check_shift
from unisono.data.synthetic import SyntheticDataset, load_or_imitate
from unisono.engines.memory import available_memory, limit_memory
from unisono.experiment import Experiment
from unisono.models.nets import build_seeded, get_state
from unisono.models.pretrained import PREFIX
from unisono.rehearsal import Measurement, estimate_memory, estimate_run, rehearse
from unisono.rehearsal_engine import Limits, Part
from unisono.runs.directory import RunDirectory
from unisono.studies.grid import Cell, check_cells
from unisono.studies.runner import comparable

SAME_STEP = (
    "run.", "cohort.", "shift.", "partition.alpha", "partition.scheme", "partition.classes_per_client", "partition.sigma",
    "partition.min_samples", "training.local_epochs", "training.local_steps", "training.batch_size", "training.learning_rate",
    "training.schedule", "training.momentum", "training.weight_decay", "training.epochs_tuned_for_clients",
    "training.lr_tuned_for_participation", "evaluation.probe_every", "evaluation.floors", "federation.quorum",
    "federation.retries", "federation.strict", "data.limit", "data.test_limit",
)  # fmt: skip
"""Beginnings of the options that change nothing in a step."""
SHARE_OF_MEMORY = 0.7
"""Share of the free memory that a step may take."""

Measure = Callable[[Part], Measurement]


@dataclass(frozen=True)
class CellRehearsal:
    """Result of a cell.

    Args:
        cell: its first seed.
        num_seeds: how many seeds it has.
        reason: why it cannot run, in one sentence; empty if it can.
        synthetic: whether its samples are noise, because the real ones are not here or too many.
        batch_size: samples of a step; 0 where nothing was measured.
        measured_batch: samples of the step that was measured; a larger one is scaled.
        step: seconds of a step.
        memory: bytes of a run, with all workers of this machine.
        seconds: of one run on this machine.
    """

    cell: Cell
    num_seeds: int = 1
    reason: str = ""
    synthetic: bool = False
    batch_size: int = 0
    measured_batch: int = 0
    step: float = 0.0
    memory: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all of it for machines."""
        found = {"variant": self.cell.variant, "setting": self.cell.setting, "seeds": self.num_seeds, "runs": not self.reason}
        if self.reason:
            return {**found, "reason": self.reason}
        return {
            **found,
            "synthetic_samples": self.synthetic,
            "batch_size": self.batch_size,
            "measured_batch_size": self.measured_batch,
            "seconds_per_step": self.step,
            "memory_bytes": round(self.memory),
            "seconds": self.seconds,
        }


class Rehearser:
    """Rehearsal of one cell after another; remembers data sets and measurements.

    Args:
        measure: makes and measures the steps, by default in a process of its own.
        scale: of the study.
    """

    def __init__(self, measure: Measure | None = None, scale: str = "small") -> None:
        self._scale = scale
        self._measure = measure or measure_in_process
        self._datasets: dict[str, Dataset] = {}
        self._measured: dict[str, Measurement | str] = {}
        self._probes: dict[str, float] = {}

    def rehearse_all(self, cells: Iterable[Cell], everything: Iterable[Cell] = ()) -> Iterator[CellRehearsal]:
        """Yield the result of every variant and setting, for the first of its seeds.

        Args:
            cells: of one study.
            everything: all its cells, where others than ``cells`` may be needed to start from.
        """
        cells = list(cells)
        by_path = {cell.path: cell for cell in (*everything, *cells)}
        seeds: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            seeds.setdefault((cell.variant, cell.setting), []).append(cell)
        for group in seeds.values():
            yield replace(self.rehearse(group[0], by_path), num_seeds=len(group))

    def rehearse(self, cell: Cell, others: dict[Path, Cell] | None = None) -> CellRehearsal:
        """Return the result of one cell.

        Args:
            cell: the cell.
            others: cells by path, in which those are found that it starts from.
        """
        try:
            check_cells((cell,), self._scale)
            with self._stand_in(cell, others or {}) as config:
                experiment = self._prepare(config)
                part = Part.of(experiment)
                measured = self._shared(part)
        except (UserError, ClientError) as error:
            return CellRehearsal(cell, reason=_sentence(str(error)))
        except Exception as error:  # a study shall hear of all its cells
            return CellRehearsal(cell, reason=_sentence(f"{type(error).__name__}: {error}"))
        if isinstance(measured, str):
            return CellRehearsal(cell, reason=measured)
        return CellRehearsal(
            cell,
            synthetic=isinstance(experiment.dataset, SyntheticDataset),
            batch_size=part.batch_size,
            measured_batch=measured.batch_size,
            step=measured.step,
            memory=estimate_memory(experiment, measured),
            seconds=estimate_run(experiment, measured, cell.untrained),
        )

    def _prepare(self, config: Config) -> Experiment:
        """Return the experiment; samples stay as they are, as a shift changes no shape."""
        key = config.data.model_dump_json()
        if key not in self._datasets:
            self._datasets = {key: load_or_imitate(config.data)}  # the one before may be large
        dataset = self._datasets[key]
        check_shift(config.shift, dataset.input_shape)
        return Experiment.prepare(replace(config, shift=ShiftConfig()), dataset)

    def _shared(self, part: Part) -> Measurement | str:
        """Return what was measured for an equal step, or measure it now; a sentence if it fails."""
        key = step_key(part)
        if key not in self._measured:
            probes = _probe_key(part)
            known = self._probes.get(probes)
            try:
                measured = self._measure(part if known is None else replace(part, probe_data=None))
            except (UserError, ClientError) as error:
                self._measured[key] = _sentence(str(error))
            else:
                measured = measured if known is None else replace(measured, probes=known)
                self._probes[probes] = measured.probes
                self._measured[key] = measured
        return self._measured[key]

    @contextmanager
    def _stand_in(self, cell: Cell, others: dict[Path, Cell]) -> Iterator[Config]:
        """Yield the cell's config, with untrained weights in place of a run that it starts from and that is not finished."""
        config = cell.config()
        source = Path(config.model.pretrained or "")
        needed = others.get(source) if source in cell.needs and not RunDirectory(source).finished else None
        if needed is None:
            yield config
            return
        from safetensors.torch import save_file

        method = self._prepare(needed.config()).method
        state = get_state(build_seeded(method.build_networks, 0)["encoder"])
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "encoder.safetensors"
            save_file({PREFIX + name: tensor for name, tensor in state.items()}, file)
            yield replace(config, model=config.model.model_copy(update={"pretrained": str(file)}))


def step_key(part: Part) -> str:
    """Return a text that is equal for parts whose steps cost the same."""
    config, found = part.config, {}
    for name, value in comparable(config.as_tree()).items():
        if not name.startswith(SAME_STEP):
            found[name] = _kind(value) if name.startswith(("method.", "views.")) else value
    found["model.pretrained"] = config.model.pretrained is not None
    return json.dumps([found, part.batch_size, part.info.input_shape, part.info.num_classes], sort_keys=True, default=str)


def _kind(value: Any) -> Any:
    """Return whether a real number is 0, as others change no step, and anything else as it is."""
    if isinstance(value, float):
        return bool(value)
    if isinstance(value, list | tuple):
        return [_kind(each) for each in value]
    return {key: _kind(each) for key, each in value.items()} if isinstance(value, dict) else value


def _probe_key(part: Part) -> str:
    """Return a text that is equal for parts whose probes cost the same."""
    config = part.config
    evaluation = config.evaluation.model_copy(update={"probe_every": 0})
    has_clusters = config.method_class.overrides("cluster_model")
    return f"{evaluation!r} {config.model.backbone} {part.info.input_shape} {part.info.num_classes} {has_clusters}"


def measure_in_process(part: Part) -> Measurement:
    """Return the measurement of a part in a new process, so that peaks of memory are its own; raise what it raises."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["unisono.rehearsal", "torch._dynamo"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(UserFiles(), theirs, part), daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        cause = (
            ", most likely by the system for want of memory: lower training.batch_size, or close other programs"
            if killed
            else ""
        )
        raise UserError(f"The process that rehearsed it ended with code {process.exitcode}{cause}.") from None
    finally:
        ours.close()
        process.terminate()
        process.join()
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Measurement)
    return found


def _measure(_: UserFiles, connection: Connection, part: Part) -> None:
    """Send the measurement of a part, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    memory = available_memory()
    limit_memory(math.floor(0.9 * memory))
    try:
        connection.send(rehearse(part, Limits(largest_step=SHARE_OF_MEMORY * memory)))
    except (UserError, ClientError) as error:
        connection.send(error)
    except Exception as error:  # any other error may not survive the journey
        connection.send(UserError(f"{type(error).__name__}: {error}"))


def _sentence(reason: str) -> str:
    return " ".join(reason.split()).rstrip(".") + "."
