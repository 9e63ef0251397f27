"""One client update: what it is given, what is checked, and how its failure is told."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.federation.counting import Counting
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import ClientError
from unisono.core.payload import Payload, Update
from unisono.federation.client_turn import ClientResult, FederatedDataset, run_client
from unisono.federation.postprocess import RESIDUAL, CompressionConfig, Postprocessor, PrivacyConfig

CTX = Context(0, 3, "train", 2)
RECEIVED = Payload({"number": {"x": torch.zeros(2)}})


class Answering(Counting):
    """Answers what it is told."""

    step: Callable[[Payload], tuple[Update, Payload]]

    def client_step(
        self, nets: nn.ModuleDict, received: Payload, local: Payload, data: ClientData, ctx: Context
    ) -> tuple[Update, Payload]:
        return self.step(local)


def turn(
    step: Callable[[Payload], tuple[Update, Payload]],
    local: Payload | None = None,
    compression: CompressionConfig | None = None,
) -> ClientResult:
    method = Answering.make()
    method.step = step
    data = ClientData(torch.zeros(5, 1), torch.arange(5))
    postprocessor = Postprocessor(PrivacyConfig(), compression or CompressionConfig(), method.shares)
    return run_client(method, nn.ModuleDict(), RECEIVED, local or Payload(), data, CTX, postprocessor)


def good(local: Payload) -> tuple[Update, Payload]:
    return Update(2, 5.0, Payload({"number": {"x": torch.tensor([1.0, 10.0])}}), {"loss": 0.5}), local.with_scalars(turns=1)


def test_an_answer_has_update_state_and_report() -> None:
    done = turn(good)
    assert done.update.payload.groups["number"]["x"].tolist() == [1.0, 10.0]
    assert done.local.scalars == {"turns": 1}
    stats = done.stats
    assert (stats.client_id, stats.num_samples, stats.bytes_down, stats.bytes_up) == (2, 5, 8, 8)
    assert stats.metrics == {"loss": 0.5}
    assert stats.seconds >= 0


def raising(local: Payload) -> tuple[Update, Payload]:
    raise ZeroDivisionError("by zero")


def undeclared(local: Payload) -> tuple[Update, Payload]:
    return Update(2, 1.0, Payload({"samples": {"x": torch.ones(1)}})), local


def not_finite(local: Payload) -> tuple[Update, Payload]:
    return Update(2, 1.0, Payload({"number": {"x": torch.tensor([1.0, float("nan")])}})), local


def impostor(local: Payload) -> tuple[Update, Payload]:
    return Update(1, 1.0, Payload({"number": {"x": torch.ones(2)}})), local


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (raising, "ZeroDivisionError: by zero"),
        (undeclared, "group 'samples' is not among those declared for this phase"),
        (not_finite, "number/x holds a value that is not finite"),
        (impostor, "must carry its own client's id.*got 1"),
    ],
)
def test_a_failure_names_round_phase_and_client(step: Callable[[Payload], tuple[Update, Payload]], reason: str) -> None:
    with pytest.raises(ClientError, match=f"round 4, phase train, client 2: .*{reason}") as caught:
        turn(step)
    assert "Traceback" in caught.value.details


def test_the_method_never_sees_the_residual_and_cannot_lose_it() -> None:
    """Top 1 of 2 sends the 10 and keeps the 1; next time 1 + 1 = 2 waits."""
    seen: list[Payload] = []

    def forgetful(local: Payload) -> tuple[Update, Payload]:
        seen.append(local)
        return good(Payload())

    compression = CompressionConfig(top_k=0.5)
    first = turn(forgetful, None, compression)
    assert first.local.groups[RESIDUAL]["number/x"].tolist() == [1.0, 0.0]
    second = turn(forgetful, first.local, compression)
    assert second.local.groups[RESIDUAL]["number/x"].tolist() == [2.0, 0.0]
    assert [list(local.groups) for local in seen] == [[], []]
    assert seen[1].scalars == {"turns": 1}


def test_clients_hold_their_rows_and_labels() -> None:
    samples = torch.arange(6.0).reshape(6, 1)
    clients = FederatedDataset(
        samples, [torch.tensor([4, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([0])], torch.arange(6) * 10
    )
    assert len(clients) == 3
    assert [clients.num_samples(client) for client in range(3)] == [2, 0, 1]
    data = clients.client_data(0, torch.device("cpu"))
    assert data.batch(torch.arange(2)).flatten().tolist() == [4.0, 1.0]
    assert data.label_batch(torch.arange(2)).tolist() == [40, 10]
    assert len(clients.client_data(1, torch.device("cpu"))) == 0
    assert FederatedDataset(samples, [torch.arange(6)], None).client_data(0, torch.device("cpu")).labels is None
    clients.share_memory()
    assert clients.samples.is_shared()
