"""Algorithm 1 of Louizos et al. in plain tensors beside ours, on the same samples and first weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.client_data import as_float
from unisono.federation.client_turn import prepare_nets
from unisono.methods.user_verification import VECTORS
from unisono.testing.tiny import TinyFederation, tiny_clients

CPU = torch.device("cpu")


def algorithm_1(
    theta: dict[str, Tensor],
    vectors: Tensor,
    data: dict[int, list[Tensor]],
    rounds: int,
    rate: float,
    server_rate: float,
    epsilon: float,
) -> tuple[dict[str, Tensor], Tensor]:
    """Algorithm 1 in plain tensors: local SGD on InfoNCE (Eq. 3) and user verification, mean changes, Adam, unit vectors.

    The encoder is linear, the projectors have one hidden ReLU; both views of a sample are the sample.
    """
    tensors = {**theta, "vectors": vectors}
    first, second = ({name: torch.zeros_like(each) for name, each in tensors.items()} for _ in range(2))
    for step in range(1, rounds + 1):
        deltas = {name: torch.zeros_like(each) for name, each in tensors.items()}
        for client, batches_of_client in data.items():
            own = {name: each.clone() for name, each in tensors.items() if name != "vectors"}
            w = tensors["vectors"][client].clone()
            for x in batches_of_client:
                leaves = [each.requires_grad_() for each in (*own.values(), w)]
                h = x @ own["encoder"].T
                hidden = torch.relu(h @ own["p1"].T + own["b1"])
                z = F.normalize(hidden @ own["p2"].T + own["b2"], dim=1)
                scores = z @ z.T / 0.1  # f(z_1j, z_2k): first views in rows
                k = len(x)
                local = sum(torch.logsumexp(scores[:, i], 0) - math.log(k) - scores[i, i] for i in range(k)) / k
                u = F.normalize(torch.relu(h @ own["c1"].T + own["d1"]) @ own["c2"].T + own["d2"], dim=1)
                logits = torch.stack(
                    [u @ (F.normalize(w, dim=0) if s == client else row) for s, row in enumerate(tensors["vectors"])], dim=1
                )
                verification = -2 * F.log_softmax(3.0 * logits, dim=1)[:, client].mean()
                gradients = torch.autograd.grad(local + verification, leaves)
                moved = [leaf.detach() - rate * gradient for leaf, gradient in zip(leaves, gradients, strict=True)]
                own, w = dict(zip(own, moved, strict=False)), moved[-1]
            for name, each in own.items():
                deltas[name] += (each - tensors[name]) / len(data)
            deltas["vectors"][client] += (F.normalize(w, dim=0) - tensors["vectors"][client]) / len(data)
        for name, delta in deltas.items():
            first[name] = 0.9 * first[name] - 0.1 * delta
            second[name] = 0.999 * second[name] + 0.001 * delta**2
            corrected = (second[name] / (1 - 0.999**step)).sqrt() + epsilon
            tensors[name] = tensors[name] - server_rate * first[name] / (1 - 0.9**step) / corrected
        tensors["vectors"] = F.normalize(tensors["vectors"], dim=1)
    return {name: each for name, each in tensors.items() if name != "vectors"}, tensors["vectors"]


class LinearEncoder(torch.nn.Module):
    """Flattened samples to three features."""

    def __init__(self) -> None:
        super().__init__()
        self.map = torch.nn.Linear(64, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x.flatten(1))  # type: ignore[no-any-return]


def test_two_rounds_of_algorithm_1_side_by_side() -> None:
    """All six clients answer, each with one batch; networks and vectors agree after two rounds of Adam."""
    sizes = [4, 6, 4, 4, 5, 4]
    over = {
        "method": {
            "loss": "info-nce", "temperature": 0.1, "projection_dim": 5, "hidden_dim": 7, "projector_norm": False,
            "uv_weight": 1.0, "uv_hidden_dim": 6, "uv_dim": 4, "uv_scale": 3.0,
        },
        "model": {"backbone": f"{__name__}:LinearEncoder"},
        "views": {"preset": "none"},
        "training": {"batch_size": 16, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0, "local_epochs": 1},
        "cohort": {"size": len(sizes)},
        "aggregation": {"weighting": "uniform"},
        "server": {"optimizer": "fedadam", "learning_rate": 0.01, "epsilon": 1e-4},  # smooth where a gradient is nearly 0
    }  # fmt: skip
    tiny = TinyFederation("simclr", over=over, clients=tiny_clients(False, sizes))
    start = tiny.federation.initial_state()
    groups = start.server.groups
    names = {
        "encoder": ("encoder", "trunk.map.weight"),
        "p1": ("projector", "0.weight"), "b1": ("projector", "0.bias"),
        "p2": ("projector", "2.weight"), "b2": ("projector", "2.bias"),
        "c1": ("client_projector", "0.weight"), "d1": ("client_projector", "0.bias"),
        "c2": ("client_projector", "2.weight"), "d2": ("client_projector", "2.bias"),
    }  # fmt: skip
    theta = {ours: groups[group][name].clone() for ours, (group, name) in names.items()}
    encoder = prepare_nets(tiny.method, CPU)["encoder"]
    mean, std = encoder.mean.flatten(), encoder.std.flatten()  # type: ignore[union-attr, operator]
    data = {}
    for client in range(len(sizes)):
        held = tiny.clients.client_data(client, CPU)
        data[client] = [(as_float(held.samples[held.indices]).flatten(1) - mean) / std]
    expected, vectors = algorithm_1(theta, start.server.groups[VECTORS]["vectors"].clone(), data, 2, 0.1, 0.01, 1e-4)
    found = tiny.run(start, until=2).server
    for ours, (group, name) in names.items():
        torch.testing.assert_close(found.groups[group][name], expected[ours], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.groups[VECTORS]["vectors"], vectors, atol=1e-5, rtol=1e-4)
    assert float((found.groups[VECTORS]["vectors"] - start.server.groups[VECTORS]["vectors"]).abs().max()) > 1e-3
