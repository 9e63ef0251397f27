from __future__ import annotations

from pathlib import Path

import pytest

import unisono
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.methods.orchestra import Orchestra
from unisono.runs.evaluation import Consistency
from unisono.testing.tiny import TinyFederation

SMALL = (
    "data.limit=120", "data.test_limit=40", "model.backbone=cfcl-cnn", "evaluation.probe_every=0", "engine.workers=0",
    "federation.rounds=1", "partition.num_clients=4", "training.local_epochs=1",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("few_prototype_steps")


class Keeper(Callback):
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.servers: list[ServerState] = []

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.records.append(record)
        self.servers.append(state)


def test_every_round_logs_what_the_method_says_of_all_samples() -> None:
    tiny = TinyFederation("orchestra", over={"method": {"num_global_clusters": 3}})
    assert isinstance(tiny.method, Orchestra)
    keeper = Keeper()
    tiny.run(until=2, callbacks=[Consistency(tiny.method, tiny.clients, 0), keeper])
    samples = list(tiny.clients.samples.split([9, 7, 1, 12, 4, 2]))
    for record, state in zip(keeper.records, keeper.servers, strict=True):
        expected = tiny.method.cluster_consistency(state.server, samples, Context(0, record.round, "consistency"))
        assert record.metrics["consistency"] == expected
        assert 0 < expected <= 1


def test_it_is_off_unless_asked_for_and_refused_where_there_are_no_clusters(tmp_path: Path) -> None:
    flags = {"dataset": "digits", "name": "a"}
    here = f"run.directory={tmp_path}"
    run = unisono.run("orchestra", set=[*SMALL, here, "evaluation.cluster_consistency=true"], **flags)
    assert "consistency" in run.metrics[-1]
    off = unisono.run("orchestra", set=[*SMALL, here], dataset="digits", name="b")
    assert "consistency" not in off.metrics[-1]
    with pytest.raises(UserError, match=r"evaluation\.cluster_consistency compares local with global clusters"):
        unisono.run("simclr", set=[*SMALL, here, "evaluation.cluster_consistency=true"], dataset="digits", name="c")
