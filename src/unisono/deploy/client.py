"""Handle server requests on a client's machine: load its data, enforce its owner's consent, train, reply.

Everything that protects the owner is decided here, not by what the server says: which methods may run, what may leave, who may
read it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import torch
from torch import nn

from unisono import __version__
from unisono.core.client_data import ClientData
from unisono.core.config import parse_json
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.data.views import make_views
from unisono.deploy.bounds import check_question
from unisono.deploy.directories import PAUSED_FILE, ClientDirectory
from unisono.deploy.ledger import Kind
from unisono.deploy.mail import Mail
from unisono.deploy.masked_sums import MaskedSums
from unisono.deploy.members import take_members
from unisono.deploy.negotiation import (
    checked_config,
    described,
    load_client_data,
    note_server_version,
    provisional_run_info,
    run_info_of,
    run_name,
    told_number,
    visible_labels,
)
from unisono.deploy.policy import Books, Gate
from unisono.deploy.refusal import NOT_NOW, RefusedError
from unisono.deploy.resources import keep_states, time_limit
from unisono.deploy.states import ClientStateFiles
from unisono.deploy.supervisor import restart_tasks
from unisono.engines.devices import resolve_devices
from unisono.engines.flower.messages import FAILED, Request
from unisono.engines.flower.sums import masked_groups
from unisono.evaluation.config import client_probes
from unisono.evaluation.probe_data import ProbeData
from unisono.evaluation.probes import run_probes
from unisono.federation.client_turn import ClientResult, prepare_nets, run_client
from unisono.federation.postprocess import CompressionConfig, Postprocessor
from unisono.models.nets import build_seeded
from unisono.privacy.secure_sum import SumRefusedError
from unisono.runs.files import make_directory

log = logging.getLogger("unisono.client")
MOST_SPEC = 2**20
TOO_LONG = "policy:resources.max_seconds_per_round"
RESTART_SECONDS = 3.0
"""Time for the answer to leave before the client restarts."""
MOST_TOLD = 300
"""Characters of the server's words in the log."""
FEWEST_SCORED = 512
"""Samples that scores look at, where a client has so many."""
T = TypeVar("T")


class DeployedClient:
    """Handler of one client's requests.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self._directory = directory
        self._config = directory.config
        self._books = books = Books(directory)
        self._sums = sums = MaskedSums(directory, books)
        self._open = lru_cache(maxsize=1)(lambda run_spec: ClientRun(directory, books, sums, run_spec))
        if directory.config.data is None:
            raise UserError("client.data is required: start the client with --data FOLDER, or set data in client.toml.")

    def describe(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return what the server may know of this client: number and shape of its samples, mean and deviation per channel."""
        if "config" not in question:
            if "told" in question:
                log.warning("the server says: %r", str(question["told"])[:MOST_TOLD])
            return {}
        self._hear_of_members(question.get("members"))
        note_server_version(self._directory, question.get("version"))
        gate: Gate | None = None
        try:
            self._check_not_paused()
            config = checked_config(question["config"], self._config)
            size = check_question(config, self._config, self._books.ledger)
            dataset = load_client_data(self._directory, config.data)
            config = config.fitted(dataset.input_shape, on_gpu=False, has_bf16=False)
            info = run_info_of(question["run_info"] or provisional_run_info(dataset, question, config), config)
            method = config.method_class(config.method, info)
            run = None if question.get("run") is None else run_name(question["run"])
            gate = Gate(self._directory, self._books, run, "", config, method)
            gate.admit_description(size)
            gate.check_data(len(dataset.samples))
            method.check_networks(build_seeded(method.build_networks, 0))
            told = described(dataset, config, self._config)
            return {**told, "version": __version__, **gate.sent(Payload(), told)}
        except RefusedError as error:
            log.warning("refused: %s", error)
            if gate is not None:
                gate.fail(refused=True)
            raise UserError(error.told(self._config)) from None
        except Exception as error:  # a text could name paths, or quote samples
            log.error("%s\n%s", error, traceback.format_exc())
            if gate is not None:
                gate.fail()
            raise UserError(FAILED) from None

    def _check_not_paused(self) -> None:
        if (self._directory.path / PAUSED_FILE).exists():
            raise RefusedError("the owner has paused this client, in 5 minutes again.", code=NOT_NOW)

    def _hear_of_members(self, text: Any) -> None:
        """Put a newer list of members in force if the authority has signed it."""
        if not isinstance(text, str) or self._config.insecure:
            return
        try:
            members = take_members(self._directory, text)
            if members is not None:
                self._open.cache_clear()
                log.info("a new list of members is in force")
            if members is not None and members.authorities:
                # The process that talks to the server has read the authority's certificate at its start.
                log.warning("the federation's authority changes: this client restarts in %g s", RESTART_SECONDS)
                threading.Timer(RESTART_SECONDS, restart_tasks, [self._directory.path]).start()
        except UserError as error:
            log.warning("the server sent a list of members that is not taken: %s", error)

    def answer(self, request: Request) -> ClientResult:
        """Return the answer to a request, after everything that must be checked before something leaves."""
        return self._guarded(request, "train", lambda run: run.answer(request))

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return scores without labels on this client's own samples, and the hash of its policy."""
        return self._guarded(request, "evaluate", lambda run: run.evaluate(request))

    def sum_step(self, values: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
        """Return the answer to a step of a masked sum after the first."""
        try:
            return self._sums.step(values)
        except SumRefusedError as error:
            log.warning("masked sum: refused: %s", error)
            raise UserError(f"refused: {error}") from None
        except Exception as error:
            log.error("masked sum: %s\n%s", error, traceback.format_exc())
            raise UserError(FAILED) from None

    def _guarded(self, request: Request, kind: Kind, work: Callable[[ClientRun], T]) -> T:
        """Do what a request asks for, if the owner allows it. What fails, and why, can depend on samples: it stays here."""
        run: ClientRun | None = None
        try:
            self._check_not_paused()
            if len(request.run_spec) > MOST_SPEC:
                raise RefusedError(f"the specification of a run has at most {MOST_SPEC} characters")
            run = self._open(request.run_spec)
            run.gate.admit(kind, request)
            with time_limit(self._config.resources.max_seconds_per_round):
                return work(run)
        except RefusedError as error:
            if run is not None:
                # How long a step takes could depend on samples.
                run.gate.fail(refused=error.code != TOO_LONG)
            log.warning("round %d, phase %.50r: refused: %s", request.round + 1, request.phase, error)
            reason = f"refused: {error.told(self._config)}"
        except Exception as error:
            if run is not None:
                run.gate.fail()
            details = error.details if isinstance(error, ClientError) else traceback.format_exc()
            log.error("round %d, phase %.50r: %s\n%s", request.round + 1, request.phase, error, details)
            reason = FAILED
        raise ClientError(request.round, request.phase, request.client_id, reason)


class ClientRun:
    """State that a client keeps of one run: method, networks, data, local states."""

    def __init__(self, directory: ClientDirectory, books: Books, sums: MaskedSums, run_spec: str) -> None:
        values = parse_json(run_spec)
        self._client_id = directory.config.client_id
        self._run = run_name(values["run"])
        self.config = checked_config(values["config"], directory.config)
        self._device = resolve_devices(directory.config.device)[0]
        info = run_info_of(values["run_info"], self.config)
        self.config = self.config.fitted(info.input_shape, on_gpu=False, has_bf16=False)
        self.method = self.config.method_class(self.config.method, info)
        self._masks = self.config.privacy.secure_aggregation
        compression = CompressionConfig() if self._masks else self.config.compression  # a masked sum has words of its own
        self._postprocessor = Postprocessor(self.config.privacy, compression, self.method.shares)
        self._sums = sums
        self._directory = directory
        self._books = books
        self.gate = Gate(directory, books, self._run, run_spec, self.config, self.method)
        key = b"" if not directory.config.require.own_randomness else directory.own_secret
        self._secret = hmac.digest(key, self._run.encode(), "sha256") if key else b""

    @cached_property
    def _data(self) -> ClientData:
        """The client's samples; nothing reads them before a request is admitted."""
        dataset = load_client_data(self._directory, self.config.data)
        self.gate.check_data(len(dataset.samples))
        if dataset.input_shape != self.method.info.input_shape:
            raise RefusedError(
                f"This client's samples have shape {dataset.input_shape}, and the federation learns on "
                f"{self.method.info.input_shape}."
            )
        classes, owner = self.config.labels.classes, self._directory.config
        labels = visible_labels(dataset, classes, owner) if self.method.needs_labels else None
        return ClientData(dataset.samples, torch.arange(len(dataset.samples)), labels, self._device, dataset.num_clustered_rows)

    @cached_property
    def _nets(self) -> nn.ModuleDict:
        return prepare_nets(self.method, self._device)

    @cached_property
    def _states(self) -> ClientStateFiles:
        name = hashlib.sha256(self._run.encode()).hexdigest()[:16]
        path = self._directory.states / name
        for made in (self._directory.states, path):
            make_directory(made, 0o700)
        run = self.config.run
        return ClientStateFiles(path, run.checkpoint_every * (run.keep_checkpoints + 1) + 1)

    @cached_property
    def _mail(self) -> Mail:
        return Mail(self._directory, self._run, self.method, self.gate)

    def answer(self, request: Request) -> ClientResult:
        """Run the client's step from its local state, save the new state, and seal and mask what must be."""
        keep_states(self._directory.states, self._states.directory, self._directory.config.resources)
        ctx = replace(request.context(self._device), secret=self._secret)
        routed, left_out = self._mail.opened(request)
        opened = replace(request, routed=routed)
        local = self._states.load(request.local)
        if request.local.scalars and not (local.groups or local.scalars):
            log.warning("the state that the server names is not on this disk, or damaged: beginning anew")
        done = run_client(self.method, self._nets, opened.received, local, self._data, ctx, self._postprocessor)
        update = replace(done.update, metrics={**done.update.metrics, **left_out})
        update = self.gate.release(update, opened.received, self._postprocessor)
        update = self._mail.sealed(update, request)
        card, masked = None, self._masks and bool(masked_groups(self.method, ctx))
        if masked:
            update, card = self._sums.begin(self._run, request, update, ctx, self.config, self.method, self.gate.intent)
        local = self._states.save(done.local, request.round, request.local)
        told = {} if masked else {**update.metrics, "weight": update.weight}
        owner = self.gate.sent(update.payload, told, masked)
        stats = replace(done.stats, num_samples=int(self._told_samples), seconds=round(done.stats.seconds, 1), owner=owner)
        stats = replace(stats, metrics=dict(update.metrics))
        return ClientResult(update, local, stats, card)

    @property
    def _told_samples(self) -> float:
        return told_number(len(self._data), self._directory.config)

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return align, uniformity and the balance of clusters on this client's samples."""
        cluster_model = self.method.cluster_model(request.broadcast)
        probes = client_probes(self.config.evaluation, cluster_model is not None)
        # A score of few samples would be a function of each of them.
        samples = max(self.config.evaluation.max_client_samples, FEWEST_SCORED)
        config = self.config.evaluation.model_copy(update={"probes": probes, "max_client_samples": samples})
        views = make_views(self.config.views, self.method.info.input_shape, self.config.model.input_size)
        data = ProbeData(self._data.samples, None, self._data.samples[:0], None)
        scores = run_probes(
            config,
            self.method.encoder(request.broadcast),
            cluster_model,
            data,
            Context(request.seed, request.round, "probe", self._client_id, secret=self._secret),
            views.pair,
            projector=self.method.projector(request.broadcast),
        )
        allowed: tuple[str, ...] = self._directory.config.allow.probes
        told = {name: round(value, 3) for name, value in scores.items() if name in allowed}
        return {"scores": told, "owner": self.gate.sent(Payload(), told)}
