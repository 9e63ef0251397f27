"""Every check of the contract passes a sound method and fails a broken one, with a sentence that says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from tests.testing import broken
from unisono.core.errors import UserError
from unisono.core.method import Method
from unisono.engines.devices import threads
from unisono.testing import CHECKS, CheckResult, check_method, parametrize_with_checks

SENTENCES = {
    "summary": "the class has no docstring",
    "config_kept": "self.config is not the table that the method was given",
    "defaults": "veiws",
    "pickles": "pickle",
    "network_roles": "NetworkRoles: the network 'head' of build_networks has no role",
    "loss": 'Loss.loss returned a tuple; return a scalar tensor, or a dict with a scalar "loss".',
    "training_changes_the_server": "three rounds left the server state as it was",
    "shares": "shares declares secrets, and no client sent that",
    "inputs_are_read_only": "client_step wrote into encoder/1.bias of received",
    "messages_as_bytes": "the update is another when the step is repeated",
    "client_isolation": "the update is another on fresh networks; load every network",
    "global_randomness": "client_step drew from the global generator of torch",
    "seed": "two seeds give the same state",
    "workers": "1 worker processes give another end state than none",
    "failing_client": "one is missing",
    "single_samples": "SingleSamples.loss returned nan for the first batch",
    "resume": "a resumed run ends with another server state",
    "encoder": "encoder returned a module in train mode",
    "projector": "projector does not take the encoder's features, (5, 4)",
}


def broken_method(check: str) -> type[Method]:
    found: type[Method] = getattr(broken, "".join(word.capitalize() for word in check.split("_")))
    return found


def test_there_is_a_broken_method_for_every_check() -> None:
    assert set(SENTENCES) == set(CHECKS)


@parametrize_with_checks([broken.Sound], options={"method": {"scale": 0.5}})
def test_a_sound_method_passes(method: type[Method], check: Callable[[type[Method]], None]) -> None:
    check(method)


@pytest.mark.parametrize("name", CHECKS)
def test_a_broken_method_fails(name: str) -> None:
    (result,) = check_method(broken_method(name), only=[name])
    assert not result.passed
    assert SENTENCES[name] in result.message
    assert "\n" not in result.message
    assert result.summary.endswith(".")


def test_results_come_in_order_and_as_soon_as_they_are_there() -> None:
    seen: list[CheckResult] = []
    names = ["defaults", "summary"]
    results = check_method("simclr", only=names, on_result=seen.append)
    assert results == seen
    assert [result.name for result in results] == names
    assert all(result.passed and result.message == "" for result in results)


@parametrize_with_checks([broken.Encoder], expected_failures={"encoder": "it is meant to"})
def test_expected_failures_are_expected(method: type[Method], check: Callable[[type[Method]], None]) -> None:
    check(method)


def test_what_cannot_be_checked_is_said_in_a_sentence() -> None:
    class Hidden(broken.Sound):
        """Cannot be imported."""

    with pytest.raises(UserError, match="Hidden must be defined at the top of a module"):
        check_method(Hidden)
    with pytest.raises(UserError, match="There is no check 'los'. Did you mean 'loss'?"):  # noqa: RUF043
        check_method(broken.Sound, only=["los"])
    with pytest.raises(UserError, match="There is no method 'simclrr'"):
        check_method("simclrr")


def test_only_the_decorator_imports_pytest() -> None:
    code = "import sys; from unisono.testing import check_method; check_method('simclr', only=['summary']); "
    code += "assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checks_do_not_depend_on_the_number_of_threads() -> None:
    """The engines use one thread, and so must steps that a check calls itself: two threads add in another order."""
    with threads(2):
        results = check_method("simclr", only=("messages_as_bytes", "client_isolation"))
        assert torch.get_num_threads() == 2
    assert [result.message for result in results] == ["", ""]
