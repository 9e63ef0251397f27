"""Orchestra's clustering: the share of a client's round that local clustering takes, and the time of the server's."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.workload import BACKBONES, experiment
from unisono.clustering.equal_size import equal_size_clustering
from unisono.core.context import Context
from unisono.engines.shards import ShardRunner, ShardTask

REPEATS = 5


def clustering_seconds(num_points: int, num_clusters: int) -> float:
    """Median time of one clustering of 512-dimensional points, one thread."""
    times = []
    for repeat in range(REPEATS):
        generator = torch.Generator().manual_seed(repeat)
        centres = F.normalize(torch.randn(10, 512, generator=generator), dim=1)
        points = centres[torch.randint(10, (num_points,), generator=generator)]
        points = F.normalize(points + 0.05 * torch.randn(num_points, 512, generator=generator), dim=1)
        start = time.perf_counter()
        equal_size_clustering(points, num_clusters, generator)
        times.append(time.perf_counter() - start)
    return median(times)


def round_seconds() -> float:
    """Median time of a client's round in the recipe: 200 samples, 2 epochs, batch 16, quarter-width ResNet-18."""
    over = {
        "method": {"name": "orchestra"},
        "training": {"local_epochs": 2},
        "partition": {"num_clients": 50},
        "cohort": {"size": 10},
    }
    prepared = experiment(BACKBONES["resnet18 / 4"], num_clients=50, workers=0, over=over)
    method = prepared.method
    server = method.init_server(Context(0)).with_groups(centroids={"centroids": F.normalize(torch.randn(64, 128), dim=1)})
    runner = ShardRunner(prepared.worker_setup(), torch.device("cpu"))
    ctx = Context(0, 1, "train")
    broadcast = method.broadcast(server, ctx)
    times = []
    for client_id in range(3):
        start = time.perf_counter()
        runner.run(ShardTask(0, ctx, [client_id], {}, {}), broadcast)
        times.append(time.perf_counter() - start)
    return median(times)


def report() -> None:
    """Prints the share and the times."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    local, server, whole = clustering_seconds(128, 8), clustering_seconds(800, 128), round_seconds()
    torch.set_num_threads(before)
    print("Orchestra's clustering, one thread")
    share = f"{local / whole:.2%} of a client's round ({whole:.1f} s)"
    print(f"local, 128 points x 8 clusters x 512 dims    {local * 1e3:7.1f} ms, {share}")
    print(f"server, 800 centroids into 128               {server * 1e3:7.1f} ms")


if __name__ == "__main__":
    report()
