"""The backend of a real federation: which clients take part, what they agree on, and how their answers are evaluated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono import __version__
from unisono.backends import Backend, OpenBackend
from unisono.config import Config
from unisono.core.context import Context
from unisono.core.errors import UserError
from unisono.core.method import Method, RunInfo
from unisono.core.payload import Reduce
from unisono.data.datasets import Dataset
from unisono.deploy.admitted_keys import AdmittedKeys
from unisono.deploy.directories import DeployServerConfig, ServerDirectory
from unisono.deploy.evaluation import ClientEvaluationCallback, labelled_evaluator, load_labelled
from unisono.deploy.identity import KnownKeys
from unisono.deploy.members import MEMBERS_FILE
from unisono.deploy.negotiation import DataSpec, Description, capped_weights, negotiate, version_note
from unisono.deploy.refusal import retry_delay
from unisono.deploy.wanted import unwanted_if_refused
from unisono.engines.flower.engine import OUTLIER, FlowerEngine, ServerPolicy
from unisono.engines.flower.internals import look_for_parts_soon
from unisono.engines.flower.lost import LossDetectingGrid
from unisono.engines.flower.membership import FlowerMembership
from unisono.engines.flower.secure import SecureEngine, SumPolicy, check_secure
from unisono.engines.flower.sums import threshold_of
from unisono.evaluation.config import NEED_LABELS, check_probes, client_probes
from unisono.experiment import check_run
from unisono.federation.declared import sent_shares
from unisono.federation.postprocess import CompressionConfig, Postprocessor
from unisono.report.collector import AboutMethod
from unisono.running import execute
from unisono.runs.directory import RunDirectory
from unisono.runs.evaluation import Evaluation, EvaluationCallback
from unisono.runs.releases import ReleaseLog

POLL = 0.05
"""Seconds between two looks for answers; each waits at the server until there is one, or for a second."""
MOST_LOCAL = 2**14
"""Bytes of what stands for a client's local state here: its name. The state itself is on the client's own disk."""
PUBLIC_TABLES = (
    "format", "method", "graph", "views", "model", "training", "federation", "cohort", "aggregation", "privacy", "compression",
    "consent", "evaluation", "labels",
)  # fmt: skip
LOCK_SECONDS = 60.0
"""Time that a server which was killed a moment ago gets to leave its run directory."""


@dataclass(frozen=True)
class ServerInfo:
    """The server of a run.

    Args:
        config: its table.
        keys: client id by public key; None where clients are believed.
        path: its directory; None outside of one.
    """

    config: DeployServerConfig
    keys: Mapping[bytes, int] | None
    path: Path | None = None

    @staticmethod
    def of(directory: ServerDirectory) -> ServerInfo:
        """Return the server of a directory."""
        keys = None if directory.config.insecure else AdmittedKeys(directory)
        return ServerInfo(directory.config, keys, directory.path)

    @property
    def members(self) -> str | None:
        """The signed list of members as text, None where there is none."""
        file = None if self.path is None else self.path / MEMBERS_FILE
        return file.read_text() if file is not None and file.is_file() and self.keys is not None else None

    def load_labelled(self, shape: tuple[int, ...], config: Config) -> Dataset | None:
        """Return the server's labelled samples in the federation's shape; None where it has none."""
        if self.config.labelled_data is None:
            return None
        path = Path(self.config.labelled_data).expanduser()
        path = path if path.is_absolute() or self.path is None else self.path / path
        return load_labelled(path, shape, config.data)


def serve(grid: Any, path: Path, host: ServerInfo, run_id: int) -> None:
    """Run, or continue, the run in a directory until it is finished.

    Args:
        grid: Flower's.
        path: a run directory that ``prepare_run`` made.
        host: the server it runs on.
        run_id: Flower's number of the run.
    """

    def tell(sentence: str) -> None:
        print(sentence, flush=True)

    look_for_parts_soon()
    directory = RunDirectory.open(path)
    execute(directory, deployed(LossDetectingGrid(grid), host, tell), run_id=run_id, lock_timeout=LOCK_SECONDS, on_note=tell)


def deployed(grid: Any, host: ServerInfo, tell: Callable[[str], None]) -> OpenBackend:
    """Return the backend of the clients that are connected to a Flower server.

    Args:
        grid: Flower's.
        host: the server.
        tell: told what the operator should know.
    """

    @contextmanager
    def opened(config: Config, directory: RunDirectory) -> Iterator[Backend]:
        with unwanted_if_refused(directory), connected(config, directory) as backend:
            yield backend

    @contextmanager
    def connected(config: Config, directory: RunDirectory) -> Iterator[Backend]:
        def note(sentence: str) -> None:
            tell(sentence)
            directory.logs["notes"].append({"round": None, "note": sentence})

        has_run_info = (directory.path / "run_info.json").is_file()
        known = directory.load_run_info() if has_run_info else None
        uid = directory.read_json("federation.json")["run"]
        members = _connect(grid, config, host, {"run": uid, "run_info": known}, note)
        data_spec = DataSpec(known["input_shape"], known["mean"], known["std"]) if known else negotiate(members.descriptions)

        def rejection_reason(client_id: int, description: Description) -> str | None:
            if (sentence := version_note(description)) is not None:
                note(f"client {client_id} {sentence}")
            return data_spec.rejection_reason(description)

        members.set_admission_check(rejection_reason)
        config = _fitted(config, data_spec, directory, note)
        method = _method(config, data_spec, members.num_clients)
        labelled = host.load_labelled(data_spec.shape, config)
        check_evaluation(config, method, labelled)
        directory.save_run_info(method.info)
        run_spec = json.dumps({"run": uid, "config": public_tree(config), "run_info": directory.read_json("run_info.json")})
        engine = _engine(grid, members, method, config, run_spec, host)
        releases = ReleaseLog(directory.path)
        engine.on_phase = lambda task: releases.begin(
            task.ctx.round, task.ctx.phase, len(task.clients), _is_noisy(config, method, task.ctx)
        )
        evaluators: list[Evaluation] = []
        # Scores are not masked, so clients of a secure sum give none.
        scored = client_probes(config.evaluation, method.overrides("cluster_model"))
        if scored and not config.privacy.secure_aggregation:
            evaluators.append(ClientEvaluationCallback(engine, method, run_spec, config, note))
        if labelled is not None:
            evaluation = config.evaluation
            layers = directory.probe_layers if evaluation.warm_start else None
            probe = labelled_evaluator(config, method, labelled)
            evaluators.append(EvaluationCallback(probe, evaluation.probe_every, config.federation.rounds, layers))
        sizes = {client: int(description["samples"]) for client, description in sorted(members.descriptions.items())}
        if known is None and (sentence := capped_weights(sizes, method.max_weight, config.aggregation)) is not None:
            note(sentence)
        collector = AboutMethod(directory, method) if config.report.enabled else None
        # Who answers depends on who is connected, so the accountant gains nothing from sampling.
        backend = Backend(method, engine, evaluators, sizes, "none", collector, releases=releases)
        for warning in backend.warnings:
            note(warning)
        yield backend

    return opened


def _is_noisy(config: Config, method: Method, ctx: Context) -> bool:
    """Return whether a phase ends with a mean to which the server adds noise."""
    averaged = any(share.reduce is not Reduce.STACK for share in sent_shares(method, ctx).values())
    return averaged and config.privacy.noise_multiplier > 0


def check_evaluation(config: Config, method: Method, labelled: Dataset | None) -> None:
    """Refuse what ``[evaluation]`` asks for and a federation cannot do.

    Args:
        config: the run's.
        method: what is learnt.
        labelled: the server's labelled samples, None where it has none.
    """
    evaluation = config.evaluation
    if evaluation.cluster_consistency:
        raise UserError(
            "evaluation.cluster_consistency clusters the samples of all clients in one place, which a federation never does: "
            "set it to false."
        )
    clusters = method.overrides("cluster_model")
    if labelled is not None:
        check_probes(evaluation, True, num_test_samples=len(labelled.test_samples), has_cluster_model=clusters)
        return
    needy = [name for name in evaluation.probes or () if name in (*NEED_LABELS, "kmeans")]
    if needy or evaluation.warm_start:
        option = f"evaluation.probes asks for {needy[0]!r}, which" if needy else "evaluation.warm_start"
        raise UserError(
            f"{option} needs labelled samples at the server: set labelled_data in server.toml to a folder or a .npz file, or "
            f"leave {'evaluation.probes' if needy else 'it'} unset."
        )
    check_probes(evaluation, False, has_cluster_model=clusters)


def _connect(
    grid: Any, config: Config, host: ServerInfo, known: dict[str, Any], note: Callable[[str], None]
) -> FlowerMembership:
    """Wait for clients and ask each to describe its data."""
    num_clients = config.partition.num_clients  # clients that joined later are no part of this run
    question = {
        "config": public_tree(config),
        **known,
        "num_clients": num_clients,
        "num_rounds": config.federation.rounds,
        "members": host.members,
        "version": __version__,
    }
    members = FlowerMembership(grid, num_clients, host.keys, question, note)
    members.retry_delay = retry_delay
    expected = num_clients if host.keys is None else len({client for client in host.keys.values() if client < num_clients})
    members.wait(host.config.min_clients or expected, host.config.start_timeout)
    if not members.descriptions:
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in sorted(members.refused.items()))
        raise UserError(f"No client can take part{': ' + reasons if reasons else ', for none is connected'}.")
    return members


def _engine(
    grid: Any, members: FlowerMembership, method: Method, config: Config, run_spec: str, host: ServerInfo
) -> FlowerEngine:
    masks = config.privacy.secure_aggregation
    # A masked sum has words of its own.
    postprocessor = Postprocessor(config.privacy, CompressionConfig() if masks else config.compression, method.shares)
    engine = config.engine
    policy = ServerPolicy(
        method, postprocessor, config.aggregation, engine.client_timeout, engine.max_message_mib, POLL, OUTLIER, MOST_LOCAL
    )
    expected = config.cohort.expected_size(members.num_clients)
    members.patience = host.config.start_timeout
    members.wanted = max(1, math.ceil(config.federation.quorum * expected))
    if masks:
        check_secure(method, config.aggregation, config.compression, expected)
        if config.aggregation.max_weight_share is not None:
            raise UserError(
                "aggregation.max_weight_share needs the weight of each client, which a secure sum hides: unset one."
            )
        if host.keys is None:
            raise UserError("privacy.secure_aggregation needs clients that prove who they are: not with insecure = true.")
        members.wanted = max(members.wanted, threshold_of(config.privacy, expected))
        known = KnownKeys({client: key for key, client in host.keys.items()})
        return SecureEngine(grid, members, policy, run_spec, SumPolicy(known.verify, config.privacy, config.compression))
    return FlowerEngine(grid, members, policy, run_spec)


def _fitted(config: Config, data_spec: DataSpec, directory: RunDirectory, note: Callable[[str], None]) -> Config:
    """Return the config without "auto", and save it; clients are taken to have no GPU, and processors without bf16."""
    fitted = config.fitted(data_spec.shape, on_gpu=False, has_bf16=False)
    if fitted.model != config.model:
        note(f"model.backbone = {config.model.backbone!r} is {fitted.model.backbone!r} for samples of shape {data_spec.shape}")
    if fitted != config:
        directory.save_config(fitted.as_tree())
    return fitted


def _method(config: Config, data_spec: DataSpec, num_clients: int) -> Method:
    """Build the method for the data that was agreed on; raise UserError if the parts of the config do not fit each other."""
    spec, classes = data_spec, config.labels.classes
    info = RunInfo(
        spec.shape, spec.mean, spec.std, len(classes) or None, num_clients, config.federation.rounds, config.method_sections
    )
    method = config.method_class(config.method, info)
    if method.needs_labels:
        check_labels(config)
    check_run(config, method, num_clients)
    return method


def check_labels(config: Config) -> None:
    """Refuse a recipe whose labels the clients of a federation could not give."""
    name = config.method_name
    if not config.labels.classes:
        raise UserError(f"method {name!r} needs labels: list the names of the classes in labels.classes.")
    if config.labels.fraction != 1:
        raise UserError(
            f"labels.fraction hides labels in a simulation, got {config.labels.fraction:g}: set it to 1; the clients of a "
            "federation have the labels that they have."
        )
    if not config.privacy.secure_aggregation:
        raise UserError(
            f"method {name!r} needs labels, and clients let what they learn from labels leave under masks only: set "
            "privacy.secure_aggregation = true."
        )


def public_tree(config: Config) -> dict[str, Any]:
    """Return the config as clients get it: what they need, and no paths of the server's machine."""
    whole = config.as_tree()
    tree = {name: whole[name] for name in PUBLIC_TABLES}
    tree["data"] = {name: whole["data"][name] for name in ("image_size", "channels")}
    tree["run"] = {name: whole["run"][name] for name in ("seed", "checkpoint_every", "keep_checkpoints")}
    tree["model"] = {**whole["model"], "pretrained": None}
    return tree
