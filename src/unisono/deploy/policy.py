"""The gate of a client: what its owner allows is checked here before anything is computed for the server.

Every request is written to a ledger, through to the disk, before the work begins. So an answer that is lost, a failure and a
crash all count as given.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import torch

from unisono.config import Config
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.core.noise import SystemNoise
from unisono.core.payload import Payload, Reduce, Reveals, Update
from unisono.deploy.directories import ClientConfig, ClientDirectory
from unisono.engines.flower.messages import Request
from unisono.engines.flower.secure import MIN_COHORT, check_secure
from unisono.federation.declared import ConsentConfig, check_consent
from unisono.federation.postprocess import Postprocessor, clip
from unisono.privacy.accountant import UserLevelAccountant
from unisono.runs.files import JsonLines

MAX_ATTEMPTS = 4
"""Times that the same phase of a round, or its scores, may be asked for: a server that restarts asks again."""
MAX_FAILURES = 3
"""Failures after which a client answers no more in a run: what fails can depend on samples."""
MIN_MEMORY = 64
"""Fewest samples that Orchestra clusters."""
Kind = Literal["train", "evaluate"]


class RefusedError(UserError):
    """A request that the owner's settings forbid. Its sentence depends on no sample, so the server may read it."""


class Ledger:
    """Every request that this client has begun to answer, over all runs.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        directory.states.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lines = JsonLines(directory.states / "ledger.jsonl")
        self._entries = self._lines.read()

    def append(self, entry: dict[str, Any]) -> None:
        """Write a line through to the disk."""
        self._lines.append(entry)
        self._lines.sync()
        self._entries.append(entry)

    def attempts(self, run: str, kind: Kind, round: int, phase: str) -> int:
        """Return how often this was asked for."""
        wanted = (run, kind, round, phase)
        return sum((e["run"], e["kind"], e.get("round"), e.get("phase")) == wanted for e in self._entries)

    def failures(self, run: str) -> int:
        """Return how often a request of a run failed here."""
        return sum(entry["run"] == run and entry["kind"] == "failed" for entry in self._entries)

    def spec(self, run: str) -> str | None:
        """Return the hash of the specification under which a run was first seen; None for a new run."""
        return next((entry["spec"] for entry in self._entries if entry["run"] == run and "spec" in entry), None)

    def used(self, nonce: str) -> bool:
        """Return whether the masks of this number were used."""
        return any(entry.get("nonce") == nonce for entry in self._entries)

    @property
    def releases(self) -> int:
        """Number of answers begun, over all runs."""
        return Counter(entry["kind"] for entry in self._entries)["train"]


def owner_config(config: Config, owner: ClientConfig) -> Config:
    """Return the server's config as this client follows it: clusters no smaller than its owner allows.

    Args:
        config: the run's.
        owner: the table of the client.
    """
    floors = {"min_cluster_size": owner.min_cluster_size, "memory_size": MIN_MEMORY}
    raised = {
        name: floor
        for name, floor in floors.items()
        if name in type(config.method).model_fields and getattr(config.method, name) < floor
    }
    return replace(config, method=config.method.model_copy(update=raised)) if raised else config


def check_client_policy(method: Method, config: Config, owner: ClientConfig) -> None:
    """Refuse a method that reveals more than the owner agrees to, or whose noise the server could subtract."""
    try:
        consent = ConsentConfig(share_data=owner.share_data, allow_raw_representations=owner.allow_raw_representations)
        check_consent(method.shares, consent)
        if config.privacy.secure_aggregation:
            check_secure(method, config.aggregation, config.compression, MIN_COHORT)
    except UserError as error:
        raise RefusedError(str(error)) from error
    guarantee = method.release_guarantee()
    if guarantee is not None and guarantee.noise_is_repeatable:
        raise RefusedError("method.noise_source must be 'system' in a federation, got 'seed': the server knows the seed.")
    for group, share in method.shares.items():
        in_the_clear = share.reduce is Reduce.MEAN and not config.privacy.secure_aggregation
        if share.reveals is Reveals.STATISTICS and in_the_clear:
            raise RefusedError(
                f"group {group!r} holds sums over samples, which tell single samples when they are asked for twice: "
                "set privacy.secure_aggregation = true in the recipe."
            )


class Gate:
    """The checks of one run on a client.

    Args:
        directory: the client's.
        ledger: of all runs.
        run: names the run.
        run_spec: the run's specification, as every request repeats it.
        config: the run's, as this client follows it.
        method: what is learnt.
    """

    def __init__(
        self, directory: ClientDirectory, ledger: Ledger, run: str, run_spec: str, config: Config, method: Method
    ) -> None:
        self._owner = directory.config
        self._ledger = ledger
        self._run = run
        self._spec = hashlib.sha256(run_spec.encode()).hexdigest()
        self._config = config
        self._method = method

    def admit(self, kind: Kind, request: Request) -> None:
        """Raise a RefusedError, or write the intent to answer into the ledger.

        Args:
            kind: whether an update or scores are asked for.
            request: as it came from the server.
        """
        owner = self._owner
        if request.client_id != owner.client_id:
            raise RefusedError(f"this is client {owner.client_id}, and the request is for client {request.client_id}")
        known = self._ledger.spec(self._run)
        spec = f"{self._spec}|{request.seed}"
        if known is not None and known != spec:
            raise RefusedError("this run began with another recipe or seed: one run has one of each")
        check_client_policy(self._method, self._config, owner)
        if kind == "evaluate" and self._config.privacy.secure_aggregation:
            raise RefusedError("scores are not masked, and this run promises masks")
        if self._ledger.failures(self._run) >= MAX_FAILURES:
            raise RefusedError(f"this run has failed {MAX_FAILURES} times here")
        if self._ledger.attempts(self._run, kind, request.round, request.phase) >= MAX_ATTEMPTS:
            raise RefusedError(f"round {request.round + 1} was asked for {MAX_ATTEMPTS} times already")
        if kind == "train":
            self._check_budget(request)
        nonce = request.extra.get("nonce")
        if nonce is not None and self._ledger.used(str(nonce)):
            raise RefusedError("the masks of a sum are used once, and the server asks for old ones")
        entry = {"run": self._run, "kind": kind, "round": request.round, "phase": request.phase}
        self._ledger.append({**entry, "nonce": None if nonce is None else str(nonce), "spec": spec})

    def fail(self) -> None:
        """Count a failure."""
        self._ledger.append({"run": self._run, "kind": "failed"})

    def protect(self, update: Update, received: Payload, postprocessor: Postprocessor) -> Update:
        """Return the update clipped and with this client's own noise, as its owner wants it.

        Args:
            update: as it would leave: absolute values, or differences where the recipe clips them.
            received: what the client's step read.
            postprocessor: of the recipe.
        """
        norm = self._owner.clip_norm
        if norm is None:
            return update
        reference = {} if postprocessor.active else postprocessor.reference(received, update.client_id)
        reduced = {name: t for name, t in update.payload.tensors() if self._share(name) is not Reduce.STACK}
        floats = {name: tensor for name, tensor in reduced.items() if tensor.is_floating_point()}
        deltas = {name: t - reference[name] if name in reference else t for name, t in floats.items()}
        source, scale = SystemNoise(), norm * self._owner.noise_multiplier
        if scale and any(name.endswith("running_var") for name in floats):
            raise RefusedError(
                "this client adds noise, which would make the variances of BatchNorm negative: set model.norm = 'group' in the "
                "recipe."
            )
        noisy = {}
        for name, delta in clip(deltas, norm).items():
            changed = delta + (scale * source.normal(*delta.shape)).to(delta.dtype) if scale else delta
            noisy[name] = reference[name] + changed if name in reference else changed
        # Whole numbers, such as counts of batches, take no noise: they leave as they came.
        counts = {name: reference.get(name, torch.zeros_like(t)) for name, t in reduced.items() if name not in floats}
        others = {name: t for name, t in update.payload.tensors() if name not in reduced}
        return replace(update, payload=Payload.unflatten({**others, **noisy, **counts}, group_names=update.payload.groups))

    def _share(self, name: str) -> Reduce:
        return self._method.shares[name.split("/", 1)[0]].reduce

    def _check_budget(self, request: Request) -> None:
        owner = self._owner
        if owner.clip_norm is not None and self._config.compression.active:
            raise RefusedError("[compression] cannot be used with clip_norm in client.toml, which changes the update last")
        if owner.max_epsilon is None:
            return
        if owner.noise_multiplier == 0 or owner.clip_norm is None:
            raise RefusedError(
                "max_epsilon counts the noise that this client adds itself: set clip_norm and noise_multiplier in client.toml"
            )
        bare = [name for name, share in self._method.shares.items() if share.reduce is Reduce.STACK]
        if bare:
            raise RefusedError(f"max_epsilon does not cover group {bare[0]!r}, which is sent without noise")
        spent = UserLevelAccountant(owner.noise_multiplier, owner.delta, "none", 1, 1)
        epsilon = spent.epsilon(self._ledger.releases + 1)
        if epsilon > owner.max_epsilon:
            raise RefusedError(
                f"this client's budget is spent: answering would raise epsilon to {epsilon:.3g}, and max_epsilon is "
                f"{owner.max_epsilon:g}"
            )
