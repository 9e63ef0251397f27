"""The policy of a client in sentences, as ``unisono deploy policy`` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.deploy.policy_tables import ALL, BUILT_IN, Policy

NOT_PREVENTED = (
    "Not prevented: a server that sends a crafted model can read samples from the update of it, also from a masked sum. "
    "Only noise that this client adds itself (budget.clip_norm, budget.noise_multiplier) bounds that."
)


def sentences(policy: Policy) -> dict[str, list[str]]:
    """Return what is in force, by table.

    Args:
        policy: the owner's.
    """
    return {
        "allow": list(_allow(policy)),
        "require": list(_require(policy)),
        "bounds": list(_bounds(policy)),
        "budget": list(_budget(policy)),
        "resources": list(_resources(policy)),
        "peers": list(_peers(policy)),
        "labels": list(_labels(policy)),
        "log": list(_log(policy)),
    }


def _listed(names: tuple[object, ...], none: str = "nothing") -> str:
    return ", ".join(str(name) for name in names) or none


def _allow(policy: Policy) -> Iterator[str]:
    allow = policy.allow
    own = [name for name in allow.methods if name != BUILT_IN]
    words = (["all methods of unisono"] if BUILT_IN in allow.methods else []) + own
    yield f"Methods that may run: {_listed(tuple(words), 'none')}."
    yield f"Other code that a recipe may name: {_listed(allow.code, 'none')}."
    yield f"What may leave: {_listed(allow.reveals)}."
    yield {
        "always": "Any recipe within this policy runs without asking its owner.",
        "recipe-hash": "A recipe runs after its owner has approved it; a changed recipe waits again.",
        "each": "Every run waits until its owner has approved it.",
    }[allow.approve]
    yield f"Scores that may leave, with three decimals: {_listed(allow.probes, 'none')}."
    metrics = "all, exact" if ALL in allow.metrics else f"{_listed(allow.metrics, 'none')}, with three digits"
    yield f"Numbers for the log that may leave: {metrics}."


def _require(policy: Policy) -> Iterator[str]:
    require = policy.require
    if require.secure_aggregation:
        yield f"Averaged groups leave under masks only, in a sum of at least {require.min_cohort} clients."
    else:
        yield f"Masks are the recipe's choice; a masked sum has at least {require.min_cohort} clients."
    if require.max_weight_share is not None:
        yield f"This client's share of a masked sum is at most {require.max_weight_share:g}."
    yield f"No mean of fewer than {require.min_cluster_size} samples leaves."
    yield f"With fewer than {require.min_samples} samples this client says nothing, not even how many."
    yield {
        "exact": "Number, mean and deviation of the samples are told exactly.",
        "rounded": "Number, mean and deviation of the samples are told with two digits.",
        "none": "Number, mean and deviation of the samples are not told.",
    }[require.statistics]
    yield {
        "k-anonymous": f"Centroids of this client leave, each of at least {require.min_cluster_size} samples.",
        "local-dp": "Centroids of this client leave with noise of its own only.",
        "none": "Centroids of this client never leave.",
    }[require.cluster_statistics]
    source = "a secret of this client" if require.own_randomness else "the run's seed, which the server knows"
    yield f"The order of samples and their views are drawn from {source}."


def _bounds(policy: Policy) -> Iterator[str]:
    b = policy.bounds
    low, high = b.learning_rate
    yield (
        f"A recipe has batches of at least {b.min_batch_size}, at least {b.min_drawn} samples per answer, at most "
        f"{b.max_epochs} epochs or {b.max_steps:,} steps, a learning rate from {low:g} to {high:g}, "
        f"and momentum up to {b.max_momentum:g}."
    )
    low, high = b.image_size
    yield (
        f"Networks have at most {b.max_parameters:,} weights of size up to {b.max_weight_abs:g} and heads up to "
        f"{b.max_head_dim} wide; images have {low:g} to {high:g} pixels a side, "
        f"and statistics are told for {b.max_sizes} sizes, {b.max_descriptions} times a day."
    )
    yield f"Precision: {_listed(b.precision)}. A recipe {'may' if b.compile else 'may not'} start a compiler."
    yield f"Gradients of samples without augmentation {'may' if b.plain_views else 'may not'} leave."
    delta = "1 / number of samples" if b.max_release_delta is None else f"{b.max_release_delta:g}"
    yield (
        f"Orchestra clusters at least {b.min_memory} samples; one noisy release has epsilon up to {b.max_release_epsilon:g} "
        f"and delta up to {delta}."
    )
    yield f"The same phase of a round is answered at most {b.max_attempts} times."


def _budget(policy: Policy) -> Iterator[str]:
    budget = policy.budget
    if budget.clip_norm is None:
        yield "This client neither clips its updates nor adds noise to them: they have no epsilon."
    else:
        noise = f"adds noise of {budget.noise_multiplier:g} times that" if budget.noise_multiplier else "adds no noise"
        yield f"This client clips its updates to the norm {budget.clip_norm:g} and {noise}."
    if budget.noise_multiplier and budget.distributed_noise:
        yield "Under masks it adds a part of the noise, and trusts that two thirds of the clients add theirs."
    if budget.max_epsilon is not None:
        yield f"Answers end before epsilon exceeds {budget.max_epsilon:g} at delta {budget.delta:g}, over all runs."
    for word, number in (("answers", budget.max_rounds), ("runs", budget.max_runs)):
        yield f"Most {word} over the life of the federation: {'no limit' if number is None else f'{number:,}'}."
    yield f"A run that has failed here {budget.max_failures} times gets no more answers."


def _resources(policy: Policy) -> Iterator[str]:
    r = policy.resources
    idle = "" if r.max_load is None else f", while the load per core is below {r.max_load:g}"
    yield f"Works {f'from {r.hours} local time' if r.hours else 'at all hours'}{idle}; else it answers 'not now'."
    memory = "as much memory as there is" if r.max_memory is None else f"{r.max_memory} of memory"
    yield f"An answer takes at most {r.max_seconds_per_round:,} s, {r.threads} thread{'s' * (r.threads > 1)} and {memory}."
    yield (
        f"A request has at most {r.max_download}, an answer {r.max_upload}; local states of {r.keep_runs} runs are kept, in "
        f"{r.max_state} at most."
    )


def _peers(policy: Policy) -> Iterator[str]:
    peers = policy.peers
    if peers.trust == "listed":
        yield f"A masked sum has only clients whose keys are listed: {_listed(tuple(k[:16] for k in peers.listed), 'none')}."
    else:
        yield "A masked sum may have any client with a key in nodes.json."
    if "data" in policy.allow.reveals:
        yield f"Samples may go to clients {_listed(peers.exchange, 'none')}, {peers.max_points} to each over all runs."


def _labels(policy: Policy) -> Iterator[str]:
    labels = policy.labels
    if not labels.use:
        yield "No method may learn from labels here."
        return
    yield (
        f"Methods may learn from labels of {_listed(labels.classes, 'no class')}, if at least {labels.min_per_class} samples "
        "here have the label; updates then leave under masks only."
    )


def _log(policy: Policy) -> Iterator[str]:
    yield f"Everything that leaves is listed in {policy.log.audit}."
    told = "a code with the name of the key" if policy.log.errors == "codes" else "a code and a sentence"
    yield f"Of a refusal the server reads {told}."
