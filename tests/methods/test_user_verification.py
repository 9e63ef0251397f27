"""User verification on every method that takes it: a client trains and sends its own vector, and the server its table."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.core.client_data import ClientData
from unisono.core.config import merge
from unisono.core.context import Context
from unisono.core.payload import Payload, Update
from unisono.federation.client_turn import prepare_nets
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.losses.mutual_information import info_nce_bound
from unisono.losses.user_verification import client_log_likelihood
from unisono.methods.training_loop import batches
from unisono.methods.user_verification import VECTORS, UserVectors
from unisono.runs.checkpoint import Checkpoints
from unisono.testing.tiny import SIZES, TinyFederation, same_bits, tiny_clients

METHODS = ("simclr", "specloss", "simsiam", "semifed", "cbafed")
UNIFORM = {"aggregation": {"weighting": "uniform"}}
ADAM = {**UNIFORM, "server": {"optimizer": "fedadam", "learning_rate": 0.01}}
CPU = torch.device("cpu")


def verified(method: str, over: dict[str, Any] | None = None, **arguments: Any) -> TinyFederation:
    tree = merge({"method": {"uv_weight": 1.0}, "federation": {"rounds": 2}}, over or {})
    clients = arguments.pop("clients", None) or tiny_clients(labels=method in ("semifed", "cbafed"))
    return TinyFederation(method, over=tree, clients=clients, **arguments)


def client_update(tiny: TinyFederation, client_id: int, server: Payload) -> tuple[Update, UserVectors]:
    ctx = Context(0, 0, "train", client_id)
    nets = prepare_nets(tiny.method, CPU)
    received = tiny.method.broadcast(server, ctx)
    update, _ = tiny.method.client_step(nets, received, Payload(), tiny.clients.client_data(client_id, CPU), ctx)
    return update, nets[VECTORS]  # type: ignore[return-value]


def table(payload: Payload) -> Tensor:
    return payload.groups[VECTORS]["vectors"]


class Records(Callback):
    def __init__(self) -> None:
        self.found: list[tuple[ServerState, RoundRecord]] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.found.append((state, record))


# --- the client's side


@pytest.mark.parametrize("method", METHODS)
def test_only_the_own_vector_is_trained_and_sent(method: str) -> None:
    """Weight decay, momentum and gradients reach no other row, and the upload holds one vector, not the table."""
    tiny = verified(method, {"training": {"weight_decay": 0.1, "learning_rate": 0.1, "local_epochs": 2}})
    server = tiny.method.init_server(Context(0))
    update, vectors = client_update(tiny, 3, server)
    sent = table(update.payload)
    assert sent.shape == (16,)
    assert torch.equal(vectors.vectors, table(server))
    assert float(sent.norm()) == pytest.approx(1.0)
    assert float((sent - table(server)[3]).norm()) > 1e-3
    others = set(range(len(SIZES))) - {3}
    for _, tensor in update.payload.tensors():
        assert not any(torch.equal(tensor.flatten()[:16], table(server)[other]) for other in others)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_reaches_encoder_projector_and_vector(method: str) -> None:
    tiny = verified(method)
    nets = prepare_nets(tiny.method, CPU)
    nets[VECTORS].load(table(tiny.method.init_server(Context(0))), 1)  # type: ignore[operator]
    h = nets["encoder"](torch.rand(8, 1, 8, 8))
    terms = tiny.method.verify(nets, *h.chunk(2))  # type: ignore[attr-defined]
    terms["uv_loss"].backward()
    for name in ("encoder", "client_projector", VECTORS):
        assert any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in nets[name].parameters()), name
    assert float(terms["uv_loss"].detach()) == pytest.approx(-float(terms["mi_client_1"] + terms["mi_client_2"]))


def test_training_on_it_makes_a_client_recognisable() -> None:
    tiny = verified("simclr", {"training": {"learning_rate": 0.1, "local_epochs": 20}})
    update, _ = client_update(tiny, 3, tiny.method.init_server(Context(0)))
    assert update.metrics["uv_loss"] < -(update.metrics["mi_client_1"] + update.metrics["mi_client_2"]) - 0.5


@pytest.mark.parametrize("method", METHODS)
def test_without_weight_there_is_nothing_of_it(method: str) -> None:
    tiny = TinyFederation(method)
    assert VECTORS not in tiny.method.shares
    assert VECTORS not in tiny.method.build_networks()
    server = tiny.method.init_server(Context(0))
    assert not {VECTORS, "client_projector"} & server.groups.keys()
    assert not {VECTORS, "client_projector"} & tiny.method.broadcast(server, Context(0)).groups.keys()


# --- the server's side


@pytest.mark.parametrize("method", METHODS)
def test_rows_move_by_their_share_and_keep_unit_length(method: str) -> None:
    """Algorithm 1 without an optimiser: (sent - old) / |S| for those that answered, then length 1; all others to the bit."""
    tiny = verified(method, UNIFORM)
    records = Records()
    start = tiny.federation.initial_state()
    state = tiny.run(start, until=1, callbacks=[records])
    cohort = [report.client_id for _, report in records.found[0][1].clients]
    assert 0 < len(cohort) < len(SIZES)
    for client in range(len(SIZES)):
        before, after = table(start.server)[client], table(state.server)[client]
        if client not in cohort:
            assert torch.equal(after, before)
            continue
        sent = table(client_update(tiny, client, start.server)[0].payload)
        torch.testing.assert_close(after, F.normalize(before + (sent - before) / len(cohort), dim=0))


def test_the_server_optimiser_acts_on_the_vectors() -> None:
    """One step of Adam from zero moments moves every coordinate with a gradient by the learning rate; then length 1."""
    tiny = verified("simclr", {**ADAM, "cohort": {"size": len(SIZES)}})
    start = tiny.federation.initial_state()
    state = tiny.run(start, until=1)
    for client in range(len(SIZES)):
        before = table(start.server)[client]
        sent = table(client_update(tiny, client, start.server)[0].payload)
        # The clients of a single sample skip their batch, and send what they received but for a rounding error.
        if float((sent - before).abs().max()) > 1e-5:
            stepped = before + 0.01 * torch.sign(sent - before)
            torch.testing.assert_close(table(state.server)[client], F.normalize(stepped, dim=0), atol=1e-3, rtol=0)
    assert torch.allclose(table(state.server).norm(dim=1), torch.ones(len(SIZES)))
    assert any(name.startswith("vectors#exp_avg") for name in state.optimizer.groups[VECTORS])


def test_first_vectors_depend_on_seed_and_client_alone() -> None:
    few, many = (table(verified("simclr", clients=tiny_clients(False, [2] * n)).method.init_server(Context(5))) for n in (6, 9))
    assert torch.equal(few, many[:6])
    assert torch.allclose(many.norm(dim=1), torch.ones(9))
    assert float((many @ many.T).fill_diagonal_(0).abs().max()) < 0.99
    assert not torch.equal(few, table(verified("simclr").method.init_server(Context(6))))


def test_five_hundred_clients_and_those_that_join_later() -> None:
    """A client that is first asked in a later round starts from its own first vector, which nobody moved meanwhile."""
    records = Records()
    over = {**UNIFORM, "cohort": {"size": 3}, "federation": {"rounds": 4}, "model": {"backbone": "cfcl-cnn"}}
    tiny = verified("simclr", over, clients=tiny_clients(False, [3] * 500))
    start = tiny.federation.initial_state()
    assert table(start.server).shape == (500, 16)
    tiny.run(start, callbacks=[records])
    asked: set[int] = set()
    for state, record in records.found:
        cohort = {report.client_id for _, report in record.clients}
        for client in cohort - asked:
            assert not torch.equal(table(state.server)[client], table(start.server)[client])
        asked |= cohort
        untouched = [client for client in range(500) if client not in asked]
        assert torch.equal(table(state.server)[untouched], table(start.server)[untouched])
    assert len(asked) > 6


# --- the whole run


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_for_any_number_of_workers_and_after_resume(method: str, tmp_path: Any) -> None:
    alone = verified(method, ADAM)
    expected = alone.run()
    assert same_bits(verified(method, ADAM, workers=2).run(), expected)
    first = verified(method, ADAM)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(first.run(until=1), first.store, {})
    second = verified(method, ADAM)
    assert same_bits(second.run(checkpoints.load(1, second.store).state), expected)


def test_clipping_noise_and_compression_work_with_it() -> None:
    over = {**ADAM, "privacy": {"clip_norm": 1.0, "noise_multiplier": 0.1}, "compression": {"bits": 8, "top_k": 0.5}}
    state = verified("simclr", over).run()
    assert torch.allclose(table(state.server).norm(dim=1), torch.ones(len(SIZES)))
    assert same_bits(verified("simclr", over, workers=2).run(), state)


def test_reduced_precision_and_micro_batches_work_with_it() -> None:
    plain = verified("simclr").run(until=1)
    parts = verified("simclr", {"training": {"micro_batch": 3}}).run(until=1)
    for name, tensor in plain.server.tensors():
        torch.testing.assert_close(parts.server.flatten()[name], tensor, atol=1e-5, rtol=1e-4)
    assert bool(table(verified("simclr", {"training": {"precision": "bf16"}}).run(until=1).server).isfinite().all())


# --- information


def test_information_is_that_of_the_received_networks_on_the_first_batch() -> None:
    """Recomputed by hand: later steps, in which a client's classifier has seen only its own samples, do not count."""
    over = {"method": {"loss": "info-nce", "temperature": 0.5}, "training": {"learning_rate": 0.5, "local_epochs": 3}}
    tiny = verified("simclr", over)
    server = tiny.method.init_server(Context(0))
    metrics = client_update(tiny, 3, server)[0].metrics
    nets = prepare_nets(tiny.method, CPU)
    for name in tiny.method.shared_networks:  # type: ignore[attr-defined]
        nets[name].load_state_dict(server.groups[name], strict=False)
    ctx, data = Context(0, 0, "train", 3), tiny.clients.client_data(3, CPU)
    batch = next(batches(data, tiny.config.training, ctx.rng("order")))
    views = torch.cat(tiny.method.views.pair(batch.x, ctx.rng("views")))  # type: ignore[attr-defined]
    with torch.no_grad():
        h = nets["encoder"](views)
        z_1, z_2 = F.normalize(nets["projector"](h), dim=1).chunk(2)
        log_r = client_log_likelihood(nets["client_projector"](h), table(server), table(server)[3], 3, 3.0)
        expected = {
            "mi_local": info_nce_bound(z_1 @ z_2.T / 0.5),
            "mi_client_1": log_r[: len(batch)].mean(),
            "mi_client_2": log_r[len(batch) :].mean(),
            "mi_entropy": torch.tensor(math.log(len(SIZES))),
        }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), abs=1e-5), name
    assert metrics["mi_bound"] == pytest.approx(sum(metrics[name] for name in expected), abs=1e-5)


def test_every_term_is_logged_every_round() -> None:
    records = Records()
    verified("simclr", UNIFORM).run(callbacks=[records])
    for _, record in records.found:
        terms = [record.metrics[name] for name in ("mi_local", "mi_client_1", "mi_client_2", "mi_entropy")]
        assert record.metrics["mi_bound"] == pytest.approx(sum(terms), abs=1e-5)
        assert record.metrics["mi_entropy"] == pytest.approx(math.log(len(SIZES)))


def test_local_simclr_logs_its_own_term_only() -> None:
    records = Records()
    over = {"method": {"loss": "info-nce"}, "training": {"batch_size": 32}}
    TinyFederation("simclr", over=over).run(until=1, callbacks=[records])
    metrics = records.found[0][1].metrics
    assert {name for name in metrics if name.startswith("mi_")} == {"mi_local"}
    assert metrics["mi_local"] == pytest.approx(-metrics["loss"], abs=1e-5)  # one batch per client


def test_a_client_of_one_sample_sends_its_vector_as_it_was() -> None:
    tiny = verified("simclr")
    server = tiny.method.init_server(Context(0))
    data: ClientData = tiny.clients.client_data(2, CPU)
    assert len(data) == 1
    torch.testing.assert_close(table(client_update(tiny, 2, server)[0].payload), table(server)[2])
