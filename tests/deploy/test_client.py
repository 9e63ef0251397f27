"""A client protects its owner, whatever the server asks; and three of them together make CF-CL and masked sums work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context as FlowerContext
from flwr.app import Error, Message, RecordDict

from tests.deploy.running import configured, write_samples
from tests.engines.flower.grid import InstantGrid
from unisono.config import Config, resolve
from unisono.core.config import make_section, merge
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.forms import is_sealed
from unisono.core.method import RunInfo
from unisono.deploy.client import DeployedClient
from unisono.deploy.directories import CLIENT_FILE, ClientConfig, ClientDirectory, write_config
from unisono.deploy.identity import KnownKeys
from unisono.deploy.init import create_federation
from unisono.deploy.server import public_tree
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.engine import OUTLIER, FlowerEngine, ServerPolicy
from unisono.engines.flower.messages import Request, payload_of
from unisono.engines.flower.secure import SecureEngine, SumPolicy, check_secure
from unisono.federation.client_store import ClientStateStore
from unisono.federation.loop import Callback, RoundLoop, ServerState
from unisono.federation.postprocess import CompressionConfig, Postprocessor
from unisono.privacy.accountant import UserLevelAccountant

NUM_CLIENTS = 3
RUN_INFO = {
    "input_shape": [1, 8, 8],
    "mean": [0.5],
    "std": [0.25],
    "num_classes": None,
    "num_clients": NUM_CLIENTS,
    "num_rounds": 2,
}
SIMPLE = {
    "method": {"name": "simclr", "projection_dim": 8},
    "data": {"channels": 1},
    "model": {"width": 0.125},
    "training": {"batch_size": 16, "local_epochs": 1},
    "federation": {"rounds": 2},
    "evaluation": {"probe_every": 1},
}
EXCHANGE = {
    "method": {
        "name": "cfcl", "points_per_pull": 4, "num_reserve": 3, "num_candidates": 8, "num_clusters": 2, "aggregation_steps": 2,
    },
    "data": {"channels": 1, "image_size": 16},
    "graph": {"topology": "complete"},
    "training": {"local_steps": 1, "batch_size": 8},
    "federation": {"rounds": 2},
    "consent": {"share_data": True},
}  # fmt: skip


SHARING: dict[str, Any] = {
    "allow": {"reveals": ["parameters", "statistics", "data"]}, "peers": {"exchange": list(range(NUM_CLIENTS))}
}  # fmt: skip
GROUP_NORM = {"model": {"norm": "group"}}


class Everyone:
    """Client n on node n."""

    def __init__(self, num_clients: int = NUM_CLIENTS) -> None:
        self.num_clients = num_clients

    def available(self) -> None:
        return None

    def node_of(self, client_id: int) -> int:
        return client_id

    def heard(self, client_id: int, reason: str) -> None:
        pass

    def num_samples(self, client_id: int) -> int:
        return 40 + 12 * client_id


class Clients:
    """Clients with directories of their own, in this process; ``lost`` names those that are killed, by step of a sum."""

    def __init__(self, root: Path, num_clients: int = NUM_CLIENTS, **options: Any) -> None:
        create_federation(root / "federation", num_clients, policy={})
        self.lost: dict[str, list[int]] = {}
        self.directories = []
        for number in range(num_clients):
            path = root / "federation" / f"client-{number}"
            config = ClientDirectory.open(path).config
            data = str(write_samples(root / f"data-{number}", number))
            write_config(path / CLIENT_FILE, configured(config, {"data": data, "device": "cpu", **options}))
            self.directories.append(ClientDirectory.open(path))
        self.handlers = [DeployedClient(directory) for directory in self.directories]
        self.seen: list[RecordDict] = []

    def restart(self, number: int, **options: Any) -> None:
        path = self.directories[number].path
        whole = merge(ClientDirectory.open(path).config.model_dump(mode="json"), options)
        write_config(path / CLIENT_FILE, make_section(ClientConfig, whole, "client"))
        self.directories[number] = ClientDirectory.open(path)
        self.handlers[number] = DeployedClient(self.directories[number])

    def grid(self) -> InstantGrid:
        """A grid whose messages these clients answer; ``seen`` is what the server gets to see."""

        def reply(message: Message) -> RecordDict | Error:
            number = message.metadata.dst_node_id
            sum_values = message.content.config_records.get("sum")
            step = "train" if sum_values is None else json.loads(str(sum_values["values"]))["step"]
            if number in self.lost.get(step, ()):
                return Error(code=3, reason="the node is gone")
            app = make_client_app(lambda node_config: self.handlers[number])
            context = FlowerContext(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
            content = app(message, context).content
            self.seen.append(content)
            return content

        return InstantGrid(reply)


class Run:
    """A run of the server's side against these clients."""

    def __init__(
        self,
        clients: Clients,
        tree: Mapping[str, Any],
        secure: bool = False,
        num_classes: int | None = None,
        name: str = "run-1",
    ) -> None:
        tree = merge({"federation": {"strict": False, "quorum": 1.0, "retries": 0}}, tree)
        self.config: Config = resolve(tree)
        size = self.config.data.image_size or 8
        number = len(clients.handlers)
        facts = {"num_clients": number, "num_classes": num_classes, "num_rounds": self.config.federation.rounds}
        info = {**RUN_INFO, "input_shape": [1, size, size], **facts}
        self.run_spec = json.dumps({"run": name, "config": public_tree(self.config), "run_info": info})
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in info.items()}
        self.method = self.config.method_class(
            self.config.method, RunInfo(**{**fields, "sections": self.config.method_sections})
        )
        compression = CompressionConfig() if secure else self.config.compression
        postprocessor = Postprocessor(self.config.privacy, compression, self.method.shares)
        policy = ServerPolicy(self.method, postprocessor, self.config.aggregation, poll=0.0, outlier=OUTLIER)
        parts = (clients.grid(), Everyone(number), policy, self.run_spec)
        if secure:
            known = KnownKeys(clients.directories[0].keys)
            rules = SumPolicy(known.verify, self.config.privacy, self.config.compression)
            self.engine: FlowerEngine = SecureEngine(*parts, rules)  # type: ignore[arg-type]
        else:
            self.engine = FlowerEngine(*parts)  # type: ignore[arg-type]
        self.federation = RoundLoop(self.method, self.engine, ClientStateStore(), self.config.loop, 0)
        self.failures: list[ClientError] = []

    def go(self, state: ServerState | None = None, until: int | None = None) -> ServerState:
        run = self

        class Watch(Callback):
            def on_client_failure(self, failure: ClientError) -> None:
                run.failures.append(failure)

        return self.federation.run(state or self.federation.initial_state(), [Watch()], until)


def as_run_info(values: Mapping[str, Any], config: Config) -> RunInfo:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return RunInfo(**{**fields, "sections": config.method_sections})


def question(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {"config": public_tree(resolve(tree)), "run_info": None, "num_clients": NUM_CLIENTS, "num_rounds": 2}


def request(run: Run, client_id: int = 0) -> Request:
    state = run.federation.initial_state()
    return Request(0, 0, "train", client_id, run.run_spec, run.method.broadcast(state.server, Context(0, 0, "train")))


def test_a_client_tells_size_shape_and_statistics_and_nothing_else(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    told = clients.handlers[1].describe(question(SIMPLE))
    assert set(told) == {"client", "version", "samples", "shape", "mean", "std", "policy", "ledger"}
    samples = np.load(tmp_path / "data-1" / "samples.npz")["x"]
    assert (told["client"], told["samples"], told["shape"]) == (1, len(samples), [1, 8, 8])
    assert told["mean"] == pytest.approx([samples.mean() / 255])


def test_what_the_owner_has_not_agreed_to_does_not_happen(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    with pytest.raises(UserError, match=r"allow\.reveals lacks 'data'"):
        clients.handlers[0].describe(question(EXCHANGE))
    foreign = {**question(SIMPLE), "config": {"method": {"name": "os:system"}}}
    with pytest.raises(UserError, match=r"'os:system', which client\.toml does not list"):
        clients.handlers[0].describe(foreign)
    backbone = merge(question(SIMPLE)["config"], {"model": {"backbone": "os:system"}})
    with pytest.raises(UserError, match=r"'os:system', which client\.toml does not list"):
        clients.handlers[0].describe({**question(SIMPLE), "config": backbone})
    seeded = {**SIMPLE, "method": {"name": "orchestra", "privacy": "local-dp"}, "model": {"width": 0.125, "norm": "group"}}
    with pytest.raises(UserError, match="the server knows the seed"):
        clients.handlers[0].describe(question(seeded))
    with pytest.raises(UserError, match="needs labels"):
        clients.handlers[0].describe(question({**SIMPLE, "method": {"name": "supervised"}}))
    run = Run(clients, EXCHANGE)
    with pytest.raises(UserError, match="below the quorum"):
        run.go()
    assert {failure.client_id for failure in run.failures} == set(range(NUM_CLIENTS))
    assert all("policy:allow.reveals" in failure.reason for failure in run.failures)
    assert clients.seen
    assert all("update" not in content for content in clients.seen)


def test_views_of_a_file_run_only_if_they_are_listed(tmp_path: Path) -> None:
    """The file is not even imported; once its owner lists it, it is."""
    file = tmp_path / "spying_views.py"
    file.write_text("raise SystemExit('it ran')")
    clients, name = Clients(tmp_path / "clients"), f"{file}:views"
    asked = {**question(SIMPLE), "config": merge(SIMPLE, {"views": {"preset": name}})}
    with pytest.raises(UserError, match=r"spying_views.py:views', which client\.toml does not list"):
        clients.handlers[0].describe(asked)
    clients.restart(0, allow={"code": [name]})
    with pytest.raises(SystemExit, match="it ran"):
        clients.handlers[0].describe(asked)
    file.write_text("def views(batch, generator):\n    return batch.flip(-1)\n")
    assert clients.handlers[0].describe(asked)


def test_a_request_for_another_client_is_refused(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    with pytest.raises(ClientError, match="this is client 0, and the request is for client 1"):
        clients.handlers[0].answer(request(Run(clients, SIMPLE), client_id=1))


def test_samples_of_another_shape_are_told_apart(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    np.savez(tmp_path / "other.npz", x=np.zeros((9, 5, 5), np.uint8))
    clients.restart(1, data=str(tmp_path / "other.npz"))
    assert clients.handlers[1].describe(question(SIMPLE))["shape"] == [1, 5, 5]
    with pytest.raises(ClientError, match=r"samples have shape \(1, 5, 5\)"):
        clients.handlers[1].answer(request(Run(clients, SIMPLE), client_id=1))
    sized = merge(SIMPLE, {"data": {"image_size": 8}})
    assert clients.handlers[1].describe(question(sized))["shape"] == [1, 8, 8]


def test_points_travel_sealed_and_no_sample_is_in_what_the_server_sees(tmp_path: Path) -> None:
    clients = Clients(tmp_path, **SHARING)
    run = Run(clients, EXCHANGE)
    state = run.go()
    assert run.failures == []
    assert state.round == 2
    groups = [payload_of(content, "update").groups for content in clients.seen]
    sent = [tensor for group in groups for name in ("offers", "reserve") for tensor in group.get(name, {}).values()]
    assert len(sent) > NUM_CLIENTS
    assert all(is_sealed(tensor) for tensor in sent)


def test_an_exchange_through_the_server_has_the_bits_of_one_without_walls(tmp_path: Path) -> None:
    from unisono.deploy.negotiation import load_client_data
    from unisono.engines.embedded import EmbeddedEngine, EngineConfig
    from unisono.engines.shards import WorkerSetup
    from unisono.federation import client_turn

    clients = Clients(tmp_path, **SHARING)
    run = Run(clients, EXCHANGE)
    found = run.go()
    parts = [load_client_data(directory, run.config.data).samples for directory in clients.directories]
    indices = torch.arange(sum(map(len, parts))).split([len(part) for part in parts])
    held = client_turn.FederatedDataset(torch.cat(parts), indices, None)
    postprocessor = Postprocessor(run.config.privacy, run.config.compression, run.method.shares)
    with EmbeddedEngine(
        WorkerSetup(run.method, held, postprocessor, run.config.aggregation), EngineConfig(workers=0)
    ) as engine:
        federation = RoundLoop(run.method, engine, ClientStateStore(), run.config.loop, 0)
        expected = federation.run(federation.initial_state())
    names = [name for name in expected.server.flatten() if name.startswith("encoder")]
    assert names
    assert all(torch.equal(found.server.flatten()[name], expected.server.flatten()[name]) for name in names)


def test_states_survive_a_restart_of_the_client(tmp_path: Path) -> None:
    tree = merge(SIMPLE, {"method": {"name": "fedema", "hidden_dim": 8}})
    whole = Run(Clients(tmp_path / "a"), tree).go()
    clients = Clients(tmp_path / "b")
    run = Run(clients, tree)
    half = run.go(until=1)
    for number in range(NUM_CLIENTS):
        clients.restart(number)
    found = run.go(half)
    assert all(torch.equal(found.server.flatten()[name], tensor) for name, tensor in whole.server.flatten().items())
    store = run.federation.store
    assert all(not store.get(client).groups for client in store)
    assert len(list(store)) == NUM_CLIENTS


def test_a_budget_ends_a_clients_part(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    once, twice = (UserLevelAccountant(3.0, 1e-5, "none", 1, 1).epsilon(number) for number in (1, 2))
    clients = Clients(tmp_path, budget={"max_epsilon": (once + twice) / 2, "clip_norm": 1.0, "noise_multiplier": 3.0})
    asked = request(Run(clients, merge(SIMPLE, GROUP_NORM)))
    clients.handlers[0].answer(asked)
    clients.restart(0)
    with pytest.raises(ClientError, match=r"policy:budget\.max_epsilon"):
        clients.handlers[0].answer(replace(asked, round=1))


def test_an_update_is_clipped_and_noisy_as_the_owner_wants_it(tmp_path: Path) -> None:
    clients = Clients(tmp_path, budget={"clip_norm": 1e-3})
    asked = request(Run(clients, merge(SIMPLE, GROUP_NORM)))
    start = asked.broadcast.flatten()

    def moved(number: int) -> torch.Tensor:
        sent = clients.handlers[number].answer(replace(asked, client_id=number)).update.payload.flatten()
        return torch.cat([(sent[name] - start[name]).flatten() for name in sent if sent[name].is_floating_point()])

    assert float(moved(0).norm()) == pytest.approx(1e-3, rel=1e-2)
    clients.restart(1, budget={"noise_multiplier": 100.0})
    noisy = moved(1)
    # The noise has no seed: six standard errors of a deviation.
    assert float(noisy.std()) == pytest.approx(0.1, rel=6 / (2 * len(noisy)) ** 0.5)


def test_noise_on_the_statistics_of_batchnorm_is_refused(tmp_path: Path) -> None:
    clients = Clients(tmp_path, budget={"clip_norm": 1.0, "noise_multiplier": 1.0})
    with pytest.raises(
        ClientError, match=r"refused: policy:budget.noise_multiplier: this client adds noise.*set model\.norm = 'group'"
    ):
        clients.handlers[0].answer(request(Run(clients, SIMPLE)))


def test_a_traceback_stays_with_the_client(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    run = Run(clients, merge(SIMPLE, {"training": {"learning_rate": 1e30}}))
    with pytest.raises(UserError, match="below the quorum"):
        run.go()
    assert run.failures
    assert all(failure.details == "" for failure in run.failures)


def test_probes_without_labels_run_on_the_client(tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    scores = clients.handlers[0].evaluate(request(Run(clients, SIMPLE)))["scores"]
    assert set(scores) == {"align", "uniformity", "score"}


def test_clients_score_the_received_projector(tmp_path: Path) -> None:
    """One that maps all samples to the same point aligns perfectly and is as far from uniform as can be."""
    clients = Clients(tmp_path)
    asked = request(Run(clients, SIMPLE))
    zeros = {name: torch.zeros_like(tensor) for name, tensor in asked.broadcast.groups["projector"].items()}
    last_bias = [name for name in zeros if name.endswith("bias")][-1]
    constant = asked.broadcast.with_groups(projector={**zeros, last_bias: torch.ones_like(zeros[last_bias])})
    scores = clients.handlers[0].evaluate(replace(asked, broadcast=constant))["scores"]
    assert scores == {"align": 1.0, "uniformity": -5.0, "score": 0.0}


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"method": {"name": "fedca"}, "consent": {"allow_raw_representations": True}}, "representations of"),
        ({"aggregation": {"rule": "median"}}, "must be 'mean'"),
        ({"compression": {"top_k": 0.1}}, "would send different entries"),
        ({"cohort": {"size": 2}}, "at least 3 clients per round"),
    ],
)
def test_what_cannot_be_private_is_refused_by_name(over: dict[str, Any], word: str) -> None:
    base = {key: value for key, value in SIMPLE.items() if key != "method" or "method" not in over}
    config = resolve(merge(base, over))
    method = config.method_class(config.method, as_run_info(RUN_INFO, config))
    with pytest.raises(UserError, match=word):
        check_secure(method, config.aggregation, config.compression, config.cohort.expected_size(NUM_CLIENTS))
