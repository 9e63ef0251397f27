"""A client at work on its own machine: its data, its consent, its states, and answers to the server's requests.

Everything that protects the owner is decided here, not by what the server says: which methods may run, what may leave, who may
read it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import nn

from unisono import __version__
from unisono.core.addressing import parse
from unisono.core.client_data import ClientData
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload, Reduce, Reveals, Tensors, Update
from unisono.data.views import make_views
from unisono.deploy.layout import ClientDirectory
from unisono.deploy.sealing import Sealer, is_sealed
from unisono.deploy.states import LocalStates
from unisono.deploy.terms import check_terms, checked_config, own_data, provisional_run_info, run_info_of
from unisono.engines.devices import resolve_devices
from unisono.engines.flower.messages import Request
from unisono.engines.flower.secure import MIN_COHORT, masked_groups
from unisono.evaluation.config import client_probes
from unisono.evaluation.probes import ProbeData, run_probes
from unisono.federation.postprocess import Postprocessor
from unisono.federation.whitelist import ConsentConfig
from unisono.federation.worker import Answer, answer, prepare_nets
from unisono.models.nets import build_seeded
from unisono.privacy.accountant import UserLevelAccountant
from unisono.privacy.masking import mask, to_fixed_point
from unisono.runs.files import JsonLines

log = logging.getLogger("unisono.client")
CLIENT_PROBES = ("align", "uniformity", "score", "cluster-balance")


class ClientDesk:
    """Answers for one client.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self._directory = directory
        self._config = directory.config
        self._open = lru_cache(maxsize=1)(lambda terms: _Bench(directory, terms))
        if directory.config.data is None:
            raise UserError("client.data is required: start the client with --data FOLDER, or set data in client.toml.")

    def describe(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the server may know of this client: number and shape of its samples, mean and deviation per channel."""
        if "config" not in question:
            if "told" in question:
                log.warning("the server says: %s", question["told"])
            return {}
        config = checked_config(question["config"], self._config.methods)
        dataset = own_data(self._directory, config.data)
        info = run_info_of(question["run_info"] or provisional_run_info(dataset, question), config)
        method = config.method_class(config.method, info)
        check_terms(method, self._consent())
        if method.needs_labels:
            raise UserError(f"method {config.method_name!r} needs labels, and clients of a federation are asked for none.")
        method.check_networks(build_seeded(method.build_networks, 0))
        return {
            "client": self._config.client_id,
            "version": __version__,
            "samples": len(dataset.samples),
            "shape": list(dataset.input_shape),
            "mean": list(dataset.mean),
            "std": list(dataset.std),
        }

    def answer(self, request: Request) -> Answer:
        """The answer to a request, after everything that must be checked before something leaves."""
        bench = self._open(request.terms)
        try:
            bench.check(request, self._consent())
            return bench.answer(request)
        except ClientError as error:
            log.error("%s\n%s", error, error.details)
            # A traceback may quote what it stumbled over, so it stays here.
            raise ClientError(error.round, error.phase, error.client_id, error.reason) from error
        except (UserError, ValueError) as error:
            log.error("round %d, phase %s: %s", request.round + 1, request.phase, error)
            raise ClientError(request.round, request.phase, request.client_id, str(error)) from error

    def evaluate(self, request: Request) -> dict[str, float]:
        """Scores without labels on this client's own samples."""
        return self._open(request.terms).evaluate(request)

    def _consent(self) -> ConsentConfig:
        return ConsentConfig(
            share_data=self._config.share_data, allow_raw_representations=self._config.allow_raw_representations
        )


class _Bench:
    """What a client keeps of one run: method, networks, data, states."""

    def __init__(self, directory: ClientDirectory, terms: str) -> None:
        values = json.loads(terms)
        self._client_id = directory.config.client_id
        self._run = str(values["run"])
        self.config = checked_config(values["config"], directory.config.methods)
        self._device = resolve_devices(directory.config.device)[0]
        dataset = own_data(directory, self.config.data)
        self.method = self.config.method_class(self.config.method, run_info_of(values["run_info"], self.config))
        if dataset.input_shape != self.method.info.input_shape:
            raise UserError(
                f"This client's samples have shape {dataset.input_shape}, and the federation learns on "
                f"{self.method.info.input_shape}."
            )
        self._data = ClientData(dataset.samples, torch.arange(len(dataset.samples)), None, self._device)
        self._nets: nn.ModuleDict = prepare_nets(self.method, self._device)
        self._postprocessor = Postprocessor(self.config.privacy, self.config.compression, self.method.shares)
        self._path = directory.states / "".join(letter for letter in self._run if letter.isalnum() or letter in "-_")
        self._path.mkdir(parents=True, exist_ok=True)
        run = self.config.run
        self._states = LocalStates(self._path, run.checkpoint_every * (run.keep_checkpoints + 1) + 1)
        self._directory = directory
        self._ledger = JsonLines(self._path / "ledger.jsonl")
        self._max_epsilon = directory.config.max_epsilon

    @cached_property
    def _sealer(self) -> Sealer:
        if not self._directory.key.is_file():
            raise UserError(f"This needs a key of the client, {self._directory.key}, as 'unisono deploy init' makes them.")
        return Sealer(self._client_id, self._directory.key, self._directory.keys)

    def check(self, request: Request, consent: ConsentConfig) -> None:
        """Raises unless this client may answer the request."""
        if request.client_id != self._client_id:
            raise ValueError(f"this is client {self._client_id}, and the request is for client {request.client_id}")
        check_terms(self.method, consent)
        if self._max_epsilon is not None:
            epsilon = self._epsilon(1 + sum(1 for entry in self._ledger.read() if entry["releases"]))
            if epsilon > self._max_epsilon:
                raise UserError(
                    f"This client's budget is spent: answering would raise epsilon to {epsilon:.3g}, and max_epsilon is "
                    f"{self._max_epsilon:g}."
                )

    def answer(self, request: Request) -> Answer:
        """Local state in, client's step, new state out; sealed and masked what must be."""
        if not self._states.has(request.local):
            log.warning("the state that the server names is not on this disk: beginning anew")
        ctx = request.context(self._device)
        opened = replace(request, routed=self._opened(request))
        local = self._states.load(request.local)
        done = answer(self.method, self._nets, opened.received, local, self._data, ctx, self._postprocessor)
        update = self._sealed(done.update, request)
        if self.config.privacy.secure_aggregation:
            update = self._masked(update, request)
        reduced = any(self.method.shares[group].reduce is not Reduce.STACK for group in update.payload.groups)
        # The ledger first: an answer that is lost on the way counts as given.
        self._ledger.append(
            {"round": request.round, "phase": request.phase, "releases": reduced, "nonce": request.extra.get("nonce")}
        )
        return Answer(update, self._states.save(done.local, request.round, request.local), done.report)

    def evaluate(self, request: Request) -> dict[str, float]:
        """Align, uniformity, and how even clusters are, on this client's samples."""
        cluster_model = self.method.cluster_model(request.broadcast)
        probes = client_probes(self.config.evaluation, cluster_model is not None)
        config = self.config.evaluation.model_copy(update={"probes": probes})
        views = make_views(self.config.views, self.method.info.input_shape)
        data = ProbeData(self._data.samples, None, self._data.samples[:0], None)
        scores = run_probes(
            config,
            self.method.encoder(request.broadcast),
            cluster_model,
            data,
            Context(request.seed, request.round, "probe", self._client_id),
            views.pair,
        )
        return {name: value for name, value in scores.items() if name in CLIENT_PROBES}

    # --- what neighbours send each other

    def _sealed(self, update: Update, request: Request) -> Update:
        """The update with every tensor of data sealed for those it is meant for."""
        shares = self.method.shares
        groups = {
            group: self._seal_group(tensors, request) if shares[group].reveals is Reveals.DATA else tensors
            for group, tensors in update.payload.groups.items()
        }
        return replace(update, payload=Payload(groups))

    def _seal_group(self, tensors: Tensors, request: Request) -> Tensors:
        neighbours = self._neighbours(request.seed)
        sealed = {}
        for name, tensor in tensors.items():
            place = parse(name)
            receivers = neighbours if place.receiver is None else [place.receiver]
            if not set(receivers) <= set(neighbours):
                raise ValueError(f"{name} is addressed to a client that is no neighbour")
            sealed[name] = self._sealer.seal(tensor, receivers, self._place(request, place.name))
        return sealed

    def _opened(self, request: Request) -> Payload:
        """What only this client received, with sealed tensors opened; points that are not sealed are refused."""
        shape = self.method.info.input_shape
        groups: dict[str, Tensors] = {}
        for group, tensors in request.routed.groups.items():
            opened = {}
            for name, tensor in tensors.items():
                if not is_sealed(tensor):
                    if tuple(tensor.shape[1:]) == shape:
                        raise ValueError(f"{group}/{name} looks like samples that nobody has sealed")
                    opened[name] = tensor
                    continue
                place = parse(name)
                if place.sender is None:
                    raise ValueError(f"{group}/{name} is sealed and does not name its sender")
                opened[name] = self._sealer.open(tensor, place.sender, self._place(request, place.name))
            groups[group] = opened
        return Payload(groups, request.routed.scalars)

    def _neighbours(self, seed: int) -> list[int]:
        graph = self.method.client_graph(seed)
        return [] if graph is None else list(graph.neighbors(self._client_id))

    def _place(self, request: Request, part: str) -> str:
        return f"{self._run}|{request.round}|{part}"

    # --- secure aggregation

    def _masked(self, update: Update, request: Request) -> Update:
        """The update with all averaged groups masked; a client that has none of them to send adds zeros."""
        groups = masked_groups(self.method.shares, request.broadcast)
        if not groups:
            return update
        cohort, nonce = [int(client) for client in request.extra.get("cohort", [])], str(request.extra.get("nonce", ""))
        if len(set(cohort)) != len(cohort) or self._client_id not in cohort or len(cohort) < MIN_COHORT:
            raise ValueError(
                f"a masked sum needs at least {MIN_COHORT} different clients and this one among them, got {cohort}"
            )
        if len(nonce) < 32 or any(entry.get("nonce") == nonce for entry in self._ledger.read()):
            raise ValueError("the masks of a sum are used once, and the server asks for old ones")
        own, weight = update.payload.groups, update.weight
        if not set(groups) <= set(own):
            own = {name: {key: torch.zeros_like(t) for key, t in request.broadcast.groups[name].items()} for name in groups}
            weight = 0.0
        factor = 1.0 if self.config.aggregation.weighting == "uniform" and weight > 0 else weight
        fixed = to_fixed_point(Payload({name: own[name] for name in groups}).flatten(), factor, len(cohort))
        purpose = f"unisono mask|{self._run}|{request.round}|{request.phase}|{nonce}|{sorted(cohort)}"
        others = [other for other in cohort if other != self._client_id]
        secrets = {other: self._sealer.shared_secret(other, purpose.encode()) for other in others}
        masked = Payload.unflatten(mask(fixed, self._client_id, secrets), group_names=groups)
        rest = {name: tensors for name, tensors in update.payload.groups.items() if name not in groups}
        return replace(update, weight=weight, payload=Payload({**rest, **masked.groups}))

    def _epsilon(self, num_releases: int) -> float:
        privacy = self.config.privacy
        if privacy.noise_multiplier == 0:
            return float("inf")
        return UserLevelAccountant(privacy.noise_multiplier, privacy.delta, "none", 1, 1).epsilon(num_releases)
