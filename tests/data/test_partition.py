import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.data.datasets import Dataset
from unisono.data.partition import Partition, PartitionConfig, Rows, Samples, make_partition, partition_dataset, partitioners

SCHEMES = ["classes-per-client", "dirichlet", "dirichlet-prior", "iid", "natural", "pachinko", "quantity-skew", "whole-classes"]
SEEDED = sorted(set(SCHEMES) - {"natural", "whole-classes"})


def partition_of(scheme, labels, num_clients, run_seed=0, owners=None, **options):
    config = PartitionConfig(scheme=scheme, num_clients=num_clients, **options)
    superclasses = tuple(number // 2 for number in range(int(labels.max()) + 1)) if scheme == "pachinko" else ()
    return make_partition(config, labels, owners, len(labels), run_seed, superclasses=superclasses)


def balanced_labels(num_classes, size):
    return torch.arange(num_classes).repeat(size)


@pytest.mark.parametrize("scheme", ["whole-classes", "iid", "dirichlet", "natural"])
def test_the_unlabelled_part_is_dealt_iid_beside_any_scheme(scheme):
    labels, owners = torch.arange(40) % 4, torch.arange(40) % 2
    samples = torch.zeros(61, 1, 2, 2, dtype=torch.uint8)
    unknown = torch.full((21,), -1)
    whole = Dataset(
        "d", samples, torch.cat((labels, unknown)), samples[:0], None, ("a", "b", "c", "d"),
        torch.cat((owners, torch.zeros(21, dtype=torch.int64))), ("x", "y"), num_unlabelled=21,
    )  # fmt: skip
    config = PartitionConfig(scheme=scheme, num_clients=2)
    found = partition_dataset(config, whole, 3)
    alone = make_partition(config, labels, owners, 40, 3)
    assert [rows[rows < 40].tolist() for rows in found.indices] == [rows.tolist() for rows in alone.indices]
    extra = [rows[rows >= 40] for rows in found.indices]
    assert sorted(map(len, extra)) == [10, 11]
    assert torch.cat(extra).sort().values.tolist() == list(range(40, 61))
    assert [rows.tolist() for rows in extra] != [[*range(40, 51)], [*range(51, 61)]]
    other = partition_dataset(config, whole, 4)
    assert [rows[rows >= 40].tolist() for rows in other.indices] != [rows.tolist() for rows in extra]


def test_every_scheme_is_registered():
    assert list(partitioners) == SCHEMES


def test_unknown_scheme_lists_the_known_ones():
    with pytest.raises(UserError, match="dirichlet-prior, iid"):
        partition_of("dirichle", balanced_labels(2, 3), 2)


@settings(max_examples=150)
@given(data=st.data(), scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 2**31))
def test_every_index_belongs_to_exactly_one_client(data, scheme, seed):
    num_classes = data.draw(st.integers(1, 6))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, num_classes - 1), min_size=8, max_size=120)))
    present = len(labels.unique())
    num_clients = data.draw(st.integers(1, present if scheme == "whole-classes" else 8))
    options = {"alpha": data.draw(st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e5])), "sigma": data.draw(st.floats(0, 5))}
    if scheme == "classes-per-client":
        options["classes_per_client"] = data.draw(st.integers(-(-present // num_clients), present))
        # A class with fewer samples than holders is refused, which has its own test.
        labels = torch.cat([labels, labels.unique().repeat(num_clients)])
    owners = torch.arange(len(labels)) % 5 * 7
    partition = partition_of(scheme, labels, num_clients, seed, owners, **options)
    assert torch.equal(torch.cat(list(partition.indices)).sort().values, torch.arange(len(labels)))
    assert partition.num_clients == (5 if scheme == "natural" else num_clients)
    assert partition.notes == ()
    for rows in partition.indices:
        assert rows.dtype == torch.int64
        assert len(rows) > 0
        assert torch.equal(rows, rows.sort().values)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_seed_same_split(scheme):
    labels, owners = balanced_labels(10, 40), torch.arange(400) % 10
    one, two = (partition_of(scheme, labels, 10, 5, owners) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.indices, two.indices, strict=True))


@pytest.mark.parametrize("scheme", SEEDED)
def test_runs_of_several_seeds_may_share_a_split(scheme):
    labels = balanced_labels(4, 25)
    shared = [partition_of(scheme, labels, 5, run_seed, seed=3).indices for run_seed in (0, 1)]
    own = partition_of(scheme, labels, 5, 3).indices
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*shared, own, strict=True))


@pytest.mark.parametrize("scheme", SEEDED)
def test_another_seed_another_split(scheme):
    labels = balanced_labels(10, 40)
    one, two = (partition_of(scheme, labels, 10, seed) for seed in (5, 6))
    assert any(not torch.equal(a, b) for a, b in zip(one.indices, two.indices, strict=True))


@settings(max_examples=60)
@given(
    scheme=st.sampled_from(["iid", "dirichlet-prior"]),
    num_clients=st.integers(1, 30),
    extra=st.integers(0, 100),
    seed=st.integers(0, 1000),
)
def test_equal_sizes_differ_by_at_most_one(scheme, num_clients, extra, seed):
    labels = torch.arange(num_clients + extra) % 3
    sizes = partition_of(scheme, labels, num_clients, seed).sizes
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == len(labels)


def test_statistics():
    partition = Partition((torch.tensor([0, 3]), torch.tensor([1, 2, 4])))
    labels = torch.tensor([2, 0, 0, -1, 2])
    assert partition.sizes.tolist() == [2, 3]
    assert partition.class_counts(labels).tolist() == [[0, 0, 1], [2, 0, 1]]


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-prior", "classes-per-client", "whole-classes"])
@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, -1, -1])])
def test_missing_labels_are_named(scheme, labels):
    with pytest.raises(UserError, match=f"partition.scheme '{scheme}' needs"):
        make_partition(PartitionConfig(scheme=scheme, num_clients=2), labels, None, 4, 0)


@pytest.mark.parametrize("scheme", ["iid", "quantity-skew"])
def test_labels_are_not_needed(scheme):
    assert make_partition(PartitionConfig(scheme=scheme, num_clients=2), None, None, 4, 0).sizes.sum() == 4


@pytest.mark.parametrize("scheme", SEEDED)
def test_more_clients_than_samples(scheme):
    with pytest.raises(UserError, match=r"partition.num_clients must be <= 6 for 6 samples .*, got 7"):
        partition_of(scheme, balanced_labels(2, 3), 7)


def test_min_samples_limits_the_number_of_clients():
    with pytest.raises(UserError, match=r"must be <= 3 for 10 samples \(at least 3 per client\), got 4"):
        partition_of("iid", balanced_labels(2, 5), 4, min_samples=3)


def test_small_and_empty_clients_are_told():
    small = partition_of("natural", torch.zeros(7), 1, owners=torch.tensor([0, 0, 0, 0, 1, 2, 2]), min_samples=3)
    assert small.notes == ("2 of 3 clients hold fewer than 3 samples: 1, 2.",)

    @partitioners.register("all-to-one")
    def all_to_one(config: PartitionConfig, samples: Samples, rng: np.random.Generator) -> np.ndarray:
        return np.full(samples.num_samples, 1)

    empty = partition_of("all-to-one", torch.zeros(7), 3)
    del partitioners._things["all-to-one"]
    assert empty.sizes.tolist() == [0, 7, 0]
    assert empty.notes == ("2 of 3 clients hold no sample: 0, 2.",)


def test_config_names_the_field():
    with pytest.raises(UserError, match=r"partition.alpha must be greater than 0, got -1"):
        make_section(PartitionConfig, {"alpha": -1}, "partition")


def test_rows_are_cut_from_one_tensor_when_they_are_read() -> None:
    parts = (torch.tensor([0, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([1, 2, 4]))
    rows = Rows.of(parts)

    assert [part.tolist() for part in rows] == [[0, 3], [], [1, 2, 4]]
    assert rows[-1].tolist() == [1, 2, 4]
    assert [part.tolist() for part in rows[1:]] == [[], [1, 2, 4]]
    assert rows[2].untyped_storage().data_ptr() == rows.rows.untyped_storage().data_ptr()
    assert Rows.of(rows) is rows


def test_a_partition_keeps_one_tensor_however_many_clients_there_are() -> None:
    partition = make_partition(PartitionConfig(scheme="iid", num_clients=300), None, None, 1000, seed=0)

    assert isinstance(partition.indices, Rows)
    assert sorted(partition.indices.rows.tolist()) == list(range(1000))
    assert partition.sizes.tolist() == [len(rows) for rows in partition.indices]
