"""A deployed run without a federation: the driver on a backend that knows no more than a server does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.report.test_run_report import page_of
from unisono import running
from unisono.backends import Backend
from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.core.method import Method, RunInfo
from unisono.data.datasets import Dataset
from unisono.deploy.runs import prepare_run
from unisono.deploy.server import check_evaluation
from unisono.engines.embedded import EmbeddedEngine, EngineConfig
from unisono.engines.shards import WorkerSetup
from unisono.experiment import check_run
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundRecord, ServerState
from unisono.federation.postprocess import Postprocessor
from unisono.report import collector
from unisono.report.collector import AboutMethod
from unisono.report.files import ReportFiles
from unisono.reporting import make_report
from unisono.running import execute
from unisono.runs.directory import RunDirectory
from unisono.testing.tiny import INPUT_SHAPE, SIZES, tiny_clients

SMALL = (
    "model.width=0.125", "federation.rounds=2", "method.hidden_dim=32", "method.projection_dim=16", "training.batch_size=4",
)  # fmt: skip
RUN_ID = 7


def build(config: Config) -> Method:
    rounds = config.federation.rounds
    info = RunInfo(INPUT_SHAPE, (0.5,), (0.2,), None, len(SIZES), rounds, config.method_sections)
    return config.method_class(config.method, info)


@contextmanager
def backend(config: Config, directory: RunDirectory) -> Iterator[Backend]:
    """Clients in this process, and a server that has no samples of theirs."""
    method = build(config)
    check_run(config, method, len(SIZES))
    postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
    setup = WorkerSetup(method, tiny_clients(labels=False), postprocessor, config.aggregation)
    with EmbeddedEngine(setup, EngineConfig(workers=0, device="cpu")) as engine:
        collector = AboutMethod(directory, method) if config.report.enabled else None
        yield Backend(method, engine, (), dict(enumerate(SIZES)), "none", collector)


def prepared(tmp_path: Path, *settings: str, method: str = "fedema") -> RunDirectory:
    return RunDirectory(prepare_run(tmp_path, len(SIZES), method, [*SMALL, *settings], "x"))


def facts(document: dict[str, Any]) -> dict[str, str]:
    (pairs,) = [block["pairs"] for block in document["sections"][0]["blocks"] if block["kind"] == "facts"]
    return dict(pairs)


class Raising(Callback):
    """Raises after the first round."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        raise self._error


def test_report_shows_what_the_server_knows(tmp_path: Path) -> None:
    directory = prepared(tmp_path)
    execute(directory, backend, run_id=RUN_ID)
    found = page_of(directory.path)
    assert found["status"] == "finished"
    assert found["subtitle"].startswith(f"fedema on a federation of {len(SIZES)} clients. FedEMA: BYOL on clients")
    sections = [part["id"] for part in found["sections"]]
    assert {"run", "curves", "clients", "privacy", "timings", "environment", "repeat"} <= set(sections)
    assert not {"data", "map"} & set(sections)
    assert facts(found)["data"] == "the clients' own, samples of 1 x 8 x 8"
    assert not {"data set", "split", "shift"} & facts(found).keys()
    assert found["sections"][-1]["blocks"][0]["text"].startswith("unisono deploy run ")
    assert directory.read_json("status.json") == {"status": "finished", "round": 2, "run_id": RUN_ID}
    assert directory.read_json("environment.json")["python"]
    assert not directory.in_use


def test_preflight_warnings_reach_the_privacy_report(tmp_path: Path) -> None:
    local_dp = ("method.privacy=local-dp", "method.num_local_clusters=2", "method.num_global_clusters=2")
    settings = [text for text in SMALL if not text.startswith("method.hidden_dim")]
    path = prepare_run(tmp_path, len(SIZES), "orchestra", [*settings, *local_dp, "evaluation.probe_every=0"], "x")
    directory = RunDirectory(path)
    execute(directory, backend, run_id=RUN_ID)
    config = resolve(directory.config_tree)
    expected = list(build(config).preflight_warnings(list(SIZES)))
    assert expected
    assert directory.read_json("privacy.json")["warnings"] == expected


@pytest.mark.parametrize("error", [UserError("no quorum."), KeyboardInterrupt()])
def test_failed_run_says_why_and_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(ClientStateStore, "close", lambda store: closed.append(True))
    directory = prepared(tmp_path)
    with pytest.raises(type(error)):
        execute(directory, backend, callbacks=[Raising(error)], run_id=RUN_ID)
    reason = "no quorum." if isinstance(error, UserError) else "interrupted"
    assert directory.read_json("status.json") == {"status": "failed", "round": 1, "run_id": RUN_ID, "reason": reason}
    found = page_of(directory.path)
    expected = f"The run failed after 1 of 2 rounds: {reason.rstrip('.')}. Continue it with 'unisono deploy run --resume x'."
    assert (found["status"], found["sections"][0]["blocks"][0]["text"]) == ("failed", expected)
    assert closed
    assert not directory.in_use
    monkeypatch.undo()
    assert execute(directory, backend, run_id=RUN_ID + 1).round == 2


def test_a_problem_with_the_report_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(running, "write_report", fail)
    monkeypatch.setattr(collector, "about_method", fail)
    directory = prepared(tmp_path)
    execute(directory, backend, run_id=RUN_ID)
    assert directory.finished
    assert ReportFiles(directory).errors.count("RuntimeError: no ink") == 2


def test_no_report_where_none_is_wanted(tmp_path: Path) -> None:
    directory = prepared(tmp_path, "report.enabled=false")
    execute(directory, backend, run_id=RUN_ID)
    assert not (directory.path / "report.html").exists()
    assert not (directory.path / "report").exists()


def test_a_report_made_anew_shows_no_data_of_another_place(tmp_path: Path) -> None:
    directory = prepared(tmp_path, "data.dataset=digits")
    execute(directory, backend, run_id=RUN_ID)
    shutil.rmtree(directory.path / "report")
    _, problem = make_report(directory.path)
    assert problem == "The report has no map of the last state: its samples are with the clients of its federation."
    assert ReportFiles(directory).read("about") is None
    assert "data" not in [part["id"] for part in page_of(directory.path)["sections"]]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "evaluation.cluster_consistency=true",
            r"evaluation\.cluster_consistency clusters the samples of all clients in one place",
        ),
        ("evaluation.warm_start=true", r"evaluation\.warm_start needs labelled samples at the server: set labelled"),
        ("evaluation.probes=['linear']", r"evaluation\.probes asks for 'linear', which needs labelled samples at the server"),
        ("evaluation.probes=['kmeans']", "'kmeans', which needs labelled samples at the server"),
        ("evaluation.probes=['clusters']", "the method assigns none"),
    ],
)
def test_evaluation_that_a_federation_cannot_do_is_refused(tmp_path: Path, setting: str, sentence: str) -> None:
    config = resolve(prepared(tmp_path, setting).config_tree)
    with pytest.raises(UserError, match=sentence):
        check_evaluation(config, build(config), None)


def test_a_missing_tracker_is_refused_before_the_run(tmp_path: Path) -> None:
    directory = prepared(tmp_path, "track.wandb=true")
    with pytest.raises(UserError, match=r"track\.wandb needs the package wandb"):
        execute(directory, backend, run_id=RUN_ID)
    assert not directory.logs["metrics"].read()


def test_labelled_samples_allow_every_probe(tmp_path: Path, labelled: Dataset) -> None:
    config = resolve(prepared(tmp_path, "evaluation.probes=['linear-sgd']", "evaluation.warm_start=true").config_tree)
    check_evaluation(config, build(config), labelled)


@pytest.fixture
def labelled(tmp_path: Path) -> Dataset:
    from tests.deploy.running import write_labelled
    from unisono.data.datasets import DataConfig
    from unisono.deploy.evaluation import load_labelled

    return load_labelled(write_labelled(tmp_path / "labelled.npz"), INPUT_SHAPE, DataConfig())
