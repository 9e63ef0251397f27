import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_partition import balanced_labels, partition_of
from unisono.core.errors import UserError
from unisono.data.dirichlet import log_gamma_draws, normalised
from unisono.data.partition import PartitionConfig, make_partition
from unisono.data.partitioners.dirichlet import balance, round_shares


def mean_classes_per_client(num_clients, num_classes, alpha, num_seeds, least=1.0):
    """Average number of classes with at least this many samples, over clients and seeds, on the labels of CIFAR.

    A number below 1 is a share of the client's samples.
    """
    labels, found = balanced_labels(num_classes, 50_000 // num_classes), []
    for seed in range(num_seeds):
        partition = partition_of("dirichlet", labels, num_clients, seed, alpha=alpha)
        threshold = least * partition.sizes[:, None] if least < 1 else least
        found.append((partition.class_counts(labels) >= threshold).sum(dim=1).float().mean())
    return float(torch.stack(found).mean())


# Orchestra's Table 4 is one draw; these are means over seeds. Its rows for 10 silos hold eighths (6.25, 48.63) and come out
# with 8. What it calls 1% is 11 samples in those rows (35.5).
# Not reproduced: 3.13 (CIFAR-10, 0.1, 1%; here 3.8) and 4.87 (CIFAR-10, silos, 1%; here 4.3, or 5.2 with 11 samples), and for
# CIFAR-100 at 0.001 the pair 3.56, 2.13: here 2.2 classes have a sample and 1.9 have 1%, as with the paper's public code.
@pytest.mark.parametrize(
    ("num_clients", "num_classes", "alpha", "least", "expected"),
    [
        (100, 10, 1e-3, 1, 1.08),
        (100, 10, 1e-3, 0.01, 1.05),
        (100, 10, 0.1, 1, 4.69),
        (100, 10, 1e5, 1, 10),
        (100, 10, 1e5, 0.01, 10),
        (100, 100, 0.1, 1, 29.3),
        (100, 100, 0.1, 0.01, 17.92),
        (100, 100, 1e5, 1, 100),
        (100, 100, 1e5, 0.01, 100),
        (8, 10, 0.1, 1, 6.25),
        (8, 10, 1e5, 0.01, 10),
        (8, 100, 0.1, 1, 48.63),
        (8, 100, 0.1, 11, 35.5),
        (10, 100, 0.1, 1, 48.63),
        (10, 100, 1e5, 0.01, 100),
    ],
)
def test_dirichlet_has_as_many_classes_per_client_as_table_4(num_clients, num_classes, alpha, least, expected):
    found = mean_classes_per_client(num_clients, num_classes, alpha, num_seeds=10 if num_classes == 100 else 25, least=least)
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.1, 1.0, 1e5])
@pytest.mark.parametrize(("num_clients", "num_classes"), [(7, 10), (100, 10), (1000, 100)])
def test_dirichlet_sizes_are_within_one_percent_or_one_sample(alpha, num_clients, num_classes):
    sizes = partition_of("dirichlet", balanced_labels(num_classes, 20_000 // num_classes), num_clients, alpha=alpha).sizes
    target = 20_000 / num_clients
    # One more than that, because the target itself is rounded.
    assert (sizes - target).abs().max() <= max(1, 0.01 * target) + 1


def test_dirichlet_without_skew_gives_every_client_every_class():
    labels = balanced_labels(10, 100)
    assert partition_of("dirichlet", labels, 10, alpha=1e5).class_counts(labels).unique().tolist() == [10]


def test_dirichlet_skew_grows_as_alpha_falls():
    found = [mean_classes_per_client(50, 10, alpha, num_seeds=3) for alpha in (1e-3, 0.1, 1.0, 1e5)]
    assert found == sorted(found)
    assert found[0] < 1.5


def test_balance_reaches_both_margins():
    rng = np.random.default_rng(0)
    sizes, class_sizes = np.array([30, 30, 40]), np.array([50, 20, 20, 10])
    shares = balance(rng.normal(size=(3, 4)), sizes, class_sizes)
    np.testing.assert_allclose(shares.sum(axis=0), class_sizes, rtol=1e-9)
    np.testing.assert_allclose(shares.sum(axis=1), sizes, atol=0.5)


def test_balance_changes_nothing_but_the_scale_of_rows_and_columns():
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(3, 4))
    ratio = np.log(balance(logs, np.array([30, 30, 40]), np.array([50, 20, 20, 10]))) - logs
    # A sum of a row and a column vector has zero cross differences.
    np.testing.assert_allclose(ratio - ratio[:1] - ratio[:, :1] + ratio[0, 0], 0, atol=1e-9)


@settings(max_examples=100)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 10_000))
def test_rounding_keeps_classes_whole(num_clients, num_classes, seed):
    rng = np.random.default_rng(seed)
    class_sizes = rng.integers(num_clients, 50, size=num_classes)
    sizes = np.full(num_clients, class_sizes.sum() // num_clients) + (np.arange(num_clients) < class_sizes.sum() % num_clients)
    shares = balance(rng.normal(scale=5, size=(num_clients, num_classes)), sizes, class_sizes)
    counts = round_shares(shares, sizes, class_sizes)
    assert (counts >= 0).all()
    np.testing.assert_array_equal(counts.sum(axis=0), class_sizes)
    assert (np.abs(counts.sum(axis=1) - sizes) <= 1).all()


def test_rounding_repairs_shares_that_are_not_balanced():
    """Sinkhorn's last steps may be missing: one client far too large, one far too small."""
    sizes, class_sizes = np.array([10, 10, 10]), np.array([20, 10])
    counts = round_shares(np.array([[18.0, 0.0], [2.0, 0.0], [0.0, 10.0]]), sizes, class_sizes)
    assert counts.tolist() == [[10, 0], [10, 0], [0, 10]]


def test_dirichlet_respects_min_samples():
    assert partition_of("dirichlet", balanced_labels(10, 11), 10, alpha=0.1, min_samples=11).sizes.unique().tolist() == [11]


def test_dirichlet_prior_follows_the_prior_when_alpha_is_large():
    labels = torch.cat((torch.zeros(3000), torch.ones(1000))).long()
    shares = partition_of("dirichlet-prior", labels, 4, alpha=1e6).class_counts(labels).float() / 1000
    torch.testing.assert_close(shares[:, 0], torch.full((4,), 0.75), atol=0.06, rtol=0)


def test_dirichlet_prior_multiplies_alpha_by_the_prior():
    """Dirichlet(alpha p) has E[q_c^2] = p (1 + alpha p) / (1 + alpha), with the sum (1 + alpha / C) / (1 + alpha) at p = 1/C.

    No class can run out on the first of ten clients, so its counts are plain draws.
    """
    labels = balanced_labels(4, 250)
    first = [
        partition_of("dirichlet-prior", labels, 10, seed, alpha=2.0).class_counts(labels)[0].double() for seed in range(400)
    ]
    q = torch.stack(first) / 100
    # The sum of squares of a multinomial of n draws exceeds that of q by (1 - sum q^2) / n.
    expected = (1 + 2 / 4) / (1 + 2)
    assert float((q**2).sum(dim=1).mean()) == pytest.approx(expected + (1 - expected) / 100, abs=0.025)


def test_dirichlet_prior_at_small_alpha_gives_few_classes():
    labels = balanced_labels(10, 500)
    counts = partition_of("dirichlet-prior", labels, 100, alpha=0.1).class_counts(labels)
    assert (counts > 0).sum(dim=1).float().mean() < 2


def pachinko(seed, alpha=0.1, fine_alpha=10.0, num_clients=500):
    """Counts of labels like CIFAR-100's for clients of 100 samples, shape (clients, 20, 5): superclasses, then classes."""
    labels = balanced_labels(100, num_clients)
    config = PartitionConfig(scheme="pachinko", num_clients=num_clients, alpha=alpha, fine_alpha=fine_alpha)
    order = np.random.default_rng(1).permutation(100)  # as in CIFAR-100, the classes of a superclass are not neighbours
    superclasses = tuple((np.argsort(order) // 5).tolist())
    split = make_partition(config, labels, None, len(labels), seed, superclasses=superclasses)
    return split.class_counts(labels)[:, torch.from_numpy(order)].reshape(num_clients, 20, 5)


def test_pachinko_deals_every_sample_once_in_equal_parts():
    counts = pachinko(0)
    assert counts.sum(dim=(1, 2)).unique().tolist() == [100]
    assert counts.sum(dim=0).unique().tolist() == [500]


def test_pachinko_by_its_moments():
    """Dirichlet(a) over C has E[sum q^2] = (1 + a) / (1 + a C); no class of 100 can run out on the first client of 100."""
    first = torch.stack([pachinko(seed, alpha=0.5, fine_alpha=1.0, num_clients=100)[0] for seed in range(60)]).double()
    for counts, concentration in ((first.sum(dim=2), 0.5), (first.flatten(0, 1), 1.0)):
        totals = counts.sum(dim=1)
        many, totals = counts[totals > 1], totals[totals > 1]
        # Of n draws, sum k (k - 1) / (n (n - 1)) estimates sum q^2 without bias.
        found = ((many * (many - 1)).sum(dim=1) / (totals * (totals - 1))).mean()
        num_parts = counts.shape[1]
        assert float(found) == pytest.approx((1 + concentration) / (1 + concentration * num_parts), rel=0.12)


def test_pachinko_has_as_many_classes_per_client_as_reddi_et_al():
    """Alpha 0.1 and 10: 6 to 7 superclasses and about 21 classes for a client of 100 samples."""
    counts = pachinko(0)
    assert float((counts.sum(dim=2) > 0).sum(dim=1).float().mean()) == pytest.approx(6.4, abs=0.6)
    assert float((counts > 0).sum(dim=(1, 2)).float().mean()) == pytest.approx(21, abs=2)


def test_pachinko_without_superclasses():
    labels = balanced_labels(4, 5)
    config = PartitionConfig(scheme="pachinko", num_clients=2)
    with pytest.raises(UserError, match=r"'pachinko' needs classes in superclasses, and this data set has none"):
        make_partition(config, labels, None, len(labels), 0)


def test_log_gamma_draws_are_dirichlet_after_normalising():
    rng = np.random.default_rng(0)
    first, second = np.exp(log_gamma_draws(np.tile([0.2, 0.6], (40_000, 1)), rng)).T
    share = first / (first + second)
    # Beta(0.2, 0.6): mean 1/4, variance 0.2 * 0.6 / (0.8^2 * 1.8).
    assert share.mean() == pytest.approx(0.25, abs=0.01)
    assert share.var() == pytest.approx(0.12 / (0.64 * 1.8), abs=0.005)
    assert np.isfinite(log_gamma_draws(np.full(1000, 1e-6), rng)).all()


def test_normalised_takes_weights_beyond_the_range_of_floats():
    np.testing.assert_allclose(normalised(np.array([-5000.0, -5000.0 + np.log(3), -np.inf])), [0.25, 0.75, 0])


def test_classes_per_client_as_in_cfcl():
    labels = balanced_labels(10, 6000)
    partition = partition_of("classes-per-client", labels, 10, classes_per_client=2)
    counts = partition.class_counts(labels)
    assert partition.sizes.tolist() == [6000] * 10
    assert (counts > 0).sum(dim=1).tolist() == [2] * 10
    assert (counts > 0).sum(dim=0).tolist() == [2] * 10


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 10), st.data())
def test_classes_are_spread_evenly(num_clients, num_classes, data):
    per_client = data.draw(st.integers(-(-num_classes // num_clients), num_classes))
    labels = balanced_labels(num_classes, 40)
    held = partition_of("classes-per-client", labels, num_clients, classes_per_client=per_client).class_counts(labels) > 0
    assert held.sum(dim=1).unique().tolist() == [per_client]
    holders = held.sum(dim=0)
    assert holders.max() - holders.min() <= 1


@pytest.mark.parametrize(("per_client", "num_clients"), [(11, 5), (1, 5)])
def test_impossible_classes_per_client(per_client, num_clients):
    with pytest.raises(UserError, match=f"partition.classes_per_client must be from 2 to 10 .*, got {per_client}"):
        partition_of("classes-per-client", balanced_labels(10, 5), num_clients, classes_per_client=per_client)


def test_class_smaller_than_its_holders():
    labels = torch.tensor([0] * 20 + [1] * 3)
    with pytest.raises(UserError, match=r"one class has 3 samples for 5 of 5 clients"):
        partition_of("classes-per-client", labels, 5, classes_per_client=2)


def test_whole_classes_are_consecutive():
    labels = balanced_labels(10, 3)
    counts = partition_of("whole-classes", labels, 2).class_counts(labels)
    assert counts.tolist() == [[3] * 5 + [0] * 5, [0] * 5 + [3] * 5]


def test_whole_classes_with_too_many_clients():
    with pytest.raises(UserError, match=r"partition.num_clients must be <= 10 for whole-classes, got 20"):
        partition_of("whole-classes", balanced_labels(10, 5), 20)


def test_quantity_skew_is_log_normal_with_a_floor():
    labels = torch.zeros(100_000).long()
    sizes = partition_of("quantity-skew", labels, 500, sigma=0.7, min_samples=10).sizes.double()
    assert sizes.min() >= 10
    assert float((sizes - 10).log().std()) == pytest.approx(0.7, abs=0.07)
    assert partition_of("quantity-skew", labels, 500, sigma=0.0).sizes.unique().tolist() == [200]


def test_stratified_parts_have_the_same_number_of_each_class():
    """Of classes of 103, 50 and 7 samples, eleven clients have equal numbers within one, and equal sizes within one."""
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate((103, 50, 7))])
    labels = labels[torch.randperm(160, generator=torch.Generator().manual_seed(0))]
    partition = partition_of("iid", labels, 11, stratified=True)
    counts = partition.class_counts(labels)
    assert counts.sum(dim=0).tolist() == [103, 50, 7]
    assert (counts.amax(dim=0) - counts.amin(dim=0)).tolist() == [1, 1, 1]
    assert partition.sizes.max() - partition.sizes.min() == 1
    other = partition_of("iid", labels, 11, seed=1, stratified=True)
    assert [rows.tolist() for rows in other.indices] != [rows.tolist() for rows in partition.indices]
    plain = partition_of("iid", labels, 11).class_counts(labels)
    assert int((plain.amax(dim=0) - plain.amin(dim=0)).max()) > 1
    with pytest.raises(UserError, match=r"iid with partition\.stratified = true' needs labels"):
        make_partition(PartitionConfig(num_clients=2, scheme="iid", stratified=True), None, None, 9, 0)


def test_quantity_skew_leaves_labels_iid():
    labels = balanced_labels(4, 5000)
    partition = partition_of("quantity-skew", labels, 5)
    shares = partition.class_counts(labels) / partition.sizes[:, None]
    assert (shares[partition.sizes > 1000] - 0.25).abs().max() < 0.06


def test_natural_keeps_owners_together():
    owners = torch.tensor([30, 10, 30, 20, 10])
    partition = partition_of("natural", torch.zeros(5), 50, owners=owners)
    assert [rows.tolist() for rows in partition.indices] == [[1, 4], [3], [0, 2]]


def test_natural_without_owners():
    with pytest.raises(UserError, match=r"partition.scheme 'natural' needs samples with owners"):
        partition_of("natural", torch.zeros(5), 2)


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-prior"])
def test_a_concentration_too_small_for_floats_is_one_sentence(scheme):
    assert partition_of(scheme, balanced_labels(10, 20), 5, 0, alpha=1e-7).sizes.sum() == 200
    with pytest.raises(UserError, match=r"must be at least 1e-09, got .*: raise partition.alpha"):
        partition_of(scheme, balanced_labels(10, 20), 5, 0, alpha=1e-300)
