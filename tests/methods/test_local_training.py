from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unisono
from unisono.core.config import Section
from unisono.core.context import Context
from unisono.core.errors import MethodError, UserError
from unisono.core.payload import Payload, Update
from unisono.core.wire import to_bytes
from unisono.federation.client_turn import prepare_nets
from unisono.methods.local_training import Batch, LocalTraining, Loss
from unisono.methods.simclr import SimCLR
from unisono.methods.training_loop import TrainingConfig, train_locally
from unisono.models.micro_batch import InParts, in_parts
from unisono.models.nets import add_targets, get_state
from unisono.testing.tiny import INPUT_SHAPE, TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")
CONTRASTIVE = ("simclr", "specloss", "byol", "simsiam", "cc", "mcc", "fedmcc", "fedu", "fedema", "fedca", "rotpred")


def make(name: str, over: dict[str, Any] | None = None) -> LocalTraining:
    method = tiny_method(tiny_config(name, over))
    assert isinstance(method, LocalTraining)
    return method


def gradients(method: LocalTraining, nets: nn.ModuleDict, num_rows: int | None) -> dict[str, Tensor]:
    x = torch.rand(7, *INPUT_SHAPE, generator=torch.Generator().manual_seed(1)).double()
    nets.zero_grad()
    with in_parts(nets, num_rows):
        terms = method.loss(nets, Batch(x, torch.arange(7), None), torch.Generator().manual_seed(2))
        terms["loss"].backward()
    return {name: parameter.grad for name, parameter in nets.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_micro_batches_give_the_gradient_of_the_whole_batch(name: str) -> None:
    method = make(name)
    nets = method.build_networks().double()
    whole = gradients(method, nets, None)
    assert whole
    parts = gradients(method, nets, 3)
    torch.testing.assert_close(parts, whole)


def watched(method: LocalTraining, nets: nn.ModuleDict, seen: list[bool]) -> Loss:
    def loss(batch: Batch, generator: torch.Generator) -> Any:
        seen.append(all(isinstance(net, InParts) for net in nets.values()))
        return method.loss(nets, batch, generator)

    return loss


def test_a_client_trains_in_micro_batches_if_the_config_says_so() -> None:
    updates = []
    for micro_batch, expected in ((None, False), (2, True)):
        training = {"batch_size": 12, "optimizer": "sgd"} | ({} if micro_batch is None else {"micro_batch": micro_batch})
        method = make("cc", {"training": training})
        nets, server = prepare_nets(method, CPU), method.init_server(Context(0))
        seen: list[bool] = []
        ctx = Context(0, 0, "train", 3)
        data = tiny_clients(labels=False).client_data(3, CPU)
        update = method.train(nets, method.broadcast(server, ctx), Payload(), data, ctx, watched(method, nets, seen))
        updates.append(update.payload)
        assert seen == [expected]
    for name, tensor in updates[0].tensors():
        torch.testing.assert_close(updates[1].flatten()[name], tensor, rtol=1e-3, atol=1e-5)


def test_batch_norm_and_micro_batches_are_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"training\.micro_batch = 4 .*BatchNorm"):
        make("simclr", {"training": {"micro_batch": 4}, "model": {"norm": "batch"}})


def own_backbone(feature_dim: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, feature_dim), nn.BatchNorm1d(feature_dim))


def test_a_backbone_of_ones_own_with_batch_norm_is_refused_before_a_run() -> None:
    over = {"training": {"micro_batch": 4}, "model": {"backbone": f"{__name__}:own_backbone"}}
    with pytest.raises(UserError, match="BatchNorm"):
        make("simclr", over).build_networks()


class Small(LocalTraining):
    """Two linear layers; what they are there for is up to the test."""

    shared_networks = ("encoder", "head")
    min_batch_size = 2

    def build_networks(self) -> nn.ModuleDict:
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
        return nn.ModuleDict({"encoder": encoder, "head": nn.Linear(4, 2)})

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        return nets["head"](nets["encoder"](batch.x)).square().mean()


def small(kind: type[LocalTraining]) -> Any:
    config = tiny_config("simclr", {"training": {"learning_rate": 0.1}})
    return kind(Section(), tiny_method(config).info)


def step(method: LocalTraining, nets: nn.ModuleDict, client_id: int, local: Payload | None = None) -> tuple[Update, Payload]:
    ctx = Context(0, 0, "train", client_id)
    received = method.broadcast(method.init_server(Context(0)), ctx)
    return method.client_step(nets, received, local or Payload(), tiny_clients(labels=False).client_data(client_id, CPU), ctx)


def test_a_loss_may_be_a_bare_tensor() -> None:
    update, local = step(small(Small), small(Small).build_networks(), 3)
    assert set(update.payload.groups) == {"encoder", "head"}
    assert set(update.metrics) == {"loss"}
    assert local == Payload()


def test_a_missing_loss_is_asked_for() -> None:
    class Lossless(Small):
        loss = LocalTraining.loss

    with pytest.raises(MethodError, match=r"Lossless must write loss\(self, nets, batch, generator\)"):
        step(small(Lossless), small(Lossless).build_networks(), 3)


def test_frozen_networks_stay_as_they_are_without_gradients_and_in_eval_mode() -> None:
    seen = []

    class Frozen(Small):
        shared_networks = ("head",)  # type: ignore[assignment]
        frozen_networks = ("encoder",)

        def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
            h = nets["encoder"](batch.x)
            seen.append((nets["encoder"].training, nets["head"].training, h.requires_grad))
            return nets["head"](h).square().mean()

    method = small(Frozen)
    nets = method.build_networks()
    update, _ = step(method, nets, 3)
    assert set(seen) == {(False, True, False)}
    assert list(update.payload.groups) == ["head"]
    server = method.init_server(Context(0))
    assert all(torch.equal(get_state(nets["encoder"])[name], tensor) for name, tensor in server.groups["encoder"].items())
    assert not torch.equal(update.payload.groups["head"]["bias"], server.groups["head"]["bias"])
    assert all(parameter.requires_grad for parameter in nets.parameters()), "another phase may train them"


def test_personal_networks_stay_with_their_client() -> None:
    class Personal(Small):
        shared_networks = ("encoder",)  # type: ignore[assignment]
        personal_networks = ("head",)

    method = small(Personal)
    nets = method.build_networks()
    update, local = step(method, nets, 3)
    assert list(update.payload.groups) == ["encoder"]
    assert list(local.groups) == ["head"]
    step(method, nets, 0)
    fresh = method.build_networks()
    again = step(method, fresh, 3)
    assert to_bytes(again[1]) == to_bytes(local), "all clients have the same weights at first, whatever the networks hold"
    later = step(method, nets, 3, local)[1]
    assert to_bytes(later) == to_bytes(step(method, method.build_networks(), 3, local)[1])
    assert to_bytes(later) != to_bytes(local)


def test_targets_restart_from_the_online_network_and_follow_it() -> None:
    class Following(Small):
        target_networks = {"target_head": "head"}

        def build_networks(self) -> nn.ModuleDict:
            return add_targets(super().build_networks(), ["head"])

        def ema_decay(self, phase: str) -> float:
            return 0.25

    method = small(Following)
    nets = method.build_networks()
    with torch.no_grad():
        nets["target_head"].weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    update, _ = step(method, nets, 5)  # two samples, so one step
    assert set(update.payload.groups) == {"encoder", "head"}
    start = method.init_server(Context(0)).groups["head"]["bias"]
    expected = 0.25 * start + 0.75 * update.payload.groups["head"]["bias"]
    torch.testing.assert_close(nets["target_head"].bias, expected)  # type: ignore[union-attr]


class Forgetful(Small):
    """Forgets a network that it trains: it would start from what the previous client left."""

    shared_networks = ("encoder",)  # type: ignore[assignment]


class Misnamed(Small):
    shared_networks = ("encoder", "haed")  # type: ignore[assignment]
    frozen_networks = ("head",)


class WithoutMomentum(Small):
    target_networks = {"head": "encoder"}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Forgetful, r"Forgetful: the network 'head' of build_networks has no role, .*: name it in shared_networks, "),
        (Misnamed, "Misnamed: the network 'haed' has a role, and build_networks creates only encoder, head"),
        (WithoutMomentum, r"WithoutMomentum: target_networks follow .* ema, which Config lacks"),
    ],
)
def test_every_network_needs_a_role_before_the_run(kind: type[LocalTraining], sentence: str) -> None:
    method = small(kind)
    with pytest.raises(MethodError, match=sentence):
        method.check_networks(method.build_networks())
    with pytest.raises(MethodError, match=sentence):
        prepare_nets(method, CPU)


def test_a_network_without_a_role_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(
        "from torch import nn\n"
        "from unisono.methods.simclr import SimCLR\n"
        "class Leaky(SimCLR):\n"
        "    def build_networks(self):\n"
        "        nets = super().build_networks()\n"
        "        nets['extra'] = nn.Linear(2, 2)\n"
        "        return nets\n"
    )
    path = tmp_path / "runs"
    options = [f"method.name={tmp_path / 'leaky.py'}:Leaky", f"run.directory={path}"]
    with pytest.raises(UserError, match=r"^Leaky: the network 'extra' of build_networks has no role"):
        unisono.run("simclr", dataset="digits", clients=4, rounds=1, set=options)
    assert not path.exists()


REMEDY = 'return a scalar tensor, or a dict with a scalar "loss".'
WRONG_LOSSES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (lambda good: (good, good), f"Wrong.loss returned a tuple; {REMEDY}"),
    "nothing": (lambda good: None, f"Wrong.loss returned nothing; {REMEDY}"),
    "an int": (lambda good: 1, f"Wrong.loss returned an int; {REMEDY}"),
    "no key": (lambda good: {"los": good}, f"Wrong.loss returned a dict without \"loss\", with ['los']; {REMEDY}"),
    "a vector": (lambda good: good.expand(3), f"Wrong.loss returned a tensor of shape (3,); {REMEDY}"),
    "a vector in a dict": (
        lambda good: {"loss": good, "x": good.expand(3)},
        f'Wrong.loss returned a tensor of shape (3,) as "x"; {REMEDY}',
    ),
    "a number in a dict": (lambda good: {"loss": good, "x": 0.5}, f'Wrong.loss returned a float as "x"; {REMEDY}'),
    "no gradient": (
        lambda good: good.detach(),
        "Wrong.loss returned a loss without gradients; compute it from trained networks, outside of torch.no_grad().",
    ),
    "not finite": (lambda good: good / 0, "Wrong.loss returned inf for the first batch; return a finite number."),
}


class Wrong(SimCLR):
    """Returns something else than its loss."""

    change: Callable[[Tensor], Any]

    def loss(self, nets: nn.ModuleDict, batch: Batch, generator: torch.Generator) -> Any:
        return type(self).change(super().loss(nets, batch, generator)["loss"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", WRONG_LOSSES)
def test_a_wrong_loss_is_the_methods_error_and_not_a_clients(kind: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    change, sentence = WRONG_LOSSES[kind]
    monkeypatch.setattr(Wrong, "change", staticmethod(change), raising=False)
    tiny = TinyFederation("simclr", workers=workers, over={"federation": {"strict": False, "quorum": 0.01}})
    tiny.method.__class__ = Wrong
    with pytest.raises(MethodError) as caught:
        tiny.run(until=1)
    assert str(caught.value) == sentence


def test_a_loss_that_diverges_later_is_not_the_methods_error() -> None:
    """In the second round, the loss of the first batch may be infinite because of the learning rate."""
    method = small(Small)
    server = Payload(
        {
            group: {name: torch.full_like(tensor, 1e38) for name, tensor in tensors.items()}
            for group, tensors in method.init_server(Context(0)).groups.items()
        }
    )
    data = tiny_clients(labels=False).client_data(3, CPU)
    for round, expected in ((0, pytest.raises(MethodError, match="returned nan")), (1, nullcontext())):
        with expected:
            method.client_step(method.build_networks(), server, Payload(), data, Context(0, round, "train", 3))


def test_a_run_starts_from_a_pretrained_encoder(tmp_path: Any) -> None:
    from unisono.runs.files import payload_to_safetensors

    finished = make("byol").init_server(Context(9))
    (tmp_path / "encoder.safetensors").write_bytes(payload_to_safetensors(Payload({"encoder": finished.groups["encoder"]})))
    server = make("byol", {"model": {"pretrained": str(tmp_path / "encoder.safetensors")}}).init_server(Context(0))
    for group in ("encoder", "target_encoder"):
        assert all(torch.equal(tensor, finished.groups["encoder"][name]) for name, tensor in server.groups[group].items())


def test_small_batches_are_skipped_and_counted() -> None:
    weight = nn.Parameter(torch.ones(1))
    data = tiny_clients(labels=False).client_data(0, CPU)
    metrics = train_locally(
        [weight],
        lambda batch, generator: {"loss": weight.sum() * len(batch)},
        data,
        TrainingConfig(batch_size=8),
        Context(0),
        learning_rate=0.1,
        min_batch_size=2,
    )
    assert metrics == {"loss": 8.0, "skipped_batches": 1.0}


@pytest.mark.parametrize(("name", "edge"), [("simclr", 12), ("fedmcc", 12), ("fedu", 12), ("orchestra", 8), ("cfcl", 8)])
def test_views_are_made_at_the_size_of_the_network(name: str, edge: int) -> None:
    """From samples of 8x8; where a loss joins plain samples with views, the network enlarges both."""
    federation = TinyFederation(name, over={"model": {"input_size": 12}, "federation": {"rounds": 1}})
    assert isinstance(federation.method, LocalTraining)
    first, second = federation.method.views.pair(torch.rand(2, *INPUT_SHAPE), torch.Generator())
    assert first.shape == second.shape == (2, 1, edge, edge)
    server = federation.run().server
    assert federation.method.encoder(server)(torch.rand(2, *INPUT_SHAPE)).isfinite().all()
