"""Recipes that wait for a client's owner, and what the owner decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.attacks import attack
from tests.deploy.test_client import SIMPLE, Clients, Run, question, request
from tests.deploy.test_policy import client_with
from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.errors import ClientError, UserError
from unisono.deploy.approvals import MOST_WAITING, Approvals, recipe_hash
from unisono.deploy.directories import ClientDirectory

OTHER = merge(SIMPLE, {"training": {"learning_rate": 0.02}})


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    return Clients(tmp_path_factory.mktemp("clients"))


def approvals_of(path: Path, today: date = date(2026, 11, 18)) -> Approvals:
    return Approvals(ClientDirectory.open(path), lambda: today)


def test_a_recipe_waits_until_it_is_approved_and_a_changed_one_waits_again(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "recipe-hash"}, "log": {"errors": "codes"}})
    run = Run(clients, SIMPLE)
    with pytest.raises(ClientError, match="pending: waits for its owner: unisono deploy approve"):
        client.answer(request(run))
    with pytest.raises(UserError, match="pending"):
        client.describe(question(run.config.as_tree()))
    book = approvals_of(tmp_path)
    (entry,) = book.waiting()
    assert (entry["method"], entry["rounds"], entry["masked"]) == ("simclr", 2, False)
    assert entry["leaves"]["encoder"] == ["parameters", "mean"]
    assert book.decide(entry["recipe"][:6], "approve") == entry["recipe"]
    assert book.waiting() == []
    assert client.answer(request(run)).update
    assert client.describe(question(run.config.as_tree()))["samples"] == 40
    changed = Run(clients, OTHER)
    with pytest.raises(ClientError, match="pending"):
        client.answer(replace(request(changed), run_spec=changed.run_spec.replace("run-1", "run-2")))
    (other,) = approvals_of(tmp_path).waiting()
    assert approvals_of(tmp_path).differences(other["config"]) == ["training.learning_rate: 0.003 -> 0.02"]


@attack("A26", "Fills the disk with recipes that wait for the owner", "20 are kept; the others are refused and forgotten")
def test_few_recipes_are_kept_for_the_owner(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "recipe-hash"}})
    for number in range(MOST_WAITING + 2):
        with pytest.raises(UserError, match="pending"):
            client.describe(question(merge(SIMPLE, {"training": {"learning_rate": 0.01 + number / 1000}})))
    assert len(approvals_of(tmp_path).waiting()) == MOST_WAITING


def test_denied_is_denied_whatever_the_mode(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "recipe-hash"}})
    run = Run(clients, SIMPLE)
    with pytest.raises(ClientError):
        client.answer(request(run))
    book = approvals_of(tmp_path)
    recipe = book.waiting()[0]["recipe"]
    book.decide(recipe, "approve")
    book.decide(recipe, "deny")
    for mode in ("recipe-hash", "always"):
        with pytest.raises(ClientError, match=r"policy:allow\.approve: the owner has denied"):
            client_with(clients, tmp_path, {"allow": {"approve": mode}}).answer(request(run))


def test_each_run_waits_and_a_run_that_was_approved_goes_on(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "each"}})
    run = Run(clients, SIMPLE)
    first = request(run)
    second = replace(first, run_spec=run.run_spec.replace("run-1", "run-2"))
    with pytest.raises(ClientError, match="pending"):
        client.answer(first)
    recipe = approvals_of(tmp_path).waiting()[0]["recipe"]
    for asked in (first, second):
        with pytest.raises(ClientError, match="pending"):
            client.answer(asked)
        approvals_of(tmp_path).decide(recipe, "approve")
        client.answer(asked)
        client.answer(replace(asked, round=1))


def test_an_approval_ends_with_its_day_and_its_number_of_runs(clients: Clients, tmp_path: Path) -> None:
    client = client_with(clients, tmp_path, {"allow": {"approve": "recipe-hash"}})
    run = Run(clients, SIMPLE)
    with pytest.raises(ClientError):
        client.answer(request(run))
    recipe = approvals_of(tmp_path).waiting()[0]["recipe"]
    approvals_of(tmp_path).decide(recipe, "approve", until="2020-01-01")
    with pytest.raises(ClientError, match="pending"):
        client.answer(request(run))
    approvals_of(tmp_path).decide(recipe, "approve", runs=2)
    for number in range(2):
        client.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", f"n-{number}")))
    with pytest.raises(ClientError, match="pending"):
        client.answer(replace(request(run), run_spec=run.run_spec.replace("run-1", "n-3")))


def test_mistakes_of_the_owner_are_sentences(clients: Clients, tmp_path: Path) -> None:
    client_with(clients, tmp_path, {})
    book = approvals_of(tmp_path)
    for arguments, words in (
        (("3f9a", "approve"), "begins no recipes. Known: none"),
        (("", "deny"), "Known: none"),
        (("3f9a", "approve", 0), "--runs must be at least 1"),
        (("3f9a", "approve", None, "tomorrow"), "--until must be a day"),
    ):
        with pytest.raises(UserError, match=words):
            book.decide(*arguments)  # type: ignore[arg-type]


def test_an_approval_is_of_the_options_and_of_the_code_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(SIMPLE)
    approved = recipe_hash(config)
    assert recipe_hash(resolve(merge(SIMPLE, {"run": {"seed": 7}}))) == approved
    assert recipe_hash(resolve(merge(SIMPLE, {"training": {"momentum": 0.5}}))) != approved
    with monkeypatch.context() as patch:
        patch.setattr("unisono.deploy.approvals.__version__", "another")
        assert recipe_hash(config) != approved
    with monkeypatch.context() as patch:
        patch.setattr(config.method_class, "__module__", "another.package")
        assert recipe_hash(config) != approved
