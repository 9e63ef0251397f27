"""Every optimiser over two rounds against its formula, with the state on a wire or in a file between them."""

import math
from collections.abc import Callable

import pytest
import torch

from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.server_optimizers import ServerOptimizerConfig, optimize
from unisono.runs.files import payload_from_safetensors, payload_to_safetensors

LR, BETA1, BETA2, EPSILON, MOMENTUM = 0.1, 0.8, 0.9, 1e-3, 0.5


def config_of(optimizer: str, **changes: float) -> ServerOptimizerConfig:
    values = {"learning_rate": LR, "momentum": MOMENTUM, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, **changes}
    return ServerOptimizerConfig(optimizer=optimizer, **values)  # type: ignore[arg-type]


def fedavg(w: float, gradients: list[float]) -> float:
    for g in gradients:
        w -= LR * g
    return w


def fedavgm(w: float, gradients: list[float]) -> float:
    """b = mu b + g, from b = 0; w = w - lr b."""
    b = 0.0
    for g in gradients:
        b = MOMENTUM * b + g
        w -= LR * b
    return w


def fedadam(w: float, gradients: list[float]) -> float:
    """Kingma and Ba, with bias correction: w = w - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        w -= LR * m / (1 - BETA1**t) / (math.sqrt(v / (1 - BETA2**t)) + EPSILON)
    return w


def fedyogi(w: float, gradients: list[float]) -> float:
    """Reddi et al.: v = v - (1 - beta2) g^2 sign(v - g^2), from v = eps^2, without bias correction."""
    m, v = 0.0, EPSILON**2
    for g in gradients:
        m = BETA1 * m + (1 - BETA1) * g
        v -= (1 - BETA2) * g * g * math.copysign(1, v - g * g)
        w -= LR * m / (math.sqrt(v) + EPSILON)
    return w


def fedadagrad(w: float, gradients: list[float]) -> float:
    v = 0.0
    for g in gradients:
        v += g * g
        w -= LR * g / (math.sqrt(v) + EPSILON)
    return w


FORMULAS: dict[str, Callable[[float, list[float]], float]] = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
}
ROUTES: dict[str, Callable[[Payload], Payload]] = {
    "memory": lambda state: state,
    "wire": lambda state: from_bytes(to_bytes(state)),
    "file": lambda state: payload_from_safetensors(payload_to_safetensors(state)),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("optimizer", FORMULAS)
def test_three_rounds_against_the_formula(optimizer: str, route: str) -> None:
    """Clients answer w - g in each round, so that g is the pseudo-gradient."""
    gradients = [[1.0, -0.5, 0.02], [-2.0, -0.5, 0.5], [0.25, 3.0, -0.1]]
    start = [10.0, -3.0, 0.5]
    server = {"net": {"w": torch.tensor(start, dtype=torch.float64)}}
    state = Payload()
    for gradient in gradients:
        means = {"net": {"w": server["net"]["w"] - torch.tensor(gradient, dtype=torch.float64)}}
        updated, state = optimize(config_of(optimizer), server, means, ROUTES[route](state))
        server = {"net": dict(updated["net"])}
    expected = [FORMULAS[optimizer](w, [gradient[i] for gradient in gradients]) for i, w in enumerate(start)]
    assert server["net"]["w"].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_a_state_from_a_file_gives_the_same_bits(optimizer: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rounds = [{"net": {"w": torch.randn(50, generator=generator), "s": torch.randn((), generator=generator)}} for _ in range(4)]
    ends = []
    for route in ROUTES.values():
        server: dict[str, dict[str, torch.Tensor]] = {"net": {"w": torch.zeros(50), "s": torch.zeros(())}}
        state = Payload()
        for means in rounds:
            updated, state = optimize(config_of(optimizer), server, means, route(state))
            server = {"net": dict(updated["net"])}
        ends.append(server["net"])
    assert all(torch.equal(ends[0][name], end[name]) for end in ends for name in ("w", "s"))


def test_fedavg_with_rate_one_takes_the_means_as_they_are() -> None:
    means = {"net": {"w": torch.ones(2)}}
    state = Payload({"kept": {"x": torch.ones(1)}})
    updated, new_state = optimize(ServerOptimizerConfig(), {"net": {"w": torch.zeros(2)}}, means, state)
    assert updated["net"] is means["net"]
    assert new_state is state


@pytest.mark.parametrize("optimizer", FORMULAS)
def test_statistics_of_normalisation_take_the_plain_mean(optimizer: str) -> None:
    names = ["layer.running_mean", "layer.running_var", "running_mean"]
    server = {"net": {**{name: torch.zeros(2) for name in names}, "w": torch.zeros(2)}}
    means = {"net": {**{name: torch.ones(2) for name in names}, "w": torch.ones(2)}}
    updated, state = optimize(config_of(optimizer), server, means, Payload())
    assert all(updated["net"][name].tolist() == [1.0, 1.0] for name in names)
    assert 0 < float(updated["net"]["w"][0]) < 1
    assert list(updated["net"]) == list(means["net"])
    assert all(full_name.split("#")[0] == "net/w" for full_name, _ in state.tensors())


def test_groups_that_the_server_does_not_hold_pass_through() -> None:
    server = {"net": {"w": torch.zeros(1)}, "changed": {"w": torch.zeros(1)}, "grown": {"w": torch.zeros(1)}}
    means = {
        "net": {"w": torch.ones(1)},
        "new": {"w": torch.ones(1)},
        "changed": {"v": torch.ones(1)},
        "grown": {"w": torch.ones(3)},
    }
    updated, state = optimize(config_of("fedadam"), server, means, Payload())
    assert {name for name in means if updated[name] is means[name]} == {"new", "changed", "grown"}
    assert list(state.groups) == ["net"]


def test_a_group_that_rests_keeps_its_state() -> None:
    config = config_of("fedavgm")
    server = {"a": {"w": torch.zeros(1)}, "b": {"w": torch.zeros(1)}}
    _, state = optimize(config, server, {"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}}, Payload())
    updated, after = optimize(config, server, {"b": {"w": torch.ones(1)}}, state)
    assert list(updated) == ["b"]
    assert torch.equal(after.groups["a"]["w#momentum_buffer"], state.groups["a"]["w#momentum_buffer"])
    assert float(after.groups["b"]["w#momentum_buffer"]) == MOMENTUM * -1 - 1


def test_groups_without_parameters_and_whole_numbers() -> None:
    server = {"identity": {}, "counts": {"n": torch.tensor([1, 2])}, "norm": {"running_mean": torch.zeros(1)}}
    means = {"identity": {}, "counts": {"n": torch.tensor([3, 4])}, "norm": {"running_mean": torch.ones(1)}}
    updated, _ = optimize(config_of("fedadam"), server, means, Payload())
    assert updated == means


def test_a_tensor_that_left_its_group_is_forgotten() -> None:
    config = config_of("fedavgm")
    two = {"a": {"w": torch.zeros(1), "old": torch.zeros(1)}}
    _, state = optimize(config, two, two, Payload())
    one = {"a": {"w": torch.zeros(1)}}
    _, after = optimize(config, one, one, state)
    assert list(after.groups["a"]) == ["w#momentum_buffer"]


@pytest.mark.parametrize("optimizer", FORMULAS)
def test_neither_server_nor_means_nor_state_are_changed(optimizer: str) -> None:
    server, means = {"net": {"w": torch.ones(2)}}, {"net": {"w": torch.zeros(2)}}
    _, state = optimize(config_of(optimizer), server, means, Payload())
    before = to_bytes(state)
    updated, _ = optimize(config_of(optimizer), server, means, state)
    assert server["net"]["w"].tolist() == [1.0, 1.0]
    assert means["net"]["w"].tolist() == [0.0, 0.0]
    assert to_bytes(state) == before
    assert not updated["net"]["w"].requires_grad
