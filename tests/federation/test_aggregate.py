"""Means by hand; bit-identical however shards are spread over processes."""

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.core.errors import MethodError
from unisono.core.payload import Aggregate, Payload, Reduce, Share, Update
from unisono.core.wire import lay_out, read, write
from unisono.federation.aggregate import Accumulator, AggregationConfig, assign_shards

SHARES = {"net": Share(Reduce.MEAN), "statistics": Share(Reduce.MEAN), "centroids": Share(Reduce.STACK)}
MEAN = AggregationConfig()
UNIFORM = AggregationConfig(weighting="uniform")


def update(client_id: int, weight: float, metrics: dict[str, float] | None = None, **groups: list[float]) -> Update:
    payload = Payload({group: {"w": torch.tensor(values)} for group, values in groups.items()})
    return Update(client_id, weight, payload, metrics or {})


def accumulator_of(updates: list[Update], config: AggregationConfig = MEAN) -> Accumulator:
    accumulator = Accumulator(SHARES, config)
    for one in updates:
        accumulator.add(one)
    return accumulator


def reduced(updates: list[Update], config: AggregationConfig = MEAN) -> Aggregate:
    return accumulator_of(updates, config).finish()


def test_weighted_mean_by_hand() -> None:
    """(1 * [1, 2] + 3 * [5, 10]) / 4 = [4, 8]."""
    result = reduced([update(0, 1, {"loss": 2.0}, net=[1.0, 2.0]), update(1, 3, {"loss": 6.0}, net=[5.0, 10.0])])
    assert result.means["net"]["w"].tolist() == [4.0, 8.0]
    assert result.metrics == {"loss": 5.0}
    assert (result.weight, result.num_clients, dict(result.stacks)) == (4.0, 2, {})


def test_uniform_weights_by_hand() -> None:
    """(1 + 5) / 2 = 3, (2 + 10) / 2 = 6; metrics take the same weights."""
    updates = [update(0, 1, {"loss": 2.0}, net=[1.0, 2.0]), update(1, 300, {"loss": 6.0}, net=[5.0, 10.0])]
    result = reduced(updates, UNIFORM)
    assert result.means["net"]["w"].tolist() == [3.0, 6.0]
    assert result.metrics == {"loss": 4.0}
    assert (result.weight, result.num_clients) == (2.0, 2)


def test_a_mean_covers_the_clients_that_sent_the_group() -> None:
    accumulator = accumulator_of(
        [
            update(0, 1, {"a": 1.0}, net=[1.0]),
            update(1, 2, {"b": 4.0}, statistics=[10.0]),
            update(2, 3, {"a": 5.0}, net=[5.0], statistics=[20.0]),
        ]
    )
    assert accumulator.counts == {"net": 2, "statistics": 2}
    result = accumulator.finish()
    assert result.means["net"]["w"].tolist() == [4.0]
    assert result.means["statistics"]["w"].tolist() == [16.0]
    assert result.metrics == {"a": 4.0, "b": 4.0}


def test_stacks_are_in_order_of_client_ids() -> None:
    result = reduced([update(10, 1, centroids=[1.0]), update(2, 1, centroids=[2.0, 3.0]), update(7, 1)])
    assert [(client, tensors["w"].tolist()) for client, tensors in result.stacks["centroids"]] == [(2, [2.0, 3.0]), (10, [1.0])]
    assert result.num_clients == 3


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_clients_without_samples(weighting: str) -> None:
    config = AggregationConfig(weighting=weighting)  # type: ignore[arg-type]
    result = reduced([update(0, 0, {"loss": 1.0}, net=[1.0])], config)
    if weighting == "samples":
        assert (dict(result.means), dict(result.metrics)) == ({}, {})
    else:
        assert result.means["net"]["w"].tolist() == [1.0]
    assert reduced([]).means == {}


@pytest.mark.parametrize(
    ("rule", "expected"), [("trimmed-mean", [3.0]), ("median", [3.0]), ("multi-krum", [(1 + 2 * 2 + 3 * 3 + 4 * 4) / 10])]
)
def test_robust_rules(rule: str, expected: list[float]) -> None:
    config = AggregationConfig(rule=rule, trim=0.2, byzantine=1)  # type: ignore[arg-type]
    updates = [update(index, index + 1, net=[float(value)], centroids=[9.0]) for index, value in enumerate([1, 2, 3, 4, 1000])]
    result = reduced(updates, config)
    assert result.means["net"]["w"].tolist() == expected
    assert [client for client, _ in result.stacks["centroids"]] == [0, 1, 2, 3, 4]


def test_updates_are_not_changed() -> None:
    updates = [update(0, 2, net=[1.0]), update(1, 3, net=[5.0])]
    reduced(updates)
    assert [one.payload.groups["net"]["w"].tolist() for one in updates] == [[1.0], [5.0]]


@pytest.mark.parametrize(
    "other", [{"w": torch.ones(1)}, {"w": torch.ones(3)}, {"v": torch.ones(2)}, {"w": torch.ones(2), "v": torch.ones(1)}]
)
def test_updates_that_do_not_fit_are_refused_whole(other: dict[str, Tensor]) -> None:
    accumulator = accumulator_of([update(0, 1, net=[1.0, 2.0], statistics=[1.0])])
    before = pickle.dumps(accumulator)
    with pytest.raises(ValueError, match=r"net/[vw] has shape .*, but other clients sent"):
        accumulator.add(Update(1, 1.0, Payload({"statistics": {"w": torch.ones(1)}, "net": other})))
    assert pickle.dumps(accumulator) == before
    with pytest.raises(MethodError, match=r"same shape from every client: net/. has shape .* but other clients sent"):
        accumulator.merge(accumulator_of([Update(1, 1.0, Payload({"net": other}))]))


# --- shards


@given(st.dictionaries(st.integers(0, 10**6), st.integers(0, 1000), max_size=60), st.integers(1, 10))
def test_every_client_is_dealt_once_and_lanes_are_balanced(clients: dict[int, int], num_shards: int) -> None:
    """The longest processing time rule: loads of two shards differ by at most the largest client."""
    shards = assign_shards(clients, num_shards)
    assert sorted(itertools.chain(*shards)) == sorted(clients)
    assert len(shards) == min(num_shards, len(clients))
    assert all(shard == sorted(shard) for shard in shards)
    loads = [sum(clients[client] for client in shard) for shard in shards]
    assert not loads or max(loads) - min(loads) <= max(clients.values())


def test_dealing_by_hand() -> None:
    assert assign_shards({0: 5, 1: 9, 2: 4, 3: 5}, 2) == [[1, 2], [0, 3]]
    assert assign_shards({3: 1, 1: 1, 2: 1, 0: 1}, 2) == [[0, 2], [1, 3]]
    assert assign_shards({}) == []


def random_updates(num_clients: int) -> dict[int, Update]:
    generator = torch.Generator().manual_seed(num_clients)
    updates = {}
    for client in range(num_clients):
        groups = {
            "net": {name: torch.randn(shape, generator=generator) for name, shape in (("w", (7, 5)), ("b", (3,)), ("s", ()))}
        }
        if client % 3 == 0:
            groups["statistics"] = {"w": torch.randn(2, generator=generator)}
        if client % 2 == 0:
            groups["centroids"] = {"w": torch.randn(client, 2, generator=generator)}
        weight = float(torch.randint(1, 100, (), generator=generator))
        updates[client] = Update(client, weight, Payload(groups), {"loss": float(torch.rand((), generator=generator))})
    return updates


def same_bits(first: Aggregate, second: Aggregate) -> bool:
    scalars = [(one.weight, one.num_clients, dict(one.metrics)) for one in (first, second)]
    means = [Payload(one.means).flatten() for one in (first, second)]
    stacks = [
        {
            (group, client, name): tensor
            for group, entries in one.stacks.items()
            for client, part in entries
            for name, tensor in part.items()
        }
        for one in (first, second)
    ]
    return scalars[0] == scalars[1] and all(
        one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one) for one, other in (means, stacks)
    )


def through_shared_memory(accumulator: Accumulator) -> Accumulator:
    """As the embedded engine moves it: sums in a block of memory that is used again, the rest pickled."""
    sums = Payload(accumulator.sums)
    layout = lay_out(sums)
    block = torch.empty(max(1, layout.num_bytes), dtype=torch.uint8)
    write(sums, layout, block)
    accumulator.sums = {}
    there: Accumulator = pickle.loads(pickle.dumps(accumulator))
    there.attach(read(layout, block))
    there.detach()
    block.random_()
    return there


@pytest.mark.parametrize("rule", ["mean", "trimmed-mean", "median", "multi-krum"])
@pytest.mark.parametrize(
    "move",
    [lambda accumulator: accumulator, lambda accumulator: pickle.loads(pickle.dumps(accumulator)), through_shared_memory],
)
def test_the_same_bits_for_any_way_of_lanes(rule: str, move: object) -> None:
    updates = random_updates(13)
    config = AggregationConfig(rule=rule)  # type: ignore[arg-type]
    shards = assign_shards({client: int(update.weight) for client, update in updates.items()}, 4)

    def merged(order: list[int], how: object = lambda accumulator: accumulator) -> Aggregate:
        """Shards are summed in some order, as workers finish, and merged in their own."""
        done = {index: how(accumulator_of([updates[client] for client in shards[index]], config)) for index in order}  # type: ignore[operator]
        total = Accumulator(SHARES, config)
        for index in range(len(shards)):
            total.merge(done[index])
        return total.finish()

    expected = merged([0, 1, 2, 3])
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        assert same_bits(merged(order, move), expected)


@given(st.integers(1, 20), st.integers(1, 8))
@settings(max_examples=25)
def test_lanes_change_the_mean_by_rounding_only(num_clients: int, num_shards: int) -> None:
    updates = random_updates(num_clients)
    total = Accumulator(SHARES, MEAN)
    for shard in assign_shards({client: int(update.weight) for client, update in updates.items()}, num_shards):
        total.merge(accumulator_of([updates[client] for client in shard]))
    result = total.finish()
    weight = sum(update.weight for update in updates.values())
    for name in ("w", "b", "s"):
        naive = sum(update.weight / weight * update.payload.groups["net"][name].double() for update in updates.values())
        assert torch.allclose(result.means["net"][name].double(), torch.as_tensor(naive), atol=1e-5)
    assert result.metrics["loss"] == pytest.approx(sum(one.weight * one.metrics["loss"] for one in updates.values()) / weight)
    assert total.counts == {
        group: count for group in SHARES if (count := sum(group in one.payload.groups for one in updates.values()))
    }


def test_merging_leaves_the_lane_alone() -> None:
    shard = accumulator_of([update(0, 1, net=[1.0])])
    total = Accumulator(SHARES, MEAN)
    total.merge(shard)
    total.merge(accumulator_of([update(1, 1, net=[3.0])]))
    assert shard.sums["net"]["w"].tolist() == [1.0]
    assert total.finish().means["net"]["w"].tolist() == [2.0]


@pytest.mark.parametrize("rule", ["mean", "trimmed-mean", "median", "multi-krum"])
def test_an_empty_group_survives_every_way(rule: str) -> None:
    """A network without parameters is a group without tensors."""
    config = AggregationConfig(rule=rule)  # type: ignore[arg-type]
    accumulator = accumulator_of([Update(0, 2.0, Payload({"net": {}})), Update(1, 1.0, Payload({"net": {}}))], config)
    total = Accumulator(SHARES, config)
    for moved in (pickle.loads(pickle.dumps(accumulator)), through_shared_memory(accumulator)):
        total.merge(moved)
        assert total.finish().means == {"net": {}}
