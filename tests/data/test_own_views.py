"""Views by a function of the user's own: what it is given, what it may return, and where it runs."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unisono.config import resolve
from unisono.core.errors import UserError
from unisono.data.views import ViewsConfig, make_views
from unisono.testing.tiny import TinyFederation, same_bits

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NOISE = """
import torch
calls = []
def mine(batch, generator):
    calls.append(len(batch))
    return (batch + 0.1 * torch.rand(batch.shape, generator=generator)).clamp(0, 1)
"""
Write = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path) -> Write:
    """Writes a file and returns the name of the function ``mine`` in it."""

    def write(source: str = NOISE) -> str:
        file = tmp_path / "own.py"
        file.write_text(source)
        return f"{file}:mine"

    return write


def returning(expression: str) -> str:
    return f"import torch\ndef mine(batch, generator):\n    return {expression}\n"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(3, 8, 8), (6, 50)])
def test_it_is_called_once_for_each_view(own: Write, shape: tuple[int, ...]) -> None:
    name = own()
    views, x = make_views(ViewsConfig(preset=name), shape), torch.rand(4, *shape)
    first, second = views.pair(x, generator())
    assert first.shape == second.shape == x.shape
    assert not torch.equal(first, second)
    draws = generator()
    for view in (first, second):
        torch.testing.assert_close(view, (x + 0.1 * torch.rand(x.shape, generator=draws)).clamp(0, 1))
    assert torch.equal(views.first(x, generator()), first)
    assert torch.equal(views.second(x, generator()), first)


def test_it_may_change_its_batch_in_place(own: Write) -> None:
    views, x = make_views(ViewsConfig(preset=own(returning("batch.mul_(0.5)"))), (1, 4, 4)), torch.rand(2, 1, 4, 4)
    before = x.clone()
    first, second = views.pair(x, generator())
    assert torch.equal(x, before)
    torch.testing.assert_close(first, before / 2)
    torch.testing.assert_close(second, before / 2)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("batch[:, :, 1:]", r"must return the shape of its batch, \(2, 1, 8, 8\), got \(2, 1, 7, 8\)"),
        ("batch.double()", r"must return torch.float32 on cpu as its batch is, got torch.float64 on cpu"),
        ("batch.numpy()", r"must return a tensor, got ndarray"),
        ("None", r"must return a tensor, got NoneType"),
        ("batch / 0 * 0", r"returned NaN or infinite values"),
        ("255 * batch", r"returned values from .* to 2.*; images stay in \[0, 1\], so end it with .clamp\(0, 1\)"),
        (
            "torch.rand_like(batch)",
            r"returned two different batches for one state of the generator: it must draw from",
        ),
        ("batch + missing", r"failed: line 3: NameError: name 'missing' is not defined"),
    ],
)
def test_what_it_must_not_return(own: Write, expression: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^views.preset '.*own.py:mine' {message}") as caught:
        make_views(ViewsConfig(preset=own(returning(expression))), (1, 8, 8))
    assert "\n" not in str(caught.value)


def test_series_may_have_any_values(own: Write) -> None:
    views = make_views(ViewsConfig(preset=own(returning("100 * batch"))), (3, 20))
    assert torch.equal(views.first(torch.ones(2, 3, 20), generator()), torch.full((2, 3, 20), 100.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py:mine", r"The views.preset '.*/absent.py:mine' cannot be imported: there is no file .*absent.py"),
        ("own.py:other", r"The views.preset '.*/own.py:other' does not exist: .*own.py has no 'other'"),
        ("own.py:calls", r"views.preset '.*own.py:calls' must be a function of a batch and a generator, got list"),
        ("own.py", r"A views.preset is written package.module:NAME or path/to/file.py:NAME, got '.*own.py'"),
        ("nowhere.module:mine", r"The views.preset 'nowhere.module:mine' cannot be imported: No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_found(own: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    own()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{message}"):
        make_views(ViewsConfig(preset=name), (1, 8, 8))


def test_numbers_of_presets_have_no_meaning_for_it(own: Write) -> None:
    with pytest.raises(UserError, match=r"views.rotation has no meaning for views.preset .* which is your own code"):
        make_views(ViewsConfig(preset=own(), rotation=10.0), (1, 8, 8))


def test_the_config_keeps_its_full_path(own: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = own()
    monkeypatch.chdir(tmp_path)
    config = resolve({"method": {"name": "simclr"}, "views": {"preset": "own.py:mine"}})
    assert config.as_tree()["views"]["preset"] == name
    assert resolve(config.as_tree()).views == config.views


def test_it_travels_by_name(own: Write) -> None:
    views, x = make_views(ViewsConfig(preset=own()), (1, 8, 8)), torch.rand(2, 1, 8, 8)
    content = pickle.dumps(views)
    assert b"own.py:mine" in content
    assert torch.equal(pickle.loads(content).first(x, generator()), views.first(x, generator()))


def test_workers_use_it_however_they_are_started(own: Write) -> None:
    table = {"views": {"preset": own()}}
    here = TinyFederation("simclr", over=table).run(until=1)
    assert not same_bits(here, TinyFederation("simclr").run(until=1))
    for start_method in ("fork", "spawn"):
        over = {**table, "engine": {"start_method": start_method}}
        assert same_bits(TinyFederation("simclr", workers=2, over=over).run(until=1), here)


def test_the_example_of_the_page_works(own: Write) -> None:
    source = next(text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL) if "speckle" in text)
    name = own(source).replace(":mine", ":speckle")
    x = torch.full((4, 1, 16, 16), 0.5)
    views = make_views(ViewsConfig(preset=name), (1, 16, 16)).first(x, generator())
    assert float((views / x).std()) == pytest.approx(0.2, abs=0.02)
