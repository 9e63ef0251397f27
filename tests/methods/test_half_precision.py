import pytest
import torch

from unisono.core.method import methods
from unisono.federation.loop import ServerState
from unisono.testing import tiny
from unisono.testing.tiny import TinyFederation

MOST_DIFFERENCE = 0.25
"""Distance between the encoders of both precisions, over the distance that training moved them."""


@pytest.fixture(autouse=True)
def colour_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "INPUT_SHAPE", (3, 8, 8))  # views of grey images leave half of the work out


def train(method: str, precision: str) -> tuple[ServerState, ServerState]:
    """Return the states before and after training; the methods of CF-CL aggregate in the last round only."""
    # Small steps, so that rounding is seen and not where a chaotic course ends.
    over = {
        "model": {"backbone": "convnet", "width": 0.5, "norm": "batch"},
        # BatchNorm over the few rows of one view alone would make much of the rounding.
        "training": {"precision": precision, "learning_rate": 1e-4, "separate_views": False},
    }
    federation = TinyFederation(method, over=over)
    start = federation.start()
    return start, federation.run(start, until=None if method == "cfcl" else 1)


def encoder(state: ServerState) -> torch.Tensor:
    """Return the weights of all convolutions in a row."""
    weights = [tensor.flatten() for tensor in state.server.groups["encoder"].values() if tensor.dim() == 4]
    return torch.cat(weights or [torch.zeros(1)])


@pytest.mark.parametrize("method", sorted(methods))
def test_bf16_trains_every_method_and_gives_float32(method: str) -> None:
    start, full = train(method, "fp32")
    _, half = train(method, "bf16")
    tensors = dict(half.server.tensors())
    assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} <= {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    moved, apart = (encoder(full) - encoder(start)).norm(), (encoder(full) - encoder(half)).norm()
    if method == "federated-kmeans":
        assert moved == apart == 0, "it trains nothing"
        return
    assert 0 < apart < MOST_DIFFERENCE * moved


def test_auto_is_fp32() -> None:
    assert tiny.same_bits(train("simclr", "auto")[1], train("simclr", "fp32")[1])


@pytest.mark.usefixtures("few_prototype_steps")
def test_bf16_is_reproducible_with_any_number_of_workers() -> None:
    over = {"model": {"norm": "batch"}, "training": {"precision": "bf16"}}
    alone, shared = (TinyFederation("orchestra", workers=workers, over=over).run(until=2) for workers in (0, 2))
    assert tiny.same_bits(alone, shared)
