"""CBAFed: thresholds by class, labels fixed at the start of the round, counts that travel."""

from __future__ import annotations

import statistics

import pytest
import torch

from unisono.core.context import Context
from unisono.core.payload import Aggregate, Payload
from unisono.federation.client_turn import FederatedDataset, prepare_nets
from unisono.methods.cbafed import CBAFed, thresholds, with_pseudo_labels
from unisono.testing.tiny import NUM_CLASSES, SIZES, TinyFederation, tiny_clients

CPU = torch.device("cpu")


def test_thresholds_by_hand() -> None:
    """T_c = p_c + 0.84 - std(p), at most 0.95: rarer classes are accepted more easily."""
    shares = [0.5, 0.3, 0.2, 0.0]
    spread = statistics.stdev(shares)
    expected = [min(0.95, share + 0.84 - spread) for share in shares]
    assert thresholds(torch.tensor(shares), 0.84, 0.95).tolist() == pytest.approx(expected)
    assert thresholds(torch.full((10,), 0.1), 0.84, 0.95).tolist() == pytest.approx([0.94] * 10)
    assert thresholds(torch.ones(1), 0.84, 0.95).tolist() == pytest.approx([0.95])


def test_pseudo_labels_by_hand() -> None:
    """Three unlabelled samples, 91% sure of class 0, 1 and 2; class 1 asks for more. A known label is never replaced."""
    logits = 3 * torch.eye(3)
    limits = torch.tensor([0.9, 0.95, 0.9])
    assert with_pseudo_labels(torch.tensor([-1, -1, -1]), logits, limits).tolist() == [0, -1, 2]
    assert with_pseudo_labels(torch.tensor([2, 0, -1]), logits, limits).tolist() == [2, 0, 2]
    assert with_pseudo_labels(torch.empty(0, dtype=torch.long), torch.empty(0), limits).shape == (0,)


def test_the_second_class_by_hand() -> None:
    """A sample below its limit gets its second class where that is rare; a sure one, a labelled one and others do not."""
    logits = torch.tensor([[4.0, 1.0, 0.0], [1.0, 0.9, 0.0], [1.0, 0.0, 0.9], [0.0, 1.0, 0.9], [1.0, 0.9, 0.0]])
    labels, limits = torch.tensor([-1, -1, -1, -1, 2]), torch.full((3,), 0.9)
    rare = torch.tensor([False, True, False])
    assert with_pseudo_labels(labels, logits, limits, rare).tolist() == [0, 1, -1, -1, 2]
    assert with_pseudo_labels(labels, logits, limits, rare & False).tolist() == [0, -1, -1, -1, 2]


def test_second_class_and_scaled_shares_against_a_loop() -> None:
    """CBAFed's code, sample by sample: shares times classes / 10, thresholds, and the second class below a share of 0.03."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.004, 0.3, 0.01, 0.4, 0.286])
    logits, labels = 3 * torch.randn(200, 5, generator=generator), torch.randint(-1, 5, (200,), generator=generator)
    labels[::2] = -1
    for scale, rare_share in ((False, 0.0), (False, 0.03), (True, 0.0), (True, 0.006)):
        over = {"method": {"scale_shares": scale, "rare_share": rare_share}}
        method = TinyFederation("cbafed", over=over, clients=tiny_clients(labels=True)).method
        found = method._pseudo_labels(labels, shares, logits)  # type: ignore[attr-defined]
        p = [share * 5 / 10 if scale else share for share in shares.tolist()]
        limits = [min(0.95, each + 0.84 - statistics.stdev(p)) for each in p]
        for label, row, got in zip(labels.tolist(), logits, found.tolist(), strict=True):
            chances = row.softmax(dim=0).tolist()
            second, first = sorted(range(5), key=chances.__getitem__)[-2:]
            expected = first if chances[first] > limits[first] else second if p[second] < rare_share else -1
            assert got == (label if label >= 0 else expected)


def federation(base: float, visible: float = 0.5, **options: float) -> TinyFederation:
    clients = tiny_clients(labels=True)
    assert clients.labels is not None
    hidden = torch.rand(len(clients.labels), generator=torch.Generator().manual_seed(0)) >= visible
    labels = torch.where(hidden, -1, clients.labels)
    split = torch.arange(sum(SIZES)).split(list(SIZES))
    return TinyFederation(
        "cbafed", over={"method": {"base_threshold": base, **options}}, clients=FederatedDataset(clients.samples, split, labels)
    )


def counts_of(tiny: TinyFederation, client_id: int) -> tuple[torch.Tensor, dict[str, float]]:
    assert isinstance(tiny.method, CBAFed)
    nets, ctx = prepare_nets(tiny.method, CPU), Context(0, 0, "train", client_id)
    counted = Aggregate({"class_counts": {"counts": torch.ones(NUM_CLASSES)}})
    server = tiny.method.server_step(tiny.method.init_server(Context(0)), counted, Context(0, 0, "count"))
    received = tiny.method.broadcast(server, ctx)
    update, _ = tiny.method.client_step(nets, received, Payload(), tiny.clients.client_data(client_id, CPU), ctx)
    return update.payload.groups["class_counts"]["counts"], dict(update.metrics)


def test_without_confident_samples_a_client_trains_on_its_labels() -> None:
    tiny = federation(base=1.0)
    tiny.method.config = tiny.method.config.model_copy(update={"max_threshold": 1.0})  # type: ignore[attr-defined]
    counts, metrics = counts_of(tiny, 3)
    labels = tiny.clients.client_data(3, CPU).labels
    assert labels is not None
    assert counts.tolist() == torch.bincount(labels[labels >= 0], minlength=NUM_CLASSES).tolist()
    assert metrics["pseudo_labelled"] == 0


def test_with_all_samples_confident_it_trains_on_all() -> None:
    tiny = federation(base=0.0)
    counts, metrics = counts_of(tiny, 3)
    labels = tiny.clients.client_data(3, CPU).labels
    assert labels is not None
    assert int(counts.sum()) == SIZES[3]
    assert metrics["pseudo_labelled"] == pytest.approx(float((labels < 0).float().mean()))


def test_a_client_without_any_label_sends_what_it_received() -> None:
    tiny = federation(base=1.0, visible=0.0)
    counts, metrics = counts_of(tiny, 3)
    assert counts.tolist() == [0.0] * NUM_CLASSES
    assert "loss" not in metrics
    tiny.run()


def test_the_server_turns_counts_into_the_next_shares() -> None:
    method = federation(base=0.84).method
    empty = Aggregate({"class_counts": {"counts": torch.zeros(3)}})
    server = method.server_step(method.init_server(Context(0)), empty, Context(0, 0, "count"))
    assert server.groups["class_shares"]["p"].tolist() == pytest.approx([1 / 3] * 3), "nobody has a label"
    step = method.server_step(server, Aggregate({"class_counts": {"counts": torch.tensor([6.0, 2.0, 0.0])}}), Context(0))
    assert step.groups["class_shares"]["p"].tolist() == [0.75, 0.25, 0.0]
    assert "class_counts" not in step.groups
    nothing = method.server_step(server, Aggregate({"class_counts": {"counts": torch.zeros(3)}}), Context(0))
    assert nothing.groups["class_shares"]["p"].tolist() == pytest.approx([1 / 3] * 3)


def test_the_first_shares_are_those_of_all_clients_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first round every client, of the cohort or not, counts its labels and sends nothing else."""
    tiny = federation(base=1.0)
    method, labels = tiny.method, tiny.clients.labels
    assert labels is not None
    server, ctx = method.init_server(Context(0)), Context(0, 0, "count", 3)
    assert [(phase.name, phase.all_clients) for phase in method.phases(0, server)] == [("count", True), ("train", False)]
    assert not method.broadcast(server, ctx).groups
    data = tiny.clients.client_data(3, CPU)
    update, _ = method.client_step(prepare_nets(method, CPU), Payload(), Payload(), data, ctx)
    assert update.payload.groups.keys() == {"class_counts"}
    assert data.labels is not None
    own = torch.bincount(data.labels[data.labels >= 0], minlength=NUM_CLASSES)
    assert update.payload.groups["class_counts"]["counts"].tolist() == own.tolist()

    seen: list[Payload] = []
    step = CBAFed.server_step

    def watch(self: CBAFed, server: Payload, aggregate: Aggregate, ctx: Context) -> Payload:
        seen.append(step(self, server, aggregate, ctx))
        return seen[-1]

    monkeypatch.setattr(CBAFed, "server_step", watch)
    tiny.run(until=1)
    every = torch.bincount(labels[labels >= 0], minlength=NUM_CLASSES).float()
    torch.testing.assert_close(seen[0].groups["class_shares"]["p"], every / every.sum())
    assert len(seen) == 2
    assert [phase.name for phase in method.phases(1, seen[1])] == ["train"]


def test_supervised_rounds_learn_from_labels_alone() -> None:
    with_stage, without = federation(base=0.0, supervised_rounds=1), federation(base=0.0)
    labels = with_stage.clients.client_data(3, CPU).labels
    assert labels is not None
    assert int(counts_of(with_stage, 3)[0].sum()) == int((labels >= 0).sum())
    assert int(counts_of(without, 3)[0].sum()) == SIZES[3]


def test_shares_over_a_round_are_those_of_all_its_clients() -> None:
    tiny = federation(base=0.84)
    state = tiny.run(until=1)
    p = state.server.groups["class_shares"]["p"]
    assert float(p.sum()) == pytest.approx(1)
