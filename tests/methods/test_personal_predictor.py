from __future__ import annotations

import pytest
import torch

from unisono.core.context import Context
from unisono.core.payload import Payload
from unisono.core.wire import to_bytes
from unisono.federation.client_turn import prepare_nets
from unisono.methods.local_training import LocalTraining
from unisono.methods.personal_predictor import start_across_silos
from unisono.testing.tiny import TinyFederation, tiny_clients, tiny_config, tiny_method

CPU = torch.device("cpu")


@pytest.mark.parametrize(("moved", "own"), [(0.0, False), (0.39, False), (0.41, True)])
def test_the_own_predictor_stays_where_the_encoders_are_far_apart(moved: float, own: bool) -> None:
    """Divergence: the mean over weight tensors of the L2 distance; two tensors, one of them moved by 2 x moved."""
    first, second = torch.zeros(2, 2), torch.zeros(2, 2)
    second[0, 0] = 2 * moved
    received = Payload({"encoder": {"a": first, "b": first}, "predictor": {"w": torch.ones(1)}})
    local = Payload({"encoder": {"a": second, "b": first}, "predictor": {"w": torch.zeros(1)}})
    start = start_across_silos(received, local, 0.4)
    assert float(start.networks.groups["predictor"]["w"]) == float(not own)
    assert start.networks.groups["encoder"] is received.groups["encoder"]
    assert start.metrics == {"divergence": pytest.approx(moved), "personal_predictor": float(own)}
    assert start_across_silos(received, Payload(), 0.4).networks is received


def test_byol_across_silos_is_fedu() -> None:
    """The same networks, rule and state. FedU's loss is twice BYOL's, so half its rate makes the same steps, bit for bit."""
    own = {"ema": 0.99, "divergence_threshold": 0.0}
    common = {"views": {"preset": "byol"}}
    byol = tiny_method(tiny_config("byol", {"method": own, "training": _rate(0.125, 2**-13), **common}))
    halved = {"method": {**own, "divergence": "global"}, "training": _rate(0.0625, 2**-12), **common}
    fedu = tiny_method(tiny_config("fedu", halved))
    assert dict(byol.shares) == dict(fedu.shares)
    server = fedu.init_server(Context(0))
    data = tiny_clients(labels=False).client_data(0, CPU)
    locals_ = [Payload(), Payload()]
    for round in range(2):
        answers = []
        for number, method in enumerate((byol, fedu)):
            ctx = Context(0, round, "train", 0)
            nets = prepare_nets(method, CPU)
            update, locals_[number] = method.client_step(nets, method.broadcast(server, ctx), locals_[number], data, ctx)
            answers.append((to_bytes(update.payload), update.metrics))
        assert answers[0][0] == answers[1][0]
        assert answers[1][1] == {**answers[0][1], "loss": 2 * answers[0][1]["loss"]}
        assert to_bytes(locals_[0]) == to_bytes(locals_[1])
    assert answers[0][1]["personal_predictor"] == 1.0


def _rate(learning_rate: float, weight_decay: float) -> dict[str, float | str]:
    return {"learning_rate": learning_rate, "weight_decay": weight_decay, "schedule": "constant"}


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_clients_keep_state_across_silos_only(name: str) -> None:
    silo = TinyFederation(name, over={"method": {"divergence_threshold": 0.4}})
    silo.run()
    assert len(list(silo.store)) > 0
    assert {"encoder", "predictor"} <= set(silo.store.get(next(iter(silo.store))).groups)
    assert isinstance(silo.method, LocalTraining)
    assert "target_encoder" not in silo.method.shares
    device = TinyFederation(name)
    device.run(until=1)
    assert list(device.store) == []
