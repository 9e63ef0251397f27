"""The same work on a bare loop, on the embedded engine, on Flower's simulation, and on Apple's pfl.

100 clients with equally many samples of fashion-mini, 20 per round, federated averaging of SimCLR: the CNN of CF-CL with one
epoch of batches of 16, and a ResNet-18 of 11 million parameters with one such step per client, with ImageNet's stem: much to
send, little to compute. All four train by the project's own loss and views. The bare loop has one thread; Flower has two
actors of one core each and is written as its users write it, a ClientApp that takes and gives state dictionaries, and the
stock FedAvg; pfl runs in one process with torch's own choice of threads. Every measurement has a process of its own; memory is
the largest sum of PSS over its whole process tree.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.tables import Table

WORKLOADS: dict[str, dict[str, Any]] = {
    "cfcl-cnn": {"model": {"backbone": "cfcl-cnn"}, "training": {"local_epochs": 1}},
    "resnet18": {
        "model": {"backbone": "resnet18", "width": 1.0, "norm": "group", "stem": "imagenet"},
        "training": {"local_steps": 1},
    },
}
NUM_CLIENTS = 100
COHORT = 20
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "4"))
"""The first round is start-up; the median is over the others."""
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
TITLES = {
    "cfcl-cnn": "The CNN of CF-CL, 45,000 parameters; one epoch per client.",
    "resnet18": "ResNet-18 with ImageNet's stem and group norm, 11 million parameters; one step per client.",
}
WANTED = {
    "cfcl-cnn": {"unisono": "start-up at most 3 s", "Flower with Ray": "at least 2.5", "pfl": "at least 1.4"},
    "resnet18": {"unisono": "at most 700 MB", "Flower with Ray": "at least 2.5", "pfl": "at least 1.4"},
}


@lru_cache(maxsize=1)
def prepared(workload: str) -> Any:
    """The experiment of a workload, made once per process."""
    from benchmarks.workload import experiment

    over = {"training": WORKLOADS[workload]["training"], "federation": {"rounds": ROUNDS}}
    return experiment(WORKLOADS[workload]["model"], NUM_CLIENTS, over=over)


def networks(workload: str) -> Any:
    """The method's networks, freshly made with the run's first weights."""
    from unisono.core.context import Context
    from unisono.models.nets import load_state

    method = prepared(workload).method
    nets = method.build_networks()
    for name, state in method.init_server(Context(0)).groups.items():
        load_state(nets[name], state)
    return nets


def train(workload: str, nets: Any, client: int, round: int) -> int:
    """One client's local training, in place; its number of samples."""
    import torch

    from unisono.core.context import Context
    from unisono.methods.training_loop import train_locally

    method = prepared(workload).method
    data = prepared(workload).clients.client_data(client, torch.device("cpu"))
    nets.train()
    train_locally(
        list(nets.parameters()),
        lambda batch, generator: method.loss(nets, batch, generator),
        data,
        method.training,
        Context(0, round, "train", client),
        learning_rate=method.training.learning_rate,
    )
    return len(data)


def cohort(round: int) -> list[int]:
    """Who trains in a round."""
    import numpy as np

    return sorted(np.random.default_rng(round).choice(NUM_CLIENTS, COHORT, replace=False).tolist())


def bare(workload: str, tick: Callable[[], None]) -> None:
    """A loop over clients with one network, and a running sum."""
    import torch

    torch.set_num_threads(1)
    nets = networks(workload)
    current = {name: tensor.clone() for name, tensor in nets.state_dict().items()}
    for number in range(ROUNDS):
        sums = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in current.items()}
        total = 0
        for client in cohort(number):
            nets.load_state_dict(current)
            weight = train(workload, nets, client, number)
            for name, tensor in nets.state_dict().items():
                sums[name] += tensor * weight
            total += weight
        current = {name: (value / total).to(current[name].dtype) for name, value in sums.items()}
        tick()


def embedded(workload: str, tick: Callable[[], None]) -> None:
    """The embedded engine with two workers."""
    from unisono.engines.embedded import EmbeddedEngine
    from unisono.federation.client_store import ClientStateStore
    from unisono.federation.loop import RoundLoop

    experiment = prepared(workload)
    config = experiment.config
    with EmbeddedEngine(experiment.worker_setup(), config.engine) as engine:
        federation = RoundLoop(experiment.method, engine, ClientStateStore(), config.loop, config.run.seed)
        state = federation.initial_state()
        for _ in range(ROUNDS):
            state = federation.run_round(state)
            tick()


def flower(workload: str, tick: Callable[[], None]) -> None:
    """Flower's simulation, two actors, the stock FedAvg."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    import unisono.engines.flower  # noqa: F401  keeps Flower quiet

    client_app = ClientApp()

    @client_app.train()
    def train_client(message: Message, context: Context) -> Message:
        import torch

        from benchmarks.frameworks import networks, train

        torch.set_num_threads(1)
        nets = networks(workload)
        nets.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        weight = train(workload, nets, client, int(message.content["config"]["server-round"]))
        metrics = MetricRecord({"num-examples": weight})
        return Message(RecordDict({"arrays": ArrayRecord(nets.state_dict()), "metrics": metrics}), reply_to=message)

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=COHORT / NUM_CLIENTS, fraction_evaluate=0.0, min_available_nodes=NUM_CLIENTS)
        strategy.start(
            grid,
            ArrayRecord(networks(workload).state_dict()),
            num_rounds=ROUNDS,
            evaluate_fn=lambda number, arrays: tick() if number else None,
        )

    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, NUM_CLIENTS, backend_config=resources)


def pfl(workload: str, tick: Callable[[], None]) -> None:
    """Apple's pfl in one process."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from unisono.core.client_data import as_float
    from unisono.methods.local_training import Batch

    method, clients = prepared(workload).method, prepared(workload).clients

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = networks(workload)
            self.generator = torch.Generator().manual_seed(0)

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            self.train()
            return method.loss(self.nets, Batch(x, torch.arange(len(x)), None), self.generator)["loss"]

        def metrics(self, x: torch.Tensor) -> dict[str, Any]:
            return {}

    class Ticks(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            tick()
            return False, Metrics()

    def user(client: int) -> Dataset:
        data = clients.client_data(client, torch.device("cpu"))
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(client))
        return Dataset((as_float(data.samples[data.indices[order]]),), user_id=str(client))

    network = Network()
    training = method.training
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=training.momentum, weight_decay=training.weight_decay, fused=True
        ),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(NUM_CLIENTS))))
    steps = training.local_steps
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, 10**6, COHORT, None),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(training.batch_size, None if steps else 1, training.learning_rate, local_num_steps=steps),
        callbacks=[Ticks()],
    )


VARIANTS: dict[str, Callable[[str, Callable[[], None]], None]] = {
    "bare loop": bare,
    "unisono": embedded,
    "Flower with Ray": flower,
    "pfl": pfl,
}
NEEDS = {"Flower with Ray": ("flwr", "ray"), "pfl": ("pfl",)}
PFL = ("pfl==0.6.0", "prv_accountant")


def measure(variant: str, workload: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    """Seconds per round, seconds of start-up, and peak megabytes of one variant, in a process of its own."""
    start = time.time()
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "benchmarks.frameworks", variant, workload]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        )
        peak = 0.0
        try:
            while process.poll() is None:
                peak = max(peak, tree_megabytes(process.pid))
                time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output = process.stdout.read() if process.stdout is not None else ""
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{variant} failed on {workload}:\n{errors.read()[-2000:]}")
    ticks = json.loads(output.splitlines()[-1])
    seconds = median(after - before for before, after in itertools.pairwise(ticks))
    startup = ticks[0] - start - seconds
    print(f"{workload}, {variant}: {seconds:.2f} s per round, {startup:.1f} s of start-up, {peak:.0f} MB", flush=True)
    return {"seconds": seconds, "startup": startup, "megabytes": peak}


def tree_megabytes(pid: int) -> float:
    """Memory of a process and all below it, pages that several share counted once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0.0
    return total / 2**20


def tables(workload: str) -> list[Table]:
    """Measure every framework on a network, in turn."""
    environment = with_pfl()
    names = [name for name in VARIANTS if _is_installed(name, environment)]
    repeats = [{name: measure(name, workload, environment) for name in names} for _ in range(REPEATS)]
    rows = []
    for name in names:
        seconds, startup, megabytes = (
            median(repeat[name][key] for repeat in repeats) for key in ("seconds", "startup", "megabytes")
        )
        ratio = median(repeat[name]["seconds"] / repeat["unisono"]["seconds"] for repeat in repeats)
        wanted = WANTED[workload].get(name, "")
        rows.append([name, f"{seconds:.2f}", f"{ratio:.2f}", f"{startup:.1f}", f"{megabytes:.0f}", wanted])
    rows += [[name, *["not installed"] * 4, ""] for name in VARIANTS if name not in names]
    text = (
        f"{TITLES[workload]} {NUM_CLIENTS} clients, {COHORT} per round, batches of 16, SimCLR on fashion-mini. Medians of "
        f"{REPEATS} interleaved repeats, each a process of its own that runs {ROUNDS} rounds (the first is start-up). "
        "Memory is the peak of the whole process tree (PSS: pages that processes share count once). The bare loop has one "
        "thread, unisono two workers, Flower two actors of one core each, and pfl one process with as many threads as torch "
        "takes."
    )
    header = ["", "s per round", "times unisono's", "start-up s", "peak MB", "wanted"]
    return [Table(f"Frameworks: {workload}", text, header, rows)]


def with_pfl() -> dict[str, str]:
    """Return the environment of a process that finds pfl, which is installed once into a folder of its own."""
    folder = Path.home() / ".cache" / "unisono-benchmarks" / "-".join(PFL).replace("==", "-")
    if not (folder / "pfl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PFL]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            print("pfl could not be installed")
    path = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH", ""), str(folder)) if part)
    return {**os.environ, "PYTHONPATH": path}


def _is_installed(variant: str, environment: dict[str, str]) -> bool:
    code = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {NEEDS.get(variant, ())!r})))"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def _run(variant: str, workload: str) -> None:
    ticks: list[float] = []
    VARIANTS[variant](workload, lambda: ticks.append(time.time()))
    print(json.dumps(ticks), flush=True)
    os._exit(0)  # pfl and Ray leave threads behind


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
