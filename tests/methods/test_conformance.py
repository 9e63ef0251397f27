"""What every registered method must do."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import SIZES, TinyFederation, same_bits, tiny_clients
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.method import methods
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes
from unisono.federation.client_store import ClientStore
from unisono.federation.rounds import Observer, RoundRecord, State
from unisono.federation.worker import Clients
from unisono.runs.checkpoint import Checkpoints

METHODS = list(methods)


class Recorder(Observer):
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: State, record: RoundRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits_for_any_number_of_workers(method: str) -> None:
    alone = TinyFederation(method).run()
    for workers in (1, 2, 4):
        assert same_bits(TinyFederation(method, workers=workers).run(), alone)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_other_bits(method: str) -> None:
    assert not same_bits(TinyFederation(method, seed=0).run(until=1), TinyFederation(method, seed=1).run(until=1))


@pytest.mark.parametrize("method", METHODS)
def test_training_changes_what_the_server_holds(method: str) -> None:
    federation = TinyFederation(method)
    assert not same_bits(State(3, federation.federation.start().server), federation.run())


@pytest.mark.parametrize("method", METHODS)
def test_messages_round_trip_the_wire_and_are_read_only(method: str) -> None:
    """Every message of a run, sent as bytes, gives the same answer; and no step writes into what it was given."""
    tiny = TinyFederation(method)
    step = tiny.method.client_step
    num_steps = 0

    def checked(nets: torch.nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context) -> object:
        nonlocal num_steps
        num_steps += 1
        before = to_bytes(received), to_bytes(local)
        update, new_local = step(nets, from_bytes(before[0]), from_bytes(before[1]), data, ctx)
        again, again_local = step(nets, received, local, data, ctx)
        assert (to_bytes(received), to_bytes(local)) == before
        assert to_bytes(update.payload) == to_bytes(again.payload)
        assert to_bytes(new_local) == to_bytes(again_local)
        assert update.payload.groups.keys() <= tiny.method.shares.keys()
        assert update.client_id == ctx.client_id
        return again, again_local

    tiny.method.client_step = checked  # type: ignore[method-assign, assignment]
    tiny.run()
    assert num_steps > 0


class WithoutClientThree(Clients):
    """Client 3 cannot read its data."""

    def data_of(self, client_id: int, device: torch.device) -> ClientData:
        data = super().data_of(client_id, device)
        if client_id == 3:
            return ClientData(data.samples, data.indices + 10**6, data.labels, device)
        return data


@pytest.mark.parametrize("method", METHODS)
def test_survives_a_client_that_fails(method: str) -> None:
    whole = tiny_clients(methods[method].needs_labels)
    clients = WithoutClientThree(whole.samples, torch.arange(sum(SIZES)).split(list(SIZES)), whole.labels)
    recorder = Recorder()
    over = {"federation": {"strict": False, "quorum": 0.3}, "cohort": {"size": len(SIZES)}}
    state = TinyFederation(method, clients=clients, over=over).run(observers=[recorder])
    assert state.round == 3
    assert {failure.client_id for record in recorder.records for failure in record.failures} == {3}
    assert all(bool(torch.isfinite(tensor).all()) for _, tensor in state.server.tensors() if tensor.is_floating_point())


@pytest.mark.parametrize("method", METHODS)
def test_survives_clients_of_one_sample(method: str) -> None:
    clients = tiny_clients(methods[method].needs_labels, sizes=(1, 1, 5))
    state = TinyFederation(method, clients=clients, over={"cohort": {"size": 3}}).run()
    assert all(bool(torch.isfinite(tensor).all()) for _, tensor in state.server.tensors() if tensor.is_floating_point())


@pytest.mark.parametrize("method", METHODS)
def test_resumes_with_the_same_bits(method: str, tmp_path: object) -> None:
    undisturbed = TinyFederation(method)
    expected = undisturbed.run()
    first = TinyFederation(method)
    state = first.run(until=2)
    checkpoints = Checkpoints(tmp_path / "checkpoints")  # type: ignore[operator]
    checkpoints.save(state, first.store, {})
    second = TinyFederation(method)
    resumed = second.run(checkpoints.load(2, second.store).state)
    assert same_bits(resumed, expected)
    assert _states(second.store) == _states(undisturbed.store)


@pytest.mark.parametrize("method", METHODS)
def test_encoder_gives_finite_features_in_eval_mode(method: str) -> None:
    tiny = TinyFederation(method)
    encoder = tiny.method.encoder(tiny.run(until=1).server)
    assert not encoder.training
    features = encoder(tiny.clients.samples[:5].float() / 255)
    assert features.dim() == 2
    assert len(features) == 5
    assert bool(torch.isfinite(features).all())


@pytest.mark.parametrize("method", METHODS)
def test_summary_is_one_sentence(method: str) -> None:
    summary = (methods[method].__doc__ or "").strip().splitlines()[0]
    assert summary.endswith((".", "?"))


def _states(store: ClientStore) -> dict[int, bytes]:
    return {client_id: to_bytes(store.get(client_id)) for client_id in store}
