"""The whole config of a run: every table, with the defaults that the method sets in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, field_validator

from unisono.core.config import Section, Tree, check_options, closest, make_section, merge
from unisono.core.errors import UserError
from unisono.core.method import Method, methods
from unisono.core.registry import absolute_name
from unisono.data.datasets import DataConfig
from unisono.data.graph import GraphConfig
from unisono.data.labelled import LabelsConfig
from unisono.data.partition import PartitionConfig
from unisono.data.shift import ShiftConfig
from unisono.data.views import ViewsConfig
from unisono.engines.embedded import EngineConfig
from unisono.evaluation.config import EvaluationConfig
from unisono.federation.aggregate import AggregationConfig
from unisono.federation.cohort import CohortConfig
from unisono.federation.declared import ConsentConfig
from unisono.federation.loop import FederationConfig, LoopConfig
from unisono.federation.postprocess import CompressionConfig, PrivacyConfig
from unisono.federation.server_optimizers import ServerOptimizerConfig
from unisono.methods.training_loop import TrainingConfig
from unisono.models.backbones import ModelConfig, fitting_backbone
from unisono.models.half_precision import fitting_precision
from unisono.report.config import ReportConfig
from unisono.runs.trackers import TrackConfig

FORMAT = 1
"""Version of the recipe format that this program writes; it reads this one and older ones."""


class RecipeConfig(Section):
    """A recipe's description of itself: the table ``[recipe]``."""

    title: str = Field("", description="what it shows, in one line")
    source: str = Field("", description="the paper's table or figure")
    scale: str = Field("", description="paper or small")


class RunConfig(Section):
    """Name, seed and upkeep of a run: the table ``[run]``."""

    name: str | None = Field(None, description="name of the run directory; default from method, data set and seed")
    directory: str = Field("runs", description="where run directories go")
    seed: int = Field(0, ge=0, description="the source of all randomness")
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="how many checkpoints are kept")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and (not name.strip() or name.startswith(".") or {"/", "\\"} & set(name)):
            raise ValueError("a plain name without / that begins with no dot (run.directory says where runs go)")
        return name


TABLES: dict[str, type[Section]] = {
    "recipe": RecipeConfig,
    "run": RunConfig,
    "data": DataConfig,
    "partition": PartitionConfig,
    "graph": GraphConfig,
    "shift": ShiftConfig,
    "labels": LabelsConfig,
    "views": ViewsConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "federation": FederationConfig,
    "cohort": CohortConfig,
    "aggregation": AggregationConfig,
    "server": ServerOptimizerConfig,
    "privacy": PrivacyConfig,
    "compression": CompressionConfig,
    "consent": ConsentConfig,
    "evaluation": EvaluationConfig,
    "engine": EngineConfig,
    "report": ReportConfig,
    "track": TrackConfig,
}


@dataclass(frozen=True)
class Config:
    """A resolved config: one validated section per table.

    Args:
        method_name: the method, as the registry knows it.
        method: its own options.
        tables: all other tables by name.
    """

    method_name: str
    method: Section
    recipe: RecipeConfig
    run: RunConfig
    data: DataConfig
    partition: PartitionConfig
    graph: GraphConfig
    shift: ShiftConfig
    labels: LabelsConfig
    views: ViewsConfig
    model: ModelConfig
    training: TrainingConfig
    federation: FederationConfig
    cohort: CohortConfig
    aggregation: AggregationConfig
    server: ServerOptimizerConfig
    privacy: PrivacyConfig
    compression: CompressionConfig
    consent: ConsentConfig
    evaluation: EvaluationConfig
    engine: EngineConfig
    report: ReportConfig
    track: TrackConfig

    @property
    def method_class(self) -> type[Method]:
        """The method's class."""
        return methods[self.method_name]

    @property
    def loop(self) -> LoopConfig:
        """The tables that the round loop reads."""
        return LoopConfig(self.federation, self.cohort, self.aggregation, self.server, self.privacy, self.compression)

    @property
    def method_sections(self) -> tuple[Section, ...]:
        """The tables that methods may read."""
        return (self.graph, self.views, self.model, self.local_training, self.consent)

    @property
    def local_training(self) -> TrainingConfig:
        """The table ``[training]`` as clients follow it: scaled to this federation where it says what it is meant for."""
        num_clients = None if self.partition.scheme == "natural" else self.partition.num_clients
        participation = self.cohort.participation or 1.0
        if self.cohort.size is not None:
            if num_clients is None and self.training.lr_tuned_for_participation is not None:
                raise UserError(
                    "training.lr_tuned_for_participation needs cohort.participation in place of cohort.size where "
                    "partition.scheme is 'natural', for the number of clients is the data's."
                )
            participation = self.cohort.size / (len(set(self.cohort.only)) or num_clients or self.cohort.size)
        return self.training.scaled(num_clients, participation)

    def fitted(self, input_shape: tuple[int, ...], on_gpu: bool, has_bf16: bool) -> Config:
        """Return the config with what fits samples and device in place of "auto" in ``model.backbone, training.precision``.

        Args:
            input_shape: shape of one sample.
            on_gpu: whether clients compute on a GPU.
            has_bf16: whether they multiply bf16 themselves.
        """
        model = fitting_backbone(self.model, input_shape, on_gpu)
        precision = fitting_precision(self.training.precision, has_bf16, model.backbone, on_gpu)
        return replace(self, model=model, training=self.training.model_copy(update={"precision": precision}))

    def as_tree(self) -> Tree:
        """Return every option with its value, as ``resolve`` takes it."""
        tree: Tree = {"format": FORMAT, "method": {"name": self.method_name, **self.method.model_dump(mode="json")}}
        for name in TABLES:
            tree[name] = getattr(self, name).model_dump(mode="json")
        return tree


def resolve(tree: Mapping[str, Any]) -> Config:
    """Return the validated config, or raise a UserError that names the field, the value and the remedy.

    Option defaults stand below ``Method.defaults``, and these below what ``tree`` says.
    """
    check_format(tree)
    known = [*TABLES, "method", "format"]
    for name, value in tree.items():
        if name not in known:
            raise UserError(f"{name} is not a known table.{closest(name, known)} Known: {', '.join(sorted(known))}.")
        if name != "format" and not isinstance(value, Mapping):
            raise UserError(f"{name} must be a table, got {value!r}.")
    method_name = tree.get("method", {}).get("name")
    if not isinstance(method_name, str):
        raise UserError('method.name is required: it says what is learnt, for example name = "simclr".')
    method_name = absolute_name(method_name)
    method_class = methods[method_name]
    _check_defaults(method_class)
    tree = merge(method_class.defaults, tree)
    own = {key: value for key, value in tree["method"].items() if key != "name"}
    sections = {name: make_section(kind, tree.get(name, {}), name) for name, kind in TABLES.items()}
    return Config(method_name, make_section(method_class.Config, own, "method"), **sections)  # type: ignore[arg-type]


def check_format(tree: Mapping[str, Any], source: str = "This recipe") -> None:
    """Raise a UserError if a tree has a format that this program cannot read.

    Args:
        tree: the content of a recipe.
        source: what it is called.
    """
    version = tree.get("format", FORMAT)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"format must be a whole number from 1, got {version!r}.")
    if version > FORMAT:
        raise UserError(
            f"{source} has format {version}, and this unisono reads formats up to {FORMAT}: install a newer unisono."
        )


def _check_defaults(method_class: type[Method]) -> None:
    """Raise a UserError if a method's defaults name a table or an option that there is not."""
    where = f"{method_class.__name__}.defaults"
    for table, values in method_class.defaults.items():
        if table not in TABLES:
            raise UserError(
                f"{where}: {table} is not a known table.{closest(table, TABLES)} Known: {', '.join(sorted(TABLES))}."
            )
        check_options(TABLES[table], values, f"{where}: {table}")
