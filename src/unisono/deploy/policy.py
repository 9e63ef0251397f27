"""The gate of a client: what its owner allows is checked here before data is touched, and what leaves passes here."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from unisono.config import Config
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.core.payload import Payload, Reduce, Reveals, Update
from unisono.core.wire import to_bytes
from unisono.deploy.approvals import Approvals, recipe_hash
from unisono.deploy.audit import Audit
from unisono.deploy.bounds import check_bounds, check_place, check_received, check_release
from unisono.deploy.directories import ClientConfig, ClientDirectory
from unisono.deploy.ledger import Kind, Ledger, Release
from unisono.deploy.policy_tables import Policy, num_bytes
from unisono.deploy.refusal import RefusedError
from unisono.deploy.release import protect, told_numbers
from unisono.deploy.resources import check_time
from unisono.engines.flower.messages import Request
from unisono.engines.flower.secure import check_secure
from unisono.federation.postprocess import Postprocessor
from unisono.privacy.local_dp import LocalDp

__all__ = ["Books", "Gate", "Ledger", "RefusedError", "check_client_policy", "owner_config"]


class Books:
    """Records of a client over its life: ledger, audit, approvals.

    Args:
        directory: the client's.
    """

    def __init__(self, directory: ClientDirectory) -> None:
        self.ledger = Ledger(directory)
        self.audit = Audit(directory)
        self.approvals = Approvals(directory)


def owner_config(config: Config, owner: ClientConfig) -> Config:
    """Return the server's config as this client follows it: clusters no smaller than its owner allows.

    Args:
        config: the run's.
        owner: the table of the client.
    """
    floors = {"min_cluster_size": owner.require.min_cluster_size, "memory_size": owner.bounds.min_memory}
    raised = {
        name: floor
        for name, floor in floors.items()
        if name in type(config.method).model_fields and getattr(config.method, name) < floor
    }
    return replace(config, method=config.method.model_copy(update=raised)) if raised else config


def check_client_policy(method: Method, config: Config, policy: Policy) -> None:
    """Refuse a method that reveals more than the owner agrees to, or whose noise the server could subtract."""
    masked = config.privacy.secure_aggregation
    for group, share in method.shares.items():
        if share.reveals.value not in policy.allow.reveals:
            raise RefusedError(f"allow.reveals lacks {share.reveals.value!r}, which group {group!r} tells.", "allow.reveals")
    if method.needs_labels and not policy.labels.use:
        raise RefusedError(f"labels.use is false, and method {config.method_name!r} needs labels.", "labels.use")
    if method.needs_labels and not set(config.labels.classes) & set(policy.labels.classes):
        raise RefusedError("labels.classes lists none of the recipe's classes.", "labels.classes")
    if method.needs_labels and method.info.num_classes != len(config.labels.classes):
        raise RefusedError(f"the run has {method.info.num_classes} classes, and its recipe names {len(config.labels.classes)}")
    if not masked and (policy.require.secure_aggregation or method.needs_labels):
        key = "require.secure_aggregation" if policy.require.secure_aggregation else "labels.use"
        raise RefusedError(f"{key}: updates leave under masks only; set privacy.secure_aggregation = true in the recipe.", key)
    if masked:
        try:
            check_secure(method, config.aggregation, config.compression, policy.require.min_cohort)
        except UserError as error:
            raise RefusedError(str(error)) from error
    guarantee = method.release_guarantee()
    if guarantee is not None and guarantee.noise_is_repeatable:
        raise RefusedError("method.noise_source must be 'system' in a federation, got 'seed': the server knows the seed.")
    wanted = policy.require.cluster_statistics
    stacked = [g for g, s in method.shares.items() if s.reduce is Reduce.STACK and s.reveals is Reveals.STATISTICS]
    if stacked and (wanted == "none" or (wanted == "local-dp" and not isinstance(guarantee, LocalDp))):
        remedy = ": set method.privacy = 'local-dp' in the recipe" if wanted == "local-dp" else ""
        raise RefusedError(
            f"require.cluster_statistics = {wanted!r}, and group {stacked[0]!r} tells this client's own{remedy}.",
            "require.cluster_statistics",
        )
    for group, share in method.shares.items():
        if share.reveals is Reveals.STATISTICS and share.reduce is Reduce.MEAN and not masked:
            raise RefusedError(
                f"group {group!r} holds sums over samples, which tell single samples when they are asked for twice: "
                "set privacy.secure_aggregation = true in the recipe.",
                "require.cluster_statistics",
            )


class Gate:
    """The checks of one run on a client.

    Args:
        directory: the client's.
        books: of all runs.
        run: names the run; None before it begins.
        run_spec: the run's specification, as every request repeats it.
        config: the run's, as this client follows it.
        method: what is learnt.
    """

    def __init__(
        self, directory: ClientDirectory, books: Books, run: str | None, run_spec: str, config: Config, method: Method
    ) -> None:
        self._directory = directory
        self._owner = directory.config
        self._books = books
        self._ledger = books.ledger
        self._run = run
        self._spec = hashlib.sha256(run_spec.encode()).hexdigest()
        self._config = config
        self._method = method
        self._recipe = recipe_hash(config)
        self._checked = False
        self._intent = -1
        self._points: Counter[str] = Counter()
        self._noisy_clients = 1

    def admit(self, kind: Kind, request: Request) -> None:
        """Raise a RefusedError, or write the intent to answer into the ledger.

        Args:
            kind: whether an update or scores are asked for.
            request: as it came from the server.
        """
        owner, ledger, run = self._owner, self._ledger, str(self._run)
        if request.client_id != owner.client_id:
            raise RefusedError(f"this is client {owner.client_id}, and the request is for client {request.client_id}")
        size = request.received.num_bytes
        if size > num_bytes(owner.resources.max_download):
            key = "resources.max_download"
            raise RefusedError(f"{key} is {owner.resources.max_download}, and the request has {size} bytes.", key)
        check_time(owner.resources)
        check_place(self._config, self._method, request, kind == "train")
        # Scores belong to no phase: a server cannot ask for more of them by naming some.
        phase = request.phase if kind == "train" else ""
        spec = f"{self._spec}|{request.seed}"
        if ledger.spec(run) not in (None, spec):
            raise RefusedError("this run began with another recipe or seed: one run has one of each")
        self._check_recipe()
        if kind == "evaluate" and not owner.allow.probes:
            raise RefusedError("allow.probes is empty: no scores leave this client.", "allow.probes")
        if kind == "evaluate" and (self._config.privacy.secure_aggregation or owner.require.secure_aggregation):
            raise RefusedError("scores are not masked, and this run promises masks", "require.secure_aggregation")
        if kind == "evaluate" and (request.routed.groups or request.routed.scalars):
            raise RefusedError("scores are of what all clients receive, and this client alone was sent more")
        check_received(request.received, owner.bounds)
        cohort = None
        self._noisy_clients = 1
        if "cohort" in request.extra:
            cohort = self.check_cohort([int(client) for client in request.extra["cohort"]])
            self._noisy_clients = self._check_share(len(cohort), int(request.extra.get("threshold", 0)))
        self._check_counts(kind, request.round, phase)
        model = hashlib.sha256(to_bytes(request.received)).hexdigest() if kind == "evaluate" else None
        if model and ledger.models(run, kind, request.round) - {model}:
            raise RefusedError(f"scores of round {request.round + 1} were given for another model", "bounds.max_attempts")
        release = self._check_budget(kind)
        self._points = Counter()
        self._intent = ledger.begin(
            {
                "kind": kind, "run": run, "round": request.round, "phase": phase, "recipe": self._recipe, "spec": spec,
                "policy": owner.fingerprint, "cohort": cohort, "model": model,
                "noise": release.noise, "local_epsilon": release.local_epsilon, "local_delta": release.local_delta,
            }
        )  # fmt: skip

    @property
    def intent(self) -> Mapping[str, Any]:
        """The line of the ledger for the request that is being answered."""
        return self._ledger.chain.lines[self._intent]

    def admit_description(self, size: str) -> None:
        """Raise a RefusedError, or write the intent to describe the data into the ledger.

        Args:
            size: what ``check_question`` returned.
        """
        self._check_recipe()
        self._intent = self._ledger.begin(
            {"kind": "describe", "run": self._run, "recipe": self._recipe, "policy": self._owner.fingerprint, "size": size}
        )

    def check_data(self, num_samples: int) -> None:
        """Refuse to speak for a client with few samples, or with noise too weak for them."""
        least = self._owner.require.min_samples
        if num_samples < least:
            raise RefusedError(f"require.min_samples is {least}, and there are fewer.", "require.min_samples")
        check_release(self._method, self._owner.bounds, num_samples)

    def check_cohort(self, cohort: list[int]) -> list[int]:
        """Refuse a masked sum over too few clients, or over some that the owner does not trust."""
        least = self._owner.require.min_cohort
        if len(set(cohort)) != len(cohort) or self._owner.client_id not in cohort or len(cohort) < least:
            raise RefusedError(
                f"a masked sum needs at least {least} different clients and this one among them, got {cohort}",
                "require.min_cohort",
            )
        keys = self._directory.keys
        if strangers := set(cohort) - keys.keys() - {self._owner.client_id}:
            raise RefusedError(f"this client has no key of {len(strangers)} clients of the masked sum", "peers.trust")
        if self._owner.peers.trust == "listed":
            for client in cohort:
                if client != self._owner.client_id and fingerprint(keys.get(client, "")) not in self._owner.peers.listed:
                    raise RefusedError(f"peers.trust = 'listed', and client {client} is not.", "peers.listed")
        return cohort

    def _check_share(self, num_clients: int, threshold: int) -> int:
        """Refuse a masked sum in which this client could weigh too much; return how many clients add to its noise."""
        most, uniform = self._owner.require.max_weight_share, self._config.aggregation.weighting == "uniform"
        fewest = max(threshold, self._owner.require.min_cohort)
        if most is not None and not (uniform and fewest * most >= 1):
            raise RefusedError(
                f"require.max_weight_share is {most:g}: set aggregation.weighting = 'uniform' in the recipe, in sums of at "
                f"least {math.ceil(1 / most)} clients.",
                "require.max_weight_share",
            )
        # Whoever stays to the end, fewer than a third of all clients may work together with the server.
        shared = uniform and self._owner.budget.distributed_noise and self._config.privacy.secure_aggregation
        return max(1, fewest - num_clients // 3) if shared else 1

    def fail(self, refused: bool = False) -> None:
        """Count a failure, or a refusal after the work had begun."""
        if self._intent >= 0:
            self._ledger.end(self._intent, "refused" if refused else "failed")
        self._intent = -1

    def sent(self, payload: Payload, values: Mapping[str, Any], masked: bool = False) -> dict[str, Any]:
        """Write down what leaves, and return what goes with it: the hash of the policy and the head of the ledger.

        Args:
            payload: the tensors.
            values: the numbers beside them.
            masked: whether averaged groups are masked.
        """
        size, most = payload.num_bytes, self._owner.resources.max_upload
        if size > num_bytes(most):
            raise RefusedError(f"resources.max_upload is {most}, and the answer has {size} bytes.", "resources.max_upload")
        size = self._books.audit.sent(self._ledger.chain.lines[self._intent], payload, values, masked)
        self._ledger.end(self._intent, "sent", size, self._points)
        self._intent = -1
        return {"policy": self._owner.fingerprint, "ledger": list(self._ledger.chain.head)}

    def exchange(self, receivers: Iterable[int], number: int) -> None:
        """Refuse to give samples to a client that the owner has not listed, or more of them than allowed.

        Args:
            receivers: clients that would get them.
            number: of samples for each.
        """
        peers = self._owner.peers
        for client in receivers:
            if client not in peers.exchange:
                raise RefusedError(f"peers.exchange does not list client {client}.", "peers.exchange")
            self._points[str(client)] += number
            if self._ledger.points(client) + self._points[str(client)] > peers.max_points:
                raise RefusedError(
                    f"peers.max_points is {peers.max_points}, and client {client} has had them.", "peers.max_points"
                )

    def release(self, update: Update, received: Payload, postprocessor: Postprocessor) -> Update:
        """Return the update as it may leave: clipped and noisy as the owner wants it, with no number more than allowed.

        Args:
            update: as it would leave: absolute values, or differences where the recipe clips them.
            received: what the client's step read.
            postprocessor: of the recipe.
        """
        noisy = protect(update, received, postprocessor, self._method.shares, self._owner.budget, self._noisy_clients)
        return told_numbers(noisy, self._owner, self._method)

    def _check_recipe(self) -> None:
        """Check what stays the same during a run, once; approvals can expire."""
        self._books.approvals.check(self._recipe, self._run, self._ledger, self._config, self._method)
        if not self._checked:
            check_client_policy(self._method, self._config, self._owner)
            check_bounds(self._config, self._method, self._owner.bounds)
        self._checked = True

    def _check_counts(self, kind: Kind, round: int, phase: str) -> None:
        owner, ledger, run = self._owner, self._ledger, str(self._run)
        budget, attempts = owner.budget, owner.bounds.max_attempts
        if ledger.failures(run) >= budget.max_failures:
            raise RefusedError(f"this run has failed {budget.max_failures} times here", "budget.max_failures")
        is_single = phase in self._method.single_phases
        if ledger.attempts(run, kind, None if is_single else round, phase) >= attempts:
            raise RefusedError(f"round {round + 1} was asked for {attempts} times already", "bounds.max_attempts")
        if budget.max_rounds is not None and ledger.rounds >= budget.max_rounds:
            raise RefusedError(f"budget.max_rounds ({budget.max_rounds}) is used up.", "budget.max_rounds")
        runs = ledger.runs()
        if budget.max_runs is not None and run not in runs and len(runs) >= budget.max_runs:
            raise RefusedError(f"budget.max_runs ({budget.max_runs}) is used up.", "budget.max_runs")

    def _check_budget(self, kind: Kind) -> Release:
        budget, guarantee = self._owner.budget, self._method.release_guarantee()
        local = (guarantee.epsilon, guarantee.delta) if isinstance(guarantee, LocalDp) else (0.0, 0.0)
        release = Release(budget.noise_multiplier, *local)
        # Under masks compression is the length of words, which comes after all.
        if budget.clip_norm is not None and self._config.compression.active and not self._config.privacy.secure_aggregation:
            raise RefusedError(
                "[compression] cannot be used with budget.clip_norm, which changes the update last", "budget.clip_norm"
            )
        if budget.max_epsilon is None:
            return release
        key = "budget.max_epsilon"
        if kind == "evaluate":
            raise RefusedError("budget.max_epsilon counts noise, and scores carry none.", key)
        if budget.noise_multiplier == 0:
            raise RefusedError(
                "budget.max_epsilon counts the noise that this client adds: set clip_norm and noise_multiplier there too.", key
            )
        bare = [name for name, share in self._method.shares.items() if share.reduce is Reduce.STACK]
        if bare:
            raise RefusedError(f"budget.max_epsilon does not cover group {bare[0]!r}, which is sent without noise.", key)
        epsilon = self._ledger.epsilon(budget.delta, release)
        if epsilon > budget.max_epsilon:
            raise RefusedError(f"{key} is {budget.max_epsilon:g}, and this answer would make {epsilon:.3g}: it is spent.", key)
        return release


def fingerprint(key: str) -> str:
    """Return SHA-256 of a public key as it stands in ``nodes.json``."""
    return hashlib.sha256(" ".join(key.split()[:2]).encode()).hexdigest()
