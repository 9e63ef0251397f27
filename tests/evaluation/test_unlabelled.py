"""Numbers that need no labels against closed forms, and the sentences they lead to."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torch import Tensor, nn

from unisono.core.client_data import as_float
from unisono.core.context import Context
from unisono.evaluation.config import EvaluationConfig
from unisono.evaluation.floors import PCA, PIXELS, UNTRAINED
from unisono.evaluation.probe_data import ProbeData
from unisono.evaluation.probes import run_probes
from unisono.evaluation.truth import tell
from unisono.evaluation.unlabelled import effective_rank, kappa, mean_cosine, own_site_share, view_agreement


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_views_of_a_sample_find_each_other() -> None:
    features = draw(50, 16)
    assert view_agreement(features, 3 * features) == 1  # lengths do not matter
    assert view_agreement(features, features.roll(1, dims=0)) == 0
    assert view_agreement(torch.ones(50, 16), torch.ones(50, 16)) == pytest.approx(1 / 50)
    half = features.clone()
    half[::2] = features[::2].roll(1, dims=0)
    assert view_agreement(features, half) == 0.5


def test_effective_rank_counts_the_dimensions() -> None:
    axes = torch.eye(8)[:, :8]
    both = torch.cat((axes[:4], -axes[:4]))  # four directions of the same spread
    assert effective_rank(both) == pytest.approx(4)
    assert effective_rank(torch.ones(9, 5)) == 0
    line = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]])
    assert effective_rank(line) == pytest.approx(1)
    uneven = torch.tensor([[1.0, 0.0], [-1.0, 0.0]] * 9 + [[0.0, 1.0], [0.0, -1.0]])
    shares = [math.sqrt(18), math.sqrt(2)]
    shares = [value / sum(shares) for value in shares]
    assert effective_rank(uneven) == pytest.approx(math.exp(-sum(share * math.log(share) for share in shares)))


def test_mean_cosine_is_that_of_all_pairs() -> None:
    features = draw(12, 4)
    similar = nn.functional.normalize(features, dim=1) @ nn.functional.normalize(features, dim=1).T
    pairs = [float(similar[i, j]) for i in range(12) for j in range(12) if i != j]
    assert mean_cosine(features) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert mean_cosine(torch.ones(7, 3)) == pytest.approx(1)


def test_every_site_counts_the_same() -> None:
    sites = torch.tensor([0] * 90 + [1] * 30)
    apart = torch.nn.functional.one_hot(sites).float() + 0.01 * draw(120, 2)
    assert own_site_share(apart, sites) == 1
    mixed = own_site_share(draw(120, 20), sites)
    assert mixed == pytest.approx((120 - 2) / (2 * (120 - 1)), abs=0.1)  # chance, though one site has most of the samples


def test_kappa_is_cohens() -> None:
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(5, (300,), generator=generator)
    second = torch.where(torch.rand(300, generator=generator) < 0.5, first, torch.randint(5, (300,), generator=generator))
    assert kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))
    assert kappa(first, first) == 1
    assert kappa(torch.zeros(9, dtype=torch.long), torch.zeros(9, dtype=torch.long)) == 0


class Shapes(nn.Module):
    """Features that see the shape and not the style: what a good encoder would do."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x - x.mean(dim=(1, 2, 3), keepdim=True)
        return (rows / rows.std(dim=(1, 2, 3), keepdim=True)).flatten(1)


class Style(nn.Module):
    """Features that see the brightness of a corner alone, as an encoder that has learnt its camera."""

    def forward(self, x: Tensor) -> Tensor:
        corner = x[:, 0, 0, 0]
        return torch.stack((torch.cos(9 * corner), torch.sin(9 * corner)), dim=1)


class Same(nn.Module):
    """The same features for all."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 4)


class Chance(nn.Module):
    """Clusters by a digit that every view changes."""

    def forward(self, x: Tensor) -> Tensor:
        cluster = (x.sum(dim=(1, 2, 3)) * 1e5).long() % 3
        return nn.functional.one_hot(cluster, 3).float()


@pytest.fixture(scope="module")
def data() -> ProbeData:
    """Four shapes with noise of their own, by two sites whose corner is dark or bright."""
    generator = torch.Generator().manual_seed(1)
    shapes = torch.rand(4, 1, 8, 8, generator=generator)
    images = 0.6 * shapes[torch.arange(240) % 4] + 0.3 * torch.rand(240, 1, 8, 8, generator=generator)
    sites = (torch.arange(240) // 4) % 2
    images[:, 0, 0, 0] = 0.45 + 0.1 * sites
    samples = (images * 255).round().to(torch.uint8)
    return ProbeData(samples, None, samples[:0], None, sites=sites)


def brighter(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return two views of other brightness and contrast."""
    first, second = (
        0.2 * torch.rand(len(x), 1, 1, 1, generator=generator) + x * (0.2 + torch.rand(len(x), 1, 1, 1, generator=generator))
        for _ in range(2)
    )
    for view in (first, second):
        view[:, 0, 0, 0] = x[:, 0, 0, 0]
    return first, second


def probed(data: ProbeData, encoder: nn.Module, clusters: nn.Module | None = None) -> dict[str, float]:
    config = EvaluationConfig(probes=("unlabelled",), kmeans_clusters=4)
    return run_probes(config, encoder, clusters, data, Context(0), brighter, previous_encoder=encoder)


@pytest.fixture(scope="module")
def floors(data: ProbeData) -> dict[str, dict[str, float]]:
    pixels = probed(data, nn.Flatten())
    return {PIXELS: pixels, PCA: pixels, UNTRAINED: {**pixels, "view-agreement": 0.3}}


def test_a_good_encoder_is_told_from_pixels(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    numbers = probed(data, Shapes())
    truth = tell(numbers, floors)
    assert truth.warnings == ()
    assert truth.sentences[0].startswith("Something was learnt: two views of an image find each other")
    assert "come from its own site" in truth.sentences[1]
    assert numbers["kmeans-stability"] == 1  # the same encoder before and after
    assert numbers["kmeans-agreement"] > 0.9
    assert probed(data, Shapes()) == numbers  # the same draws again


def test_pixels_have_learnt_nothing(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    pixels = floors[PIXELS]
    (warning,) = tell(pixels, {**floors, UNTRAINED: pixels}).warnings
    assert warning.startswith("Nothing was learnt that pixels or untrained weights do not show")
    for share, learnt in ((0.7, True), (0.95, False)):
        untrained = {**pixels, "view-agreement": share * pixels["view-agreement"]}
        told = tell(pixels, {**floors, UNTRAINED: untrained})
        assert told.sentences[0].startswith("Something was learnt, though by views no more than pixels show") == learnt
        assert bool(told.warnings) != learnt


def test_few_images_are_no_collapse() -> None:
    """Two images span one dimension, however far apart they are."""
    numbers = {"view-agreement": 1.0, "effective-rank": 1.0, "mean-cosine": 0.357}
    floors = {PIXELS: {**numbers, "mean-cosine": 0.83}, UNTRAINED: {**numbers, "mean-cosine": 0.68}}
    assert not any("collapsed" in warning for warning in tell(numbers, floors).warnings)
    spread = {name: {**floor, "effective-rank": 30.0} for name, floor in floors.items()}
    assert any("collapsed" in warning for warning in tell(numbers, spread).warnings)


def test_a_collapse_is_warned_of(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    numbers = probed(data, Same())
    assert numbers["effective-rank"] == 0
    assert any("The encoder has collapsed" in warning for warning in tell(numbers, floors).warnings)
    before = {**floors, UNTRAINED: {**floors[UNTRAINED], "effective-rank": 60.0, "mean-cosine": 0.6}}
    for rank, cosine, warned in ((24.0, 0.93, True), (40.0, 0.93, False), (24.0, 0.7, False)):
        some = {**floors[PIXELS], "effective-rank": rank, "mean-cosine": cosine}
        assert any("collapsed" in warning for warning in tell(some, before).warnings) == warned
    alike = {name: {**scores, "mean-cosine": 0.999} for name, scores in floors.items()}
    assert any("so are the images" in warning for warning in tell(numbers, alike).warnings)


def test_an_encoder_of_sites_is_warned_of(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    numbers = probed(data, Style())
    assert numbers["own-site"] == 1
    assert floors[PIXELS]["own-site"] < 0.7
    assert any("learnt to tell the sites apart" in warning for warning in tell(numbers, floors).warnings)
    for pixels, untrained, own, warned in (
        (0.9, 0.9, 0.94, False),
        (0.9, 0.9, 0.96, True),
        (0.9, 0.95, 0.96, False),
        (0.5, 0.5, 0.69, False),
        (0.5, 0.5, 0.71, True),
    ):
        levels = {PIXELS: pixels, PCA: pixels, UNTRAINED: untrained}
        known = {name: {**scores, "own-site": levels[name]} for name, scores in floors.items()}
        warnings = tell({**numbers, "own-site": own}, known).warnings
        assert any("sites apart" in warning for warning in warnings) == warned, (pixels, untrained, own)


def test_clusters_at_chance_are_warned_of(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    numbers = probed(data, Shapes(), Chance())
    assert abs(numbers["cluster-agreement"]) < 0.1
    assert any("The clusters are at chance" in warning for warning in tell(numbers, floors).warnings)
    torch.manual_seed(0)
    good = probed(data, Shapes(), nn.Sequential(Shapes(), nn.Linear(64, 4)))
    assert good["cluster-agreement"] > 0.5
    assert tell(good, floors).warnings == ()


def test_clusters_that_are_empty_or_restless_are_warned_of(floors: dict[str, dict[str, float]]) -> None:
    fine = {"view-agreement": 0.9, "effective-rank": 9.0, "mean-cosine": 0.1, "cluster-agreement": 0.8}
    assert tell({**fine, "cluster-balance": 0.9, "stability": 0.8}, floors).warnings == ()
    (empty,) = tell({**fine, "cluster-balance": 0.1, "stability": 0.8}, floors).warnings
    assert "empty but for a few" in empty
    (restless,) = tell({**fine, "cluster-balance": 0.9, "stability": 0.05}, floors).warnings
    assert "still change from round to round" in restless


def test_views_that_change_nothing_tell_nothing(data: ProbeData, floors: dict[str, dict[str, float]]) -> None:
    config = EvaluationConfig(probes=("unlabelled",), kmeans_clusters=4)
    numbers = run_probes(config, nn.Flatten(), None, data, Context(0), lambda x, _: (as_float(x), as_float(x)))
    assert numbers["view-agreement"] == 1
    assert "cannot be told by views" in tell(numbers, {PIXELS: numbers}).sentences[0]
    assert tell({"linear": 0.5}, floors).sentences == ()
