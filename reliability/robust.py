"""``make robust``: the rules of aggregation against clients that attack.

The round loop, the server's checks and the client's training are the real ones. Attackers are trained like all others, and
falsify what they send. Every rule is measured against every attack by a linear probe, beside the floors of the same data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import torch
from flwr.app import Message

from reliability.federation import Everybody, LocalGrid
from unisono.config import resolve
from unisono.core.payload import Payload, Update
from unisono.data.datasets import DataConfig, Dataset, load_dataset
from unisono.engines.flower.engine import FlowerEngine, ServerPolicy
from unisono.engines.flower.messages import answer_content, read_request
from unisono.experiment import Experiment
from unisono.federation.client_store import ClientStateStore
from unisono.federation.client_turn import prepare_nets, run_client
from unisono.federation.loop import Callback, RoundLoop, RoundRecord, ServerState
from unisono.federation.postprocess import Postprocessor
from unisono.federation.screening import update_norm
from unisono.recipes import build_tree

NUM_CLIENTS, NUM_ROUNDS = 20, 10
SETTINGS = (
    "data.dataset=fashion-mini", "data.limit=4000", "data.test_limit=2000",
    f"partition.num_clients={NUM_CLIENTS}",
    "partition.scheme=dirichlet", "partition.alpha=1.0", f"cohort.size={NUM_CLIENTS}", f"federation.rounds={NUM_ROUNDS}",
    "federation.strict=false", "model.backbone=convnet", "model.options.widths=[16,32,64]", "model.norm=group",
    "model.groups=4", "method.projection_dim=32", "training.batch_size=32", "training.local_epochs=2",
    "training.learning_rate=0.03", "training.drop_last=true", "views.preset=orchestra", "evaluation.probes=['linear']",
    "engine.device=cpu",
)  # fmt: skip
RULES: dict[str, tuple[str, ...]] = {
    "mean": (),
    "mean, screened (default)": ("aggregation.screen=10",),
    "median": ("aggregation.rule=median",),
    "norm clipping": ("privacy.clip_norm={norm}", "aggregation.weighting=uniform"),
    "trimmed mean": ("aggregation.rule=trimmed-mean", "aggregation.trim=0.3"),
    "multi-Krum": ("aggregation.rule=multi-krum", "aggregation.byzantine=6"),
}
"""Settings by rule; those that need a number are given what 30% of attackers ask for. Clipping is to the median length of an
honest update in the first round."""
LENGTH = 3.0
"""Lengths of an honest update up to which noise and collapse go: as far as the default screen lets them."""
RESULTS = Path("build/robust.jsonl")

Attack = Callable[[Payload, Payload, torch.Generator], Payload]


def sign_flip(honest: Payload, received: Payload, generator: torch.Generator) -> Payload:
    """Return the step in the opposite direction."""
    return _moved(honest, received, lambda change, start: -change)


def scaled(honest: Payload, received: Payload, generator: torch.Generator) -> Payload:
    """Return ten times the step in the opposite direction."""
    return _moved(honest, received, lambda change, start: -10 * change)


def noise(honest: Payload, received: Payload, generator: torch.Generator) -> Payload:
    """Return a random step, three times as long as the honest one, tensor by tensor."""

    def move(change: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(change.shape, generator=generator)
        return drawn * (LENGTH * float(change.norm()) / max(float(drawn.norm()), 1e-12))

    return _moved(honest, received, move)


def collapse(honest: Payload, received: Payload, generator: torch.Generator) -> Payload:
    """Return a step towards weights of zero, which give every sample the same representation; no label is needed."""

    def move(change: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return -start * min(1.0, LENGTH * float(change.norm()) / max(float(start.norm()), 1e-12))

    return _moved(honest, received, move)


ATTACKS: dict[str, Attack] = {"sign flip": sign_flip, "scaled": scaled, "noise": noise, "collapse": collapse}


def _moved(honest: Payload, received: Payload, move: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Payload:
    begun = received.flatten()
    tensors = {
        name: begun[name] + move(tensor - begun[name], begun[name]) if tensor.is_floating_point() and name in begun else tensor
        for name, tensor in honest.tensors()
    }
    return Payload.unflatten(tensors, honest.scalars, honest.groups)


class AttackedGrid(LocalGrid):
    """A grid in this process whose first clients attack, after an honest step.

    Args:
        experiment: gives the clients' samples and the method.
        postprocessor: of the run; attackers do without.
        attack: what they do.
        num_attackers: how many.
    """

    def __init__(self, experiment: Experiment, postprocessor: Postprocessor, attack: Attack | None, num_attackers: int) -> None:
        super().__init__([])
        self._experiment = experiment
        self._postprocessor = postprocessor
        self._attack = attack
        self._num_attackers = num_attackers
        self._nets = prepare_nets(experiment.method, torch.device("cpu"))
        self.norms: list[float] = []

    def answer(self, message: Message) -> Message:
        request, cpu = read_request(message.content), torch.device("cpu")
        data, ctx = self._experiment.clients.client_data(request.client_id, cpu), request.context(cpu)
        plain = Postprocessor(type(self._postprocessor.privacy)(), self._postprocessor.compression, {})
        result = run_client(self._experiment.method, self._nets, request.received, Payload(), data, ctx, plain)
        payload = result.update.payload
        self.norms.append(update_norm(payload, request.received, self._experiment.method.shares))
        if self._attack is not None and request.client_id < self._num_attackers:
            payload = self._attack(payload, request.received, ctx.rng("attack"))
        update = replace(result.update, payload=payload)
        if self._postprocessor.active:
            update = self._as_change(update, request.received)
        return Message(answer_content(replace(result, update=update)), reply_to=message)

    def _as_change(self, update: Update, received: Payload) -> Update:
        """Return the update as differences, as a run with clipping sends it; the server clips, whatever a client did."""
        begun = self._postprocessor.reference(received, update.client_id)
        changes = {name: tensor - begun[name] for name, tensor in update.payload.tensors()}
        return replace(update, payload=Payload.unflatten(changes))


class LeftOut(Callback):
    """Number of clients that were left out of rounds."""

    number = 0

    def on_round_end(self, state: ServerState, record: RoundRecord) -> None:
        self.number += len(record.failures)


def prepare(seed: int, settings: Sequence[str]) -> Experiment:
    """Return the experiment of a seed."""
    config = resolve(build_tree("simclr", {}, [*SETTINGS, f"run.seed={seed}", *settings]))
    return Experiment.prepare(config, _dataset(config.data))


@cache
def _dataset(config: DataConfig) -> Dataset:
    return load_dataset(config)


def learn(experiment: Experiment, attack: str, num_attackers: int, rounds: int = NUM_ROUNDS) -> tuple[float, int, list[float]]:
    """Return the linear probe in percent, how many answers were left out, and the lengths of all updates before an attack."""
    config, method = experiment.config, experiment.method
    postprocessor = Postprocessor(config.privacy, config.compression, method.shares)
    grid, left_out = AttackedGrid(experiment, postprocessor, ATTACKS.get(attack), num_attackers), LeftOut()
    policy = ServerPolicy(method, postprocessor, config.aggregation, 600.0, poll=0.0)
    members = Everybody(NUM_CLIENTS, experiment.clients.num_samples)
    loop = RoundLoop(method, FlowerEngine(grid, members, policy, "{}"), ClientStateStore(), config.loop, config.run.seed)
    state = loop.run(loop.initial_state(), [left_out], rounds)
    score = experiment.evaluator()(state.server, rounds)["linear"] if rounds == NUM_ROUNDS else math.nan
    return 100 * score, left_out.number, grid.norms


def robust(seeds: int = 2, minutes: int = 0) -> int:
    """Measure every rule against every attack, row by row, and print a table; return the exit code.

    Args:
        seeds: how many.
        minutes: stop after these, to go on at the next call; 0 measures all, from the beginning.
    """
    torch.set_num_threads(1)
    start = time.monotonic()
    if not minutes:
        RESULTS.unlink(missing_ok=True)
    RESULTS.parent.mkdir(exist_ok=True)
    known = {tuple(key) for key, _ in _lines()}
    cells = [("none", 0), *((attack, number) for number in (2, 6) for attack in ATTACKS)]
    for seed in range(seeds):
        if (seed, "floors", "", 0) not in known:
            floors = prepare(seed, ()).evaluator().floors()
            _keep([seed, "floors", "", 0], {name: 100 * scores["linear"] for name, scores in floors.items()})
    for rule, seed, (attack, number) in product(RULES, range(seeds), cells):
        if (seed, rule, attack, number) in known:
            continue
        if minutes and time.monotonic() - start > 60 * minutes:
            print("stopped before the end: the same command goes on")
            break
        own = [setting.format(norm=_length(seed)) if "{norm}" in setting else setting for setting in RULES[rule]]
        score, left_out, _ = learn(prepare(seed, own), attack, number)
        _keep([seed, rule, attack, number], {"linear": score, "left out": left_out})
    print("\n".join(table({tuple(key): value for key, value in _lines()}, seeds, cells)))
    return 0


@cache
def _length(seed: int) -> float:
    """Return the median length of an honest update in the first round."""
    return round(torch.tensor(learn(prepare(seed, ()), "none", 0, rounds=1)[2]).median().item(), 4)


def _lines() -> list[tuple[list[object], dict[str, float]]]:
    return [tuple(json.loads(line)) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []  # type: ignore[misc]


def _keep(key: list[object], value: dict[str, float]) -> None:
    print(*key, value, flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps([key, value]) + "\n")


def table(found: dict[tuple[object, ...], dict[str, float]], seeds: int, cells: Sequence[tuple[str, int]]) -> list[str]:
    """Return the lines of the table in Markdown: means over seeds, in percent; a row that is not whole is left out."""

    def mean(*key: object, part: str = "linear") -> float:
        return sum(found[seed, *key][part] for seed in range(seeds)) / seeds

    whole = [rule for rule in RULES if all((seed, rule, *cell) in found for seed in range(seeds) for cell in cells)]
    heads = ["no attack", *(f"{attack}, {number} of {NUM_CLIENTS}" for attack, number in cells[1:])]
    lines = [f"| Rule | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    lines += [f"| {rule} | {' | '.join(f'{mean(rule, *cell):.1f}' for cell in cells)} |" for rule in whole]
    floors = ", ".join(f"{name} {mean('floors', '', 0, part=name):.1f}" for name in found[0, "floors", "", 0])
    return [*lines, f"floors: {floors}"]
