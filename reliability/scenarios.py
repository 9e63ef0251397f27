"""The scenarios of a sweep: a run, a resumed run, a study, a server of a federation, the states and ledgers of a client."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import unisono
from reliability.federation import SMALL, LocalGrid, make_clients, open_client, server_info
from reliability.sweep import Outcome
from unisono.cli.main import main
from unisono.config import resolve
from unisono.core.config import parse_overrides
from unisono.core.context import Context
from unisono.core.errors import ClientError, UserError
from unisono.core.payload import Payload
from unisono.core.wire import from_bytes, to_bytes
from unisono.deploy.directories import ClientDirectory
from unisono.deploy.ledger import Ledger
from unisono.deploy.negotiation import run_info_of
from unisono.deploy.runs import prepare_run
from unisono.deploy.server import public_tree, serve
from unisono.engines.flower.messages import Request
from unisono.fitting import prepare
from unisono.recipes import Layer, assemble, build_tree
from unisono.running import start
from unisono.runs.directory import RunDirectory

SETTINGS = (
    "partition.num_clients=4", "cohort.size=2", "federation.rounds=2", "data.limit=64", "data.test_limit=20",
    "model.backbone=convnet", "model.options.widths=[4]", "model.norm=group", "model.groups=2", "training.local_epochs=1",
    "method.num_local_clusters=4", "method.num_global_clusters=3", "method.memory_size=16", "evaluation.probe_every=1",
    "method.global_clustering=equal-size",
    "evaluation.probes=['knn']", "engine.workers=0", "engine.device=cpu", "engine.state_memory_gib=1e-9",
    "compression.bits=8", "training.batch_size=16", "report.projection=pca",
)  # fmt: skip
"""Orchestra with a memory, spilled states and error feedback, so that everything that a run can write is written."""
STUDY = """
format = 1
[study]
title = "Two runs"
recipe = "digits-smoke"
seeds = [0]
metrics = ["knn"]
set = {settings}

[[variant]]
name = "SimCLR"
set = ["method.name=simclr"]

[[variant]]
name = "Less"
set = ["method.name=simclr", "training.batch_size=8"]
"""
COMPARED = (
    "metrics.jsonl",
    "clients.jsonl",
    "failures.jsonl",
    "model/encoder.safetensors",
    "clusters/sizes.csv",
    "config.toml",
)


def outcome_of(path: Path) -> Outcome:
    """Return what a run must have in the end, and the state in which its files are."""
    directory = RunDirectory(path)
    found = {name: (path / name).read_bytes() if (path / name).exists() else b"none" for name in COMPARED}
    problems = [problem for name in directory.manifest.names() if (problem := directory.manifest.problem(name))]
    return {
        **found,
        "damaged": "; ".join(problems).encode(),
        "finished": str(directory.finished).encode(),
        "report": str((path / "report.html").is_file()).encode(),
        "leftovers": str(sorted(file.name for file in path.rglob(".*.tmp"))).encode(),
    }


def is_run(path: Path) -> bool:
    """Return whether a run was begun there, so that it can be continued."""
    try:
        RunDirectory.open(path)
    except UserError:
        return False
    return True


class Run:
    """A run from its start."""

    name = "run"

    def prepare(self, root: Path) -> None:
        """Make nothing."""

    def act(self, root: Path) -> None:
        """Run it."""
        unisono.run("orchestra", dataset="digits", name="r", set=[f"run.directory={root}", *SETTINGS])

    def recover(self, root: Path) -> None:
        """Resume it, or start it again where there is nothing to resume."""
        unisono.resume(root / "r") if is_run(root / "r") else self.act(root)

    def outcome(self, root: Path) -> Outcome:
        return outcome_of(root / "r")


class Resume(Run):
    """A run that was stopped before its last round, and is continued; its last checkpoint links to the first."""

    name = "resume"

    def prepare(self, root: Path) -> None:
        """Run two of three rounds."""
        settings = [*SETTINGS, "data.dataset=digits", "federation.rounds=3"]
        experiment, _ = prepare(assemble("orchestra", [Layer("--set", parse_overrides(settings))]))
        start(experiment, root / "r", rounds=2)

    def act(self, root: Path) -> None:
        """Continue it."""
        unisono.resume(root / "r")


class Study:
    """A study of two short runs without reports, whose results are written in the end."""

    name = "study"

    def prepare(self, root: Path) -> None:
        """Write the file of the study."""
        own = [setting for setting in SETTINGS if not setting.startswith("method.")]
        (root / "s.toml").write_text(STUDY.format(settings=[*own, "federation.rounds=1", "report.enabled=false"]))

    def act(self, root: Path) -> None:
        """Run the study."""
        call("study", str(root / "s.toml"), "--directory", str(root), "--name", "s", "--no-reuse")

    def recover(self, root: Path) -> None:
        """Run it again: what is finished is kept."""
        self.act(root)

    def outcome(self, root: Path) -> Outcome:
        runs = {path.parent.name: path.parent for path in sorted((root / "s").glob("*/config.toml"))}
        found = {f"{name}/{part}": value for name, path in runs.items() for part, value in outcome_of(path).items()}
        return {**found, "results.md": (root / "s" / "results.md").read_bytes()}


class Server:
    """The server of a federation: its run directory is on the faulty disk, the clients' are not."""

    name = "server"

    def prepare(self, root: Path) -> None:
        """Make clients."""
        if not root.with_name("federation").exists():
            make_clients(root.with_name("federation"), root.with_name("data"), 3)

    def act(self, root: Path) -> None:
        """Prepare and serve a run."""
        shutil.rmtree(root.with_name("clients"), ignore_errors=True)
        shutil.copytree(root.with_name("federation"), root.with_name("clients"))
        self._serve(root, prepare_run(root, 3, "simclr", [*SMALL, "federation.rounds=2", "run.seed=3"], "r"))

    def recover(self, root: Path) -> None:
        """Serve it again, or prepare it again where there is no run."""
        self._serve(root, root / "r") if is_run(root / "r") else self.act(root)

    def outcome(self, root: Path) -> Outcome:
        return outcome_of(root / "r")

    def _serve(self, root: Path, path: Path) -> None:
        clients = [open_client(root.with_name("clients"), number) for number in range(3)]
        serve(LocalGrid(clients), path, server_info(3), 1)


class Client:
    """A client of a federation that answers three rounds: its states, ledger and audit are on the faulty disk.

    The server keeps, elsewhere, what it was answered, and asks again for what it was not.
    """

    name = "client"

    def prepare(self, root: Path) -> None:
        """Make the client."""
        if not root.with_name("federation").exists():
            make_clients(root.with_name("federation"), root.with_name("data"), 1)
        shutil.copytree(root.with_name("federation"), root, dirs_exist_ok=True)

    def act(self, root: Path) -> None:
        """Ask for three rounds from the beginning."""
        shutil.rmtree(root.with_name("answers"), ignore_errors=True)
        root.with_name("answers").mkdir()
        self.recover(root)

    def recover(self, root: Path) -> None:
        """Ask for the rounds that were not answered."""
        client, answers = open_client(root, 0), root.with_name("answers")
        config = resolve(build_tree("simclr", {}, [*SMALL, "federation.rounds=3", "data.image_size=8", "data.channels=1"]))
        config = config.fitted((1, 8, 8), on_gpu=False, has_bf16=False)
        info = {"input_shape": [1, 8, 8], "mean": [0.5], "std": [0.25], "num_classes": None, "num_clients": 1, "num_rounds": 3}
        spec = json.dumps({"run": "run-1", "config": public_tree(config), "run_info": info})
        method = config.method_class(config.method, run_info_of(info, config))
        local, broadcast = Payload(), method.broadcast(method.init_server(Context(0, 0, "init")), Context(0, 0, "train"))
        for round in range(3):
            answer = answers / f"{round}.local"
            if not answer.exists():
                try:
                    found = client.answer(Request(0, round, "train", 0, spec, broadcast, local=local))
                except ClientError as error:
                    raise UserError(str(error)) from error
                (answers / f"{round}.update").write_bytes(to_bytes(found.update.payload))
                answer.write_bytes(to_bytes(found.local))
            local = from_bytes(answer.read_bytes())

    def outcome(self, root: Path) -> Outcome:
        answers = root.with_name("answers")
        ledger = Ledger(ClientDirectory.open(root / "client-0"))
        answered = {line["round"] for line in ledger.intents if line["kind"] == "train"}
        return {
            **{path.name: hashlib.sha256(path.read_bytes()).digest() for path in sorted(answers.glob("*.update"))},
            "rounds in the ledger": str(sorted(answered)).encode(),
        }


SCENARIOS = (Run, Resume, Study, Server, Client)


def call(*words: str) -> None:
    """Call the command line; raise a UserError if it ends with one."""
    try:
        main(list(words))
    except SystemExit as end:
        if end.code:
            raise UserError(f"exit code {end.code}") from end
