"""A run on a real federation, as the server sees it: who takes part, what is agreed, rounds, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.config import Config, resolve
from unisono.core.errors import UserError
from unisono.core.method import Method, Setting
from unisono.deploy.agreement import Agreement, agree
from unisono.deploy.layout import ServerConfig, ServerDirectory
from unisono.deploy.page import describe, write_failed_page, write_finished_page
from unisono.deploy.probing import ClientProbing, labelled_probe, load_labelled
from unisono.engines.flower.control import key_bytes
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.membership import FlowerMembership
from unisono.engines.flower.secure import SecureEngine, check_secure
from unisono.experiment import check_privacy
from unisono.federation.client_store import ClientStore
from unisono.federation.postprocess import Postprocessor
from unisono.federation.rounds import Federation, Observer, State
from unisono.loaded import LoadedRun
from unisono.methods.exchange import Exchange
from unisono.privacy.accountant import UserLevelAccountant
from unisono.privacy.guarantee import ReleasesStatistics
from unisono.running import restore
from unisono.runs.directory import RunDirectory
from unisono.runs.exchange_log import ExchangeLog
from unisono.runs.observers import Checkpointing, Failures, Logs, PrivacyLedger
from unisono.runs.privacy_report import PrivacyReport
from unisono.runs.probing import Probing
from unisono.runs.trackers import Tracking

POLL = 0.3
PUBLIC_TABLES = (
    "format", "method", "graph", "views", "model", "training", "federation", "cohort", "aggregation", "privacy", "compression",
    "consent", "evaluation",
)  # fmt: skip
LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Host:
    """The server that a run is on.

    Args:
        config: what it waits for.
        keys: client id by public key; None where clients are believed.
        path: its directory, None outside of one.
    """

    config: ServerConfig
    keys: dict[bytes, int] | None
    path: Path | None = None

    @staticmethod
    def of(directory: ServerDirectory) -> Host:
        """The server of a directory."""
        keys = None if directory.config.insecure else {key_bytes(line): client for client, line in directory.keys.items()}
        return Host(directory.config, keys, directory.path)


class StatusFile(Observer):
    """``status.json``: where a run stands, and which of the runs that Flower counts says so.

    A server that was cut off and the one that goes on with its run may both be there for a moment.
    """

    def __init__(self, directory: RunDirectory, run_id: int) -> None:
        self._directory = directory
        self._run_id = run_id

    def write(self, status: str, num_rounds: int, **more: str) -> None:
        self._directory.write_json("status.json", {"status": status, "round": num_rounds, "run_id": self._run_id, **more})

    def on_round_end(self, state: State, record: Any) -> None:
        self.write("running", state.round)


def serve(grid: Any, path: Path, host: Host, run_id: int) -> None:
    """Runs, or goes on with, the run in a directory until it is finished.

    Args:
        grid: Flower's.
        path: a run directory that ``prepare_run`` made.
        host: the server it runs on.
        run_id: Flower's number of the run.
    """
    directory = RunDirectory.open(path)
    status = StatusFile(directory, run_id)
    config = resolve(directory.config_tree)
    _lock(directory)
    try:
        status.write("waiting for clients", 0)
        _serve(grid, directory, config, host, status)
    except BaseException as error:
        rounds = directory.checkpoints().rounds()
        done = rounds[-1] if rounds else 0
        status.write("failed", done, reason=_reason(error))
        write_failed_page(directory, config, done, _reason(error))
        raise
    finally:
        directory.unlock()


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):  # how Flower ends an app: its run was stopped, or its server is gone
        return "interrupted"
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _serve(grid: Any, directory: RunDirectory, config: Config, host: Host, status: StatusFile) -> None:
    def note(sentence: str) -> None:
        print(sentence, flush=True)
        directory.logs["notes"].append({"round": None, "note": sentence})

    state, store = restore(directory, config, lambda sentence: print(sentence, flush=True))
    has_setting = (directory.path / "setting.json").is_file()
    known = directory.load_setting() if has_setting else None
    tree, num_clients = public_tree(config), host.config.num_clients
    question = {"config": tree, "setting": known, "num_clients": num_clients, "num_rounds": config.federation.rounds}
    fleet = FlowerMembership(grid, num_clients, host.keys, question, note)
    expected = num_clients if host.keys is None else len(host.keys)
    fleet.wait(host.config.min_clients or expected, host.config.wait)
    if not fleet.descriptions:
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in sorted(fleet.refused.items()))
        raise UserError(f"No client can take part{': ' + reasons if reasons else ', for none is connected'}.")
    agreement = _agreement(known) if known else agree(fleet.descriptions)
    fleet.set_admission_check(lambda client_id, description: agreement.misfit(description))
    method = _method(config, agreement, num_clients)
    directory.save_setting(method.setting)
    uid = directory.read_json("federation.json")["run"]
    terms = json.dumps({"run": uid, "config": tree, "setting": directory.read_json("setting.json")})
    engine = _engine(grid, fleet, method, config, terms, host)
    federation = Federation(method, engine, store, config.federation_sections, config.run.seed)
    state = federation.start() if state is None else state
    status.write("running", state.round)
    describe(directory, config, method, state.server)
    observers = _observers(directory, config, method, store, engine, terms, host, agreement, note)
    state = federation.run(state, [*observers, status, _checkpointing(directory, config, store)])
    LoadedRun(directory, config, method, state.server, state.round).save_model()
    write_finished_page(directory, config, state.round)  # before the status, for whoever waits for that fetches the page too
    status.write("finished", state.round)
    store.close()


def _engine(grid: Any, fleet: FlowerMembership, method: Method, config: Config, terms: str, host: Host) -> FlowerEngine:
    postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
    policy = ServerPolicy(
        method, postprocessor, config.aggregation, config.engine.client_timeout, config.engine.max_answer, POLL
    )
    expected = config.cohort.expected_size(fleet.num_clients)
    fleet.patience = host.config.wait
    fleet.wanted = max(1, math.ceil(config.federation.quorum * expected))
    if config.privacy.secure_aggregation:
        check_secure(method, config.aggregation, config.compression, expected)
        if host.keys is None:
            raise UserError("privacy.secure_aggregation needs clients that prove who they are: not with insecure = true.")
        fleet.wanted = max(fleet.wanted, expected)
        return SecureEngine(grid, fleet, policy, terms)
    return FlowerEngine(grid, fleet, policy, terms)


def _method(config: Config, agreement: Agreement, num_clients: int) -> Method:
    """The method in the setting that was agreed on; a UserError if the parts of the config do not fit each other."""
    setting = Setting(
        agreement.shape, agreement.mean, agreement.std, None, num_clients, config.federation.rounds, config.method_sections
    )
    method = config.method_class(config.method, setting)
    if method.needs_labels:
        raise UserError(f"method {config.method_name!r} needs labels, and clients of a federation are asked for none.")
    check_privacy(config)
    config.aggregation.check(config.cohort.expected_size(num_clients))
    return method


def _observers(
    directory: RunDirectory,
    config: Config,
    method: Method,
    store: ClientStore,
    engine: FlowerEngine,
    terms: str,
    host: Host,
    agreement: Agreement,
    note: Callable[[str], None],
) -> list[Observer]:
    """In the order in which they look on: probes add to the record, logs write it."""
    found: list[Observer] = [ClientProbing(engine, method, terms, config, note)]
    if host.config.labelled is not None:
        path = Path(host.config.labelled).expanduser()
        path = path if path.is_absolute() or host.path is None else host.path / path
        probe = labelled_probe(config, method, load_labelled(path, agreement.shape, config.data))
        found.append(Probing(probe, config.evaluation.probe_every, config.federation.rounds))
    if isinstance(method, Exchange):
        found.append(ExchangeLog(directory, store, (), None))
    accountant = None
    if config.privacy.noise_multiplier > 0:
        num_clients = host.config.num_clients
        # Who answers depends on who is connected, so nothing is gained by sampling.
        cohort = config.cohort.expected_size(num_clients)
        privacy = config.privacy
        accountant = UserLevelAccountant(privacy.noise_multiplier, privacy.delta, "none", num_clients, cohort)
        found.append(PrivacyLedger(directory, accountant, privacy.delta, method.shares))
    guarantee = method.guarantee if isinstance(method, ReleasesStatistics) else None
    found.append(PrivacyReport(directory, method.shares, guarantee, accountant))
    found.append(Tracking(config.track, directory, config.as_tree(), config.federation.rounds))
    return [*found, Logs(directory), Failures(directory)]


def _checkpointing(directory: RunDirectory, config: Config, store: ClientStore) -> Checkpointing:
    run = config.run
    return Checkpointing(directory, store, run.checkpoint_every, run.keep_checkpoints, config.federation.rounds)


def public_tree(config: Config) -> dict[str, Any]:
    """The config as clients get it: what they need, and no paths of the server's machine."""
    whole = config.as_tree()
    tree = {name: whole[name] for name in PUBLIC_TABLES}
    tree["data"] = {name: whole["data"][name] for name in ("image_size", "channels")}
    tree["run"] = {name: whole["run"][name] for name in ("seed", "checkpoint_every", "keep_checkpoints")}
    tree["model"] = {**whole["model"], "pretrained": None}
    return tree


def _agreement(setting: dict[str, Any]) -> Agreement:
    return Agreement(setting["input_shape"], setting["mean"], setting["std"])


def _lock(directory: RunDirectory) -> None:
    """Waits for a server that was killed a moment ago to let go of the run."""
    deadline = time.monotonic() + LOCK_SECONDS
    while directory.in_use and time.monotonic() < deadline:
        time.sleep(0.5)
    directory.lock()
