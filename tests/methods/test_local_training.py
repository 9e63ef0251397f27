from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import INPUT_SHAPE, tiny_clients, tiny_config, tiny_method
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.federation.worker import prepare_nets
from unisono.methods.local_training import Batch, LocalTraining, Loss, TrainingConfig, train_locally
from unisono.models.micro_batch import InParts, in_parts

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
        data = tiny_clients(labels=False).data_of(3, CPU)
        update = method.train(nets, method.broadcast(server, ctx), data, ctx, watched(method, nets, seen))
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


def test_frozen_networks_stay_as_they_are_and_in_eval_mode() -> None:
    method = make("cc", {"model": {"norm": "batch"}})
    nets, server = prepare_nets(method, CPU), method.init_server(Context(0))
    ctx = Context(0, 0, "train", 3)
    modes = []

    def loss(batch: Batch, generator: torch.Generator) -> Any:
        modes.append((nets["encoder"].training, nets["cluster_head"].training))
        return {"loss": nets["cluster_head"](nets["encoder"](batch.x)).square().mean()}

    data = tiny_clients(labels=False).data_of(3, CPU)
    update = method.train_networks(nets, server, data, ctx, loss, ("cluster_head",), frozen=("encoder",))
    assert set(modes) == {(False, True)}
    assert list(update.payload.groups) == ["cluster_head"]
    for name, tensor in server.groups["encoder"].items():
        assert torch.equal(nets["encoder"].state_dict()[name], tensor)
    moved = update.payload.groups["cluster_head"]
    assert not all(torch.equal(tensor, moved[name]) for name, tensor in server.groups["cluster_head"].items())


def test_a_run_starts_from_a_pretrained_encoder(tmp_path: Any) -> None:
    from unisono.runs.files import payload_to_safetensors

    finished = make("byol").init_server(Context(9))
    (tmp_path / "encoder.safetensors").write_bytes(payload_to_safetensors(Payload({"encoder": finished.groups["encoder"]})))
    server = make("byol", {"model": {"pretrained": str(tmp_path / "encoder.safetensors")}}).init_server(Context(0))
    for group in ("encoder", "target_encoder"):
        assert all(torch.equal(tensor, finished.groups["encoder"][name]) for name, tensor in server.groups[group].items())


def test_small_batches_are_skipped_and_counted() -> None:
    weight = nn.Parameter(torch.ones(1))
    data = tiny_clients(labels=False).data_of(0, CPU)
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
