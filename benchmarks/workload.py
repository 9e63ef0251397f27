"""The work that is measured: federated SimCLR on fashion-mini, and the same training steps with no federation at all."""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from typing import Any

import torch

from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.context import Context
from unisono.data.datasets import Dataset
from unisono.engines.embedded import EmbeddedEngine
from unisono.experiment import Experiment
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import prepare_nets
from unisono.federation.loop import RoundLoop, ServerState
from unisono.methods.local_training import LocalTraining
from unisono.methods.training_loop import train_locally

BACKBONES: dict[str, dict[str, Any]] = {
    "cfcl-cnn": {"backbone": "cfcl-cnn"},
    "resnet18 / 4": {"backbone": "resnet18", "width": 0.25, "norm": "group"},
}


def experiment(
    model: dict[str, Any],
    num_clients: int = 100,
    workers: int = 2,
    over: dict[str, Any] | None = None,
    dataset: Dataset | None = None,
) -> Experiment:
    """100 clients with equally many samples, 20 per round, batch 16, one local epoch; of fashion-mini unless a set is given."""
    tree = {
        "method": {"name": "simclr", "projection_dim": 128},
        "data": {"dataset": "fashion-mini"},
        "partition": {"scheme": "iid", "num_clients": num_clients},
        "model": model,
        "training": {"batch_size": 16, "local_epochs": 1},
        "cohort": {"size": 20},
        "engine": {"workers": workers, "device": "cpu"},
    }
    return Experiment.prepare(resolve(merge(tree, over or {})), dataset)


@dataclass
class Rounds:
    """A federation that runs round after round."""

    federation: RoundLoop
    engine: EmbeddedEngine
    state: ServerState
    samples_per_round: int

    @staticmethod
    def start(prepared: Experiment) -> Rounds:
        """Workers started and one round run to warm up."""
        config = prepared.config
        engine = EmbeddedEngine(prepared.worker_setup(), config.engine)
        federation = RoundLoop(prepared.method, engine, ClientStateStore(), config.loop, config.run.seed)
        num_samples = (
            config.cohort.expected_size(len(prepared.clients)) * len(prepared.dataset.samples) // len(prepared.clients)
        )
        return Rounds(federation, engine, federation.run_round(federation.initial_state()), num_samples)

    def seconds(self) -> float:
        """Time of the next round."""
        start = time.perf_counter()
        self.state = self.federation.run_round(self.state)
        return time.perf_counter() - start


class BareProcesses:
    """Processes of one thread that run the same training steps on networks of their own, and nothing else."""

    def __init__(self, prepared: Experiment, num_processes: int, clients_each: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes = []
        self._processes = []
        for index in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_train, args=(prepared, clients_each, theirs, index), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self.seconds()

    def seconds(self) -> float:
        """Time until all processes have trained their samples once."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()
        return time.perf_counter() - start

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _train(prepared: Experiment, num_clients: int, pipe: Any, index: int) -> None:
    """As many steps, on batches of the same sizes, as this many clients; one optimiser, no messages, no states."""
    torch.set_num_threads(1)
    method = prepared.method
    if not isinstance(method, LocalTraining):
        raise TypeError("the workload trains a loss")
    nets = prepare_nets(method, torch.device("cpu"))
    data = prepared.clients.client_data(index, torch.device("cpu"))
    training = method.training.model_copy(update={"local_epochs": num_clients})
    number = 0
    while pipe.recv():
        train_locally(
            list(nets.parameters()),
            lambda batch, generator: method.loss(nets, batch, generator),
            data,
            training,
            Context(0, number, "train", index),
            learning_rate=method.training.learning_rate,
        )
        number += 1
        pipe.send(True)


def peak_megabytes(children: bool = False) -> float:
    """Largest resident size so far of this process, or of its largest finished child."""
    return resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss / 1024
