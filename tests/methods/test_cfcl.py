from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unisono.config import resolve
from unisono.core.config import merge
from unisono.core.context import Context
from unisono.core.method import RunInfo
from unisono.federation.declared import check_consent
from unisono.losses.contrastive import nt_xent
from unisono.methods.cfcl import CFCL
from unisono.methods.local_training import Batch
from unisono.recipes import build_tree, list_recipes
from unisono.studies.runner import comparable
from unisono.testing.tiny import tiny_config, tiny_method

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def make(over: dict[str, Any] | None = None) -> CFCL:
    method = tiny_method(tiny_config("cfcl", merge({"model": {"backbone": "cfcl-cnn"}}, {"method": over or {}})))
    assert isinstance(method, CFCL)
    return method


def batch(x: Tensor = X) -> Batch:
    return Batch(x, torch.arange(len(x)), None)


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("normalize", [False, True])
def test_triplet_loss_naively(normalize: bool) -> None:
    method = make({"normalize": normalize, "margin": 0.3})
    nets = method.build_networks()
    found = method.loss(nets, batch(), rng())
    generator = rng()
    views = method.views.first(X, generator)
    shift = int(torch.randint(1, 6, (), generator=generator))
    z, z_view = nets["encoder"](X), nets["encoder"](views)
    if normalize:
        z, z_view = F.normalize(z, dim=1), F.normalize(z_view, dim=1)
    losses = []
    for row in range(6):
        negative = z[(row - shift) % 6]
        near, far = (z[row] - z_view[row]).square().sum(), (z[row] - negative).square().sum()
        losses.append(max(0.0, float((near - far + 0.3).detach())))
    assert 1 <= shift <= 5, "the negative is another sample"
    assert float(found["loss"].detach()) == pytest.approx(sum(losses) / 6, rel=1e-4)
    assert float(found["active"]) == pytest.approx(sum(loss > 0 for loss in losses) / 6)


def test_every_other_sample_may_be_the_negative() -> None:
    method = make({"margin": 0.0, "normalize": False})
    nets = method.build_networks()
    seen = set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        method.views.first(X, generator)
        seen.add(int(torch.randint(1, 6, (), generator=generator)))
        method.loss(nets, batch(X[:2]), torch.Generator().manual_seed(seed))
    assert seen == {1, 2, 3, 4, 5}


def test_simclr_in_its_place() -> None:
    method = make({"loss": "simclr", "temperature": 0.2})
    nets = method.build_networks()
    assert set(nets) == set(method.shared_networks) == {"encoder", "projector"}
    z_a, z_b = nets["projector"](nets["encoder"](torch.cat(method.views.pair(X, rng())))).chunk(2)
    torch.testing.assert_close(method.loss(nets, batch(), rng())["loss"], nt_xent(z_a, z_b, 0.2))


def test_embeddings_are_those_of_the_loss() -> None:
    plain, normal, simclr = make({"normalize": False}), make(), make({"loss": "simclr"})
    nets = simclr.build_networks()
    torch.testing.assert_close(plain.represent(nets, X), nets["encoder"](X))
    torch.testing.assert_close(normal.represent(nets, X), F.normalize(nets["encoder"](X), dim=1))
    torch.testing.assert_close(simclr.represent(nets, X), F.normalize(nets["projector"](nets["encoder"](X)), dim=1))


def test_networks_follow_the_loss() -> None:
    assert set(make().build_networks()) == {"encoder"}
    assert make().shared_networks == ("encoder",)


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("cfcl/")])
def test_recipes_are_allowed_and_fit_the_images(name: str) -> None:
    config = resolve(build_tree(name))
    info = RunInfo((1, 28, 28), (0.5,), (0.25,), 10, 10, config.federation.rounds, config.method_sections)
    method = config.method_class(config.method, info)
    assert isinstance(method, CFCL)
    check_consent(method.shares, config.consent)
    server = method.init_server(Context(0))
    small = name == "cfcl/fashion-mnist-small"
    assert sum(tensor.numel() for tensor in server.groups["encoder"].values()) == (93_344 if small else 45_666)
    steps = 2350 if name == "cfcl/received" else 600 if small else 400 if "mini" in name else 2500
    assert config.federation.rounds * (config.training.local_steps or 0) == steps


def test_the_papers_recipe_has_the_papers_numbers() -> None:
    """Section IV: Adam with a learning rate of 10^-4, the three views, T_a, T_p, reserve, candidates, clusters, lambda."""
    paper, mini = (resolve(build_tree(f"cfcl/{name}")) for name in ("fashion-mnist", "fashion-mini"))
    for config in (paper, mini):
        assert (config.training.optimizer, config.training.learning_rate) == ("adam", 1e-4)
        assert config.views.preset == "cfcl"
        assert not config.method.normalize
        assert not config.method.pull_at_start
        assert (config.training.local_steps, config.method.aggregation_steps) == (10, 50)
        assert config.method.negatives == "union"
        assert config.method.importance_temperature == (4.0, 10.0)
        assert config.method.num_clusters == 4
    assert (paper.method.num_reserve, paper.method.num_candidates) == (500, 1000)
    assert (mini.method.num_reserve, mini.method.num_candidates, mini.method.points_per_pull) == (80, 160, 50)


def test_ours_differs_from_the_papers_by_what_it_says() -> None:
    for name in ("fashion-mnist", "fashion-mini"):
        paper, ours = (comparable(resolve(build_tree(f"cfcl/{name}{end}")).as_tree()) for end in ("", "-ours"))
        changed = {option for option in paper if paper[option] != ours[option]}
        assert changed == {"method.normalize", "method.pull_at_start", "views.preset", "training.learning_rate"}
