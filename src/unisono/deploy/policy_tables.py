"""The owner's policy in ``client.toml``: its tables with types, defaults and meanings, its older keys, its hash."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from unisono.core.config import Section, Tree
from unisono.core.errors import UserError

log = logging.getLogger("unisono.client")
BUILT_IN = "built-in"
"""The word in ``allow.methods`` that stands for all methods of unisono."""
ALL = "all"
"""The word in ``allow.metrics`` that stands for all numbers for the log."""
FEWEST_MASKED = 4
"""Size of a federation from which on a new client lets updates leave under masks only; of three, one may always be away."""
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB)")
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
Revealed = Literal["parameters", "statistics", "representations", "data"]
Probe = Literal["align", "uniformity", "score", "cluster-balance"]
Range = tuple[float, float]


class AllowTable(Section):
    """Methods that may run, and what may leave: the table ``[allow]``."""

    methods: tuple[str, ...] = Field(
        (BUILT_IN,), description="methods that may run; built-in: all of unisono; others as package.module:Class"
    )
    code: tuple[str, ...] = Field((), description="other code that a recipe may name, such as a backbone, package.module:NAME")
    reveals: tuple[Revealed, ...] = Field(
        ("parameters", "statistics"),
        description="what may leave: parameters, statistics, representations (of single samples), data (to peers, encrypted)",
    )
    approve: Literal["always", "recipe-hash", "each"] = Field(
        "always", description="always: any recipe within this policy; recipe-hash: approved recipes; each: approved runs"
    )
    probes: tuple[Probe, ...] = Field(
        ("align", "uniformity", "score", "cluster-balance"), description="scores that may leave, with three decimals"
    )
    metrics: tuple[str, ...] = Field(
        ("loss", "smallest_cluster"), description="numbers for the log that may leave, with three digits; all: every one, exact"
    )


class RequireTable(Section):
    """Conditions for everything that leaves: the table ``[require]``."""

    secure_aggregation: bool = Field(False, description="averaged groups leave masked, or not at all")
    min_cohort: int = Field(3, ge=3, description="fewest clients in a masked sum")
    max_weight_share: float | None = Field(
        None, gt=0, lt=1, description="largest share of this client in a masked sum; needs aggregation.weighting = 'uniform'"
    )
    min_cluster_size: int = Field(10, ge=1, description="no mean of fewer samples leaves; a lower number in a recipe is raised")
    min_samples: int = Field(100, ge=1, description="a client with fewer samples says nothing, not even how many")
    statistics: Literal["exact", "rounded", "none"] = Field(
        "rounded", description="number, mean and deviation of the samples: exact, rounded to two digits, or not told"
    )
    cluster_statistics: Literal["k-anonymous", "local-dp", "none"] = Field(
        "k-anonymous", description="centroids of this client alone: of enough samples, with noise of its own, or never"
    )
    own_randomness: bool = Field(True, description="draw order and views from a secret of this client, not from the run's seed")


class BoundsTable(Section):
    """Limits that a recipe must keep to: the table ``[bounds]``."""

    min_batch_size: int = Field(16, ge=2, description="smallest training.batch_size")
    min_drawn: int = Field(64, ge=2, description="fewest samples that an answer is computed from")
    max_epochs: int = Field(50, ge=1, description="largest training.local_epochs")
    max_steps: int = Field(10_000, ge=1, description="largest training.local_steps")
    learning_rate: Range = Field((1e-6, 1.0), description="range of training.learning_rate")
    max_momentum: float = Field(0.99, ge=0, le=1, description="largest training.momentum")
    plain_views: bool = Field(False, description="gradients of samples without augmentation may leave")
    max_parameters: int = Field(100_000_000, ge=1, description="largest number of weights in all networks")
    max_head_dim: int = Field(8192, ge=1, description="largest width that a recipe may give a head (all options *_dim)")
    image_size: Range = Field((8, 512), description="range of data.image_size and model.input_size")
    max_sizes: int = Field(5, ge=1, description="image sizes for which statistics are told, over the life of the federation")
    max_descriptions: int = Field(100, ge=1, description="times a day that the statistics are told")
    max_weight_abs: float = Field(1e4, gt=0, description="largest number in a received network")
    compile: bool = Field(False, description="a recipe may start a compiler here")
    precision: tuple[Literal["fp32", "bf16", "fp16"], ...] = Field(("fp32",), description="allowed training.precision")
    min_memory: int = Field(64, ge=2, description="fewest samples that Orchestra clusters; a lower number is raised")
    max_release_epsilon: float = Field(2.0, gt=0, description="largest epsilon of one noisy release of centroids")
    max_release_delta: float | None = Field(None, gt=0, lt=1, description="its largest delta; unset: 1 / number of samples")
    max_attempts: int = Field(3, ge=1, description="times that one phase of a round, or its scores, may be asked for")


class BudgetTable(Section):
    """Counts over the life of the federation: the table ``[budget]``."""

    max_epsilon: float | None = Field(None, gt=0, description="privacy loss, counted by this client's own noise only")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta at which epsilon is counted")
    max_rounds: int | None = Field(None, ge=1, description="answers: updates and scores, attempts and failures included")
    max_runs: int | None = Field(None, ge=1, description="different runs")
    max_failures: int = Field(3, ge=1, description="failures after which a run gets no more answers")
    clip_norm: float | None = Field(None, gt=0, description="clip the averaged groups of an update to this norm")
    noise_multiplier: float = Field(0.0, ge=0, description="noise that this client adds to them, in units of clip_norm")
    distributed_noise: bool = Field(
        False, description="under masks add a part of it only: trusts that two thirds of the clients add theirs, as agreed"
    )

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> BudgetTable:
        if self.noise_multiplier and self.clip_norm is None:
            raise ValueError("noise_multiplier needs clip_norm, the norm that the noise hides")
        return self


class ResourcesTable(Section):
    """Limits of the machine: the table ``[resources]``."""

    hours: str = Field("", description='local time in which this client works, such as "19:00-06:00"; empty: always')
    max_load: float | None = Field(None, gt=0, description="work only while the load average per core is below this")
    max_seconds_per_round: int = Field(1800, ge=1, description="time of one answer")
    max_memory: str | None = Field(None, description='address space of the process, such as "8GiB"')
    max_upload: str = Field("512MiB", description="largest answer")
    max_download: str = Field("512MiB", description="largest request")
    max_state: str = Field("4GiB", description="files that runs may leave on the disk")
    keep_runs: int = Field(5, ge=1, description="runs whose local states are kept")
    threads: int = Field(1, ge=1, description="threads of torch's operators; 1 is bit-identical to every other engine")

    @field_validator("max_memory", "max_upload", "max_download", "max_state")
    @classmethod
    def _is_a_size(cls, value: str | None) -> str | None:
        if value is not None:
            num_bytes(value)
        return value

    @field_validator("hours")
    @classmethod
    def _are_hours(cls, value: str) -> str:
        if value and not HOURS.fullmatch(value):
            raise ValueError('two times such as "19:00-06:00"')
        return value


class PeersTable(Section):
    """Other clients: the table ``[peers]``."""

    trust: Literal["all", "listed"] = Field("all", description="who may share a masked sum: all with a key here, or the listed")
    listed: tuple[str, ...] = Field((), description="SHA-256 of the public keys that count, as 'unisono deploy policy' prints")
    exchange: tuple[int, ...] = Field((), description="clients that may get samples, by number; needs data in allow.reveals")
    max_points: int = Field(100, ge=0, description="samples that one of them may get, over the life of the federation")


class LabelsTable(Section):
    """Labels of this client's samples: the table ``[labels]``."""

    use: bool = Field(False, description="methods may learn from labels here; their updates then leave under masks only")
    classes: tuple[str, ...] = Field((), description="names of the classes that count; samples of other classes are unlabelled")
    min_per_class: int = Field(10, ge=1, description="classes with fewer samples here are unlabelled")


class LogTable(Section):
    """Records of the client: the table ``[log]``."""

    audit: str = Field("audit.jsonl", min_length=1, description="file that lists everything that left")
    errors: Literal["codes", "short"] = Field("codes", description="what the server reads of a refusal: a code, or a sentence")


class Policy(Section):
    """Decisions of the owner of a client."""

    allow: AllowTable = Field(default_factory=AllowTable)
    require: RequireTable = Field(default_factory=RequireTable)
    bounds: BoundsTable = Field(default_factory=BoundsTable)
    budget: BudgetTable = Field(default_factory=BudgetTable)
    resources: ResourcesTable = Field(default_factory=ResourcesTable)
    peers: PeersTable = Field(default_factory=PeersTable)
    labels: LabelsTable = Field(default_factory=LabelsTable)
    log: LogTable = Field(default_factory=LogTable)

    @property
    def tables(self) -> dict[str, Section]:
        """The tables by name."""
        return {name: getattr(self, name) for name in Policy.model_fields}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all keys with their values, in a canonical form."""
        values = {name: table.model_dump(mode="json") for name, table in self.tables.items()}
        return hashlib.sha256(canonical(values)).hexdigest()


def strict_tables(num_clients: int, insecure: bool = False, approve: str = "recipe-hash") -> Tree:
    """Return what a new ``client.toml`` says beyond the defaults: the owner sees recipes first, and everything is counted.

    Args:
        num_clients: size of the federation; from four on, updates leave under masks only. Of these, a third may be away.
        insecure: clients prove nothing, so no sum can be masked.
        approve: as ``allow.approve``.
    """
    masks = num_clients >= FEWEST_MASKED and not insecure
    return {
        "allow": {"approve": approve},
        "require": {"secure_aggregation": masks, "min_cohort": min(5, max(3, 2 * num_clients // 3 + 1))},
        "budget": {"max_rounds": 2000, "max_runs": 20},
    }


OLD_KEYS: dict[str, str] = {
    "share_data": "allow.reveals",
    "allow_raw_representations": "allow.reveals",
    "allowed_code": "allow.code",
    "min_cluster_size": "require.min_cluster_size",
    "own_randomness": "require.own_randomness",
    "clip_norm": "budget.clip_norm",
    "noise_multiplier": "budget.noise_multiplier",
    "max_epsilon": "budget.max_epsilon",
    "delta": "budget.delta",
    "threads": "resources.threads",
}
"""Keys of older files, and where they stand today."""
_OLD_REVEALS: dict[str, Revealed] = {"share_data": "data", "allow_raw_representations": "representations"}


def with_new_keys(values: Mapping[str, Any]) -> Tree:
    """Return the content of a ``client.toml`` with older keys in today's places; warn of each, refuse both forms."""
    tree: Tree = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    reveals: list[Revealed] = []
    for old, new in OLD_KEYS.items():
        if old not in tree:
            continue
        value = tree.pop(old)
        table, key = new.split(".")
        if not isinstance(tree.setdefault(table, {}), dict) or key in tree[table]:
            raise UserError(f"client.toml has both {old} and {new}: remove {old}.")
        log.warning("client.toml: %s is now %s", old, new)
        if old in _OLD_REVEALS:
            reveals += [_OLD_REVEALS[old]] if value is True else []
        else:
            tree[table][key] = value
    if reveals:
        tree["allow"]["reveals"] = [*AllowTable().reveals, *reveals]
    return tree


def canonical(value: Any) -> bytes:
    """Return a value as JSON with sorted keys and no spaces: the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def num_bytes(size: str) -> int:
    """Return a size such as ``512MiB`` in bytes."""
    found = SIZE.fullmatch(size)
    if found is None:
        raise ValueError('a size such as "512MiB" or "4GiB"')
    return int(float(found[1]) * UNITS[found[2]])
