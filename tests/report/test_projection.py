from __future__ import annotations

import numpy as np
import pytest

from unisono.report.projection import chosen_projection, principal_components, project, turned_onto


def test_a_turn_and_a_mirror_are_undone_exactly() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=(20, 2))
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1.0, -1.0])
    np.testing.assert_allclose(turned_onto(target @ turn + 3.0, target), target, atol=1e-9)


def test_a_turn_bends_nothing() -> None:
    rng = np.random.default_rng(0)
    places, target = rng.normal(size=(2, 15, 2))
    turned = turned_onto(places, target)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.testing.assert_allclose(np.linalg.norm(turned[:, None] - turned[None], axis=2), distances, atol=1e-9)


def test_principal_components_are_those_of_the_covariance() -> None:
    values = np.random.default_rng(0).normal(size=(50, 4)) * [5.0, 3.0, 1.0, 0.1]
    found = principal_components(values, 3)
    np.testing.assert_allclose(found.var(axis=0), np.sort(np.linalg.eigvalsh(np.cov(values.T, bias=True)))[::-1][:3])
    np.testing.assert_array_equal(found, principal_components(values.copy(), 3))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 1), (7, 1), (30, 3)])
def test_any_number_of_points_has_places(shape: tuple[int, int]) -> None:
    features = [np.random.default_rng(seed).normal(size=shape) for seed in range(3)]
    places = project(features, "pca", 0)
    assert [part.shape for part in places] == [(shape[0], 2)] * 3
    assert all(np.isfinite(part).all() and part.min() >= 0 and part.max() <= 1 for part in places)


def test_features_that_are_not_finite_are_no_obstacle() -> None:
    features = np.ones((5, 3))
    features[0] = np.nan
    assert np.isfinite(project([features], "pca", 0)[0]).all()


def test_groups_stay_apart_and_in_place_over_rounds() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 30)
    features = [np.eye(8)[group] + 0.05 * rng.normal(size=(90, 8)) for _ in range(2)]
    for kind in ("pca", "tsne"):
        first, last = project(features, kind, 0)
        centres = np.stack([last[group == number].mean(axis=0) for number in range(3)])
        for places in (first, last):
            nearest = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(axis=1)
            np.testing.assert_array_equal(nearest, group)


def test_few_points_are_left_to_pca() -> None:
    assert chosen_projection("auto", 499) == "pca"
    assert chosen_projection("auto", 500) == "tsne"
    assert chosen_projection("tsne", 9) == "pca"
    assert chosen_projection("pca", 2000) == "pca"
