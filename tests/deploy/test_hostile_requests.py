"""A server that bends its requests: odd rounds, phases, names, facts and files, and messages that cannot be read."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from tests.attacks import attack
from tests.deploy.test_client import RUN_INFO, SIMPLE, Clients, Run, question, request
from tests.deploy.test_policy import MASKED, SECURE, client_with
from tests.engines.flower.grid import InstantGrid
from unisono.core.config import merge
from unisono.core.context import Context as Place
from unisono.core.errors import ClientError, UserError
from unisono.core.method import Method, methods
from unisono.core.payload import Payload
from unisono.deploy.ledger import Ledger
from unisono.deploy.policy_tables import BoundsTable
from unisono.deploy.refusal import RefusedError
from unisono.deploy.runs import TOLERANT
from unisono.engines.flower.client_app import make_client_app
from unisono.engines.flower.messages import FAILED, Request, RequestBuilder, read_request, with_checksum


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


def with_spec(asked: Request, **values: Any) -> Request:
    return replace(asked, run_spec=json.dumps({**json.loads(asked.run_spec), **values}))


@attack("A10", "Names rounds and phases that the run does not have, for one more answer each", "refused")
@pytest.mark.parametrize(
    "place", [{"phase": "train2"}, {"phase": ""}, {"round": 2}, {"round": -1}, {"seed": -1}, {"seed": 2**63}]
)
def test_rounds_and_phases_are_those_of_the_run(clients: Clients, tmp_path: Path, place: dict[str, Any]) -> None:
    client = client_with(clients, tmp_path, {})
    with pytest.raises(ClientError, match=r"rounds, and the request|has the phases train, and no other|whole number"):
        client.answer(replace(request(Run(clients, SIMPLE)), **place))
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("place", [{"round": "0"}, {"round": 0.5}, {"seed": True}, {"phase": None}, {"client": 0.0}])
def test_a_place_is_made_of_whole_numbers_and_a_word(place: dict[str, Any]) -> None:
    content = RequestBuilder(Place(0, 0, "train"), "terms", Payload()).build(0)
    whole = json.loads(str(content.config_records["place"]["place"]))
    assert read_request(content).phase == "train"
    content.config_records["place"]["place"] = json.dumps({**whole, **place})
    with pytest.raises(ValueError, match="by whole numbers"):
        read_request(with_checksum(content))


def test_every_method_names_its_phases() -> None:
    for name in methods:
        method = methods[name]
        if method.phases is not Method.phases:
            assert "phase_names" in {key for cls in method.__mro__[:-1] if cls is not Method for key in vars(cls)}, name


@attack("A14", "Asks for scores of one round under many phases", "they count as one")
def test_scores_belong_to_no_phase(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"bounds": {"max_attempts": 1}})
    asked = request(Run(clients, SIMPLE))
    client.evaluate(asked)
    with pytest.raises(ClientError, match="asked for 1 times already"):
        client.evaluate(replace(asked, phase="another"))


@attack("A26", "Names a cohort of a million clients, which the ledger would keep", "refused; only known clients are in a sum")
def test_a_cohort_has_clients_that_are_known(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, merge(SIMPLE, SECURE)))
    with pytest.raises(ClientError, match=r"policy:peers\.trust"):
        client.answer(replace(asked, extra={"cohort": list(range(100_000)), "threshold": 70_000}))
    assert not (tmp_path / "ledger.jsonl").exists()


@attack("A14", "Asks for scores in rounds in which the recipe wants none", "refused")
@pytest.mark.parametrize(("every", "rounds"), [(0, [7]), (3, [2, 5, 7])])
def test_scores_are_given_when_the_recipe_says(clients: Clients, tmp_path: Path, every: int, rounds: list[int]) -> None:
    client = client_with(clients, tmp_path, {})
    run = Run(clients, merge(SIMPLE, {"evaluation": {"probe_every": every}, "federation": {"rounds": 8}}))
    answered = []
    for number in range(8):
        with contextlib.suppress(ClientError):
            client.evaluate(replace(request(run), round=number))
            answered.append(number)
    assert answered == rounds


@attack("A14", "Sends a harmless model to be checked, and behind it another one to be scored", "refused")
def test_scores_are_of_the_model_that_is_checked(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    encoder = {name: 1e9 * t if t.is_floating_point() else t for name, t in asked.broadcast.groups["encoder"].items()}
    crafted = replace(asked, broadcast=asked.broadcast.with_groups(encoder=encoder), routed=asked.broadcast)
    with pytest.raises(ClientError, match="this client alone was sent more"):
        client.evaluate(crafted)
    with pytest.raises(ClientError, match=r"policy:bounds\.max_weight_abs"):
        client.evaluate(replace(crafted, routed=Payload()))


@attack("A14", "Sends another model for the scores of a round, to learn more about the same samples", "refused")
def test_scores_of_a_round_are_given_for_one_model(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    assert client.evaluate(asked)["scores"] == client.evaluate(asked)["scores"]
    encoder = {name: t + 1 if t.is_floating_point() else t for name, t in asked.broadcast.groups["encoder"].items()}
    with pytest.raises(ClientError, match="were given for another model"):
        client.evaluate(replace(asked, broadcast=asked.broadcast.with_groups(encoder=encoder)))


@attack("A1", "Asks in every round for the statistics that a run needs once", "refused beyond bounds.max_attempts in all")
def test_statistics_of_the_start_are_told_once_a_run(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    method = {"name": "orchestra", "projection_dim": 8, "num_local_clusters": 2, "num_global_clusters": 2}
    run = Run(clients, merge({**SIMPLE, "method": method}, {"federation": {"rounds": 9}}))
    server = run.federation.initial_state().server
    asked = Request(0, 0, "cluster", 0, run.run_spec, run.method.broadcast(server, Place(0, 0, "cluster")))
    for number in range(3):
        client.answer(replace(asked, round=number))
    with pytest.raises(ClientError, match="asked for 3 times already"):
        client.answer(replace(asked, round=3))


@attack("A12", "Reads a function of samples off the time that an answer took", "tenths of a second are told; time-outs count")
def test_time_is_coarse_and_counts(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    seconds = client.answer(asked).stats.seconds
    assert seconds == round(seconds, 1)

    def late(*arguments: Any) -> None:
        raise RefusedError("it took too long", "resources.max_seconds_per_round")

    monkeypatch.setattr("unisono.deploy.client.run_client", late)
    with pytest.raises(ClientError, match="max_seconds_per_round"):
        client.answer(replace(asked, round=1))
    assert json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])["result"] == "failed"


@attack("A26", "Sends a specification of any length", "refused unread")
def test_a_specification_has_a_size(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    with pytest.raises(ClientError, match="at most 1048576 characters"):
        client.answer(with_spec(request(Run(clients, SIMPLE)), padding="x" * 2**20))


def test_a_server_asks_as_often_as_clients_answer() -> None:
    assert TOLERANT["federation"]["retries"] + 1 == BoundsTable().max_attempts  # type: ignore[operator]


@attack("A16", "Names a run with a text of any length, which the ledger would keep", "refused")
@pytest.mark.parametrize("name", ["x" * 65, "a b", "../up", "", 7, None])
def test_the_name_of_a_run_is_a_short_word(clients: Clients, tmp_path: Path, name: Any) -> None:
    client = client_with(clients, tmp_path, {})
    with pytest.raises(ClientError, match="the name of a run has 1 to 64"):
        client.answer(with_spec(request(Run(clients, SIMPLE)), run=name))
    if name is not None:
        with pytest.raises(UserError, match="the name of a run has 1 to 64"):
            client.describe({**question(SIMPLE), "run": name})


@attack("A16", "States other facts about the run than the recipe: rounds, or a deviation of zero", "refused")
@pytest.mark.parametrize(
    "facts",
    [{"num_rounds": 10_000}, {"num_clients": 10**9}, {"std": [0.0]}, {"std": [1e-30]}, {"mean": [1e30]}, {"mean": [None]}],
)
def test_facts_about_a_run_are_sensible(clients: Clients, tmp_path: Path, facts: dict[str, Any]) -> None:
    client = client_with(clients, tmp_path, {})
    with pytest.raises(ClientError, match=r"no sensible numbers|and the run says otherwise"):
        client.answer(with_spec(request(Run(clients, SIMPLE)), run_info={**RUN_INFO, **facts}))


@attack("A17", "Names a file of the client's machine as the encoder to start from", "refused; the file is not opened")
def test_no_file_of_the_client_is_read_for_a_server(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    tree = merge(question(SIMPLE)["config"], {"model": {"pretrained": str(tmp_path / "node.key")}})
    with pytest.raises(UserError, match=r"model\.pretrained names a file of the server"):
        client.describe({**question(SIMPLE), "config": tree})
    with pytest.raises(ClientError, match=r"model\.pretrained names a file of the server"):
        client.answer(with_spec(request(Run(clients, SIMPLE)), config=tree))


@attack("A16", "Hides options from the owner who approves a recipe, by words that control terminals", "refused")
@pytest.mark.parametrize("word", ["\x1b[2J", "a\nb", "x" * 501])
def test_words_of_a_recipe_can_be_read(clients: Clients, tmp_path: Path, word: str) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "recipe-hash"}})
    tree = merge(question(SIMPLE)["config"], {"labels": {"classes": [word]}})
    with pytest.raises(UserError, match="words of at most 500 printable"):
        client.describe({**question(SIMPLE), "config": tree})
    assert not (tmp_path / "pending").exists()


@attack("A17", "Sends a message that cannot be read, and reads paths off the traceback", "failures carry no text of an error")
@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "query.sum"])
def test_a_message_that_cannot_be_read_tells_nothing(clients: Clients, kind: str) -> None:
    bad = with_checksum(RecordDict({name: ConfigRecord({name: "{"}) for name in ("place", "terms", "question", "sum")}))
    InstantGrid(lambda message: None).push_messages([message := Message(bad, 0, kind)])
    app = make_client_app(lambda node_config: clients.handlers[0])
    content = app(message, Context(1, 0, {}, RecordDict(), {})).content
    told = {name: value for name, value in content.config_records["failure"].items() if isinstance(value, str)}
    assert told == {"reason": FAILED, "details": ""}


@attack("A17", "Asks a client to describe itself without end", "refused beyond bounds.max_descriptions a day")
def test_descriptions_are_counted_before_data_is_touched(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_with(clients, tmp_path, {"bounds": {"max_descriptions": 2}})
    first = client.describe(question(SIMPLE))
    client.describe(question(SIMPLE))
    assert len([line for line in Ledger(clients.directories[0]).intents if line["kind"] == "describe"]) in (0, 2)
    monkeypatch.setattr("unisono.deploy.client.load_client_data", lambda *arguments: pytest.fail("the data was touched"))
    with pytest.raises(UserError, match=r"policy:bounds\.max_descriptions"):
        client.describe(question(SIMPLE))
    with pytest.raises(UserError, match=r"policy:bounds\.image_size"):
        client.describe(question(merge(SIMPLE, {"data": {"image_size": 4096}})))
    assert first["samples"] == 40


@attack("A18", "Claims a threshold above the cohort, so that a client adds little of the shared noise", "refused")
def test_shared_noise_cannot_be_thinned(clients: Clients, tmp_path: Path) -> None:
    budget = {"clip_norm": 1.0, "noise_multiplier": 1.0, "distributed_noise": True}
    client = client_with(clients, tmp_path, {"budget": budget})
    tree = merge(SIMPLE, {**SECURE, "aggregation": {"weighting": "uniform"}, "model": {"norm": "group"}})
    asked = replace(request(Run(clients, tree)), extra={**MASKED, "threshold": 10**6})
    with pytest.raises(ClientError, match="refused"):
        client.answer(asked)


@attack("A18", "Names a cohort without masks, so that a client adds little of the shared noise", "all of it is added")
def test_noise_is_shared_under_masks_only(clients: Clients, tmp_path: Path) -> None:
    tree = merge(SIMPLE, {"aggregation": {"weighting": "uniform"}, "model": {"norm": "group"}})
    asked, sizes = request(Run(clients, tree)), []
    for number, extra in enumerate(({}, {**MASKED, "cohort": [0, 1, 2], "threshold": 3})):
        (tmp_path / str(number)).mkdir()
        budget = {"clip_norm": 1e-3, "noise_multiplier": 1e3, "distributed_noise": True}
        client = client_with(clients, tmp_path / str(number), {"budget": budget})
        update = client.answer(replace(asked, extra=extra)).update.payload.flatten()
        start = asked.broadcast.flatten()
        sizes.append(float(torch.cat([(update[name] - start[name]).flatten() for name in update]).std()))
    assert sizes == [pytest.approx(1.0, rel=0.15)] * 2  # half of the noise would have a size of about 0.7


@attack("A26", "Lets local states pile up within a run", "refused beyond resources.max_state")
def test_states_are_measured_in_every_round(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"resources": {"max_state": "1KiB"}})
    asked = request(Run(clients, SIMPLE))
    client.answer(asked)
    (next((tmp_path / "states").iterdir()) / "000000-000000.payload").write_bytes(bytes(2048))
    with pytest.raises(ClientError, match=r"policy:resources\.max_state"):
        client.answer(replace(asked, round=1))


@attack(
    "A13", "Sends tensors of other names, shapes or types than the method's, to see what fails", "one code for all; counted"
)
@pytest.mark.parametrize("change", ["shape", "type", "extra", "missing"])
def test_odd_tensors_tell_nothing(clients: Clients, tmp_path: Path, change: str) -> None:
    client = client_with(clients, tmp_path, {})
    asked = request(Run(clients, SIMPLE))
    group, tensors = next((name, dict(tensors)) for name, tensors in asked.broadcast.groups.items())
    name = next(iter(tensors))
    changed: dict[str, Any] = {
        "shape": {**tensors, name: torch.zeros(3)},
        "type": {**tensors, name: tensors[name].to(torch.int64)},
        "extra": {**tensors, "more": torch.zeros(3)},
        "missing": {key: tensor for key, tensor in tensors.items() if key != name},
    }
    with pytest.raises(ClientError) as caught:
        client.answer(replace(asked, broadcast=asked.broadcast.with_groups(**{group: changed[change]})))
    assert (caught.value.reason, caught.value.details) == (FAILED, "")
    assert [line["result"] for line in map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())][-1] == "failed"


@attack("B11", "Writes lines of its own into a client's log", "one line of 300 characters, quoted")
def test_the_servers_words_stay_one_line(clients: Clients, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "unisono.client"):
        assert clients.handlers[0].describe({"told": "left out\n2027 INFO client 0: all is well\x1b[2J" + "x" * 10_000}) == {}
    assert len(caplog.messages) == 1
    assert "\n" not in caplog.messages[0]
    assert "\x1b" not in caplog.messages[0]
    assert len(caplog.messages[0]) < 350


def test_payloads_without_anything_are_refused_as_failures(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {})
    with pytest.raises(ClientError, match="its own log says why"):
        client.answer(replace(request(Run(clients, SIMPLE)), broadcast=Payload()))


@pytest.mark.parametrize("backbone", ["resnet18", "cct-2-3x2"])
def test_weights_are_counted_without_the_compiler(backbone: str) -> None:
    """To draw numbers for tensors without memory, torch would import it, which takes a client seconds."""
    code = (
        "import sys; from unisono.deploy.bounds import num_parameters; from unisono.testing.tiny import TinyFederation; "
        f"method = TinyFederation('simclr', over={{'model': {{'backbone': '{backbone}'}}}}).method; "
        "number = num_parameters(method); has_compiler = 'torch._dynamo' in sys.modules; "
        "expected = sum(tensor.numel() for tensor in method.build_networks().state_dict().values()); "
        "sys.exit(has_compiler or number != expected)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
