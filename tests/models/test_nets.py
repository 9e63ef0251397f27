import copy
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unisono.models.nets import (
    add_targets,
    build_seeded,
    freeze,
    get_state,
    lending,
    lent_state,
    load_state,
    mix_states,
    set_mode,
    state_view,
    update_ema,
    weight_divergence,
)


def small_net() -> nn.ModuleDict:
    torch_net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    torch_net.register_buffer("scratch", torch.zeros(3), persistent=False)
    return nn.ModuleDict({"backbone": torch_net, "head": nn.Linear(2, 3)})


NAMES = {
    "backbone.0.weight",
    "backbone.0.bias",
    "backbone.1.weight",
    "backbone.1.bias",
    "backbone.1.running_mean",
    "backbone.1.running_var",
    "head.weight",
    "head.bias",
}


def test_a_state_is_parameters_and_persistent_float_buffers():
    assert get_state(small_net()).keys() == state_view(small_net()).keys() == NAMES


def test_a_state_is_a_copy_and_a_view_is_not():
    net = small_net()
    state, view = get_state(net), state_view(net)
    with torch.no_grad():
        net["head"].bias.fill_(7)
        net["backbone"][1].running_mean.fill_(3)
    assert torch.equal(view["head.bias"], torch.full((3,), 7.0))
    assert torch.equal(view["backbone.1.running_mean"], torch.full((2,), 3.0))
    assert not torch.equal(state["head.bias"], view["head.bias"])
    assert not any(tensor.requires_grad for tensor in (*state.values(), *view.values()))


def test_states_are_contiguous_whatever_the_module_is():
    net = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    assert not net.weight.is_contiguous()
    assert all(tensor.is_contiguous() for tensor in get_state(net).values())


def test_tied_weights_are_stated_once():
    net = nn.ModuleDict({"encoder": nn.Linear(3, 3), "decoder": nn.Linear(3, 3)})
    net["decoder"].weight = net["encoder"].weight
    assert state_view(net).keys() == {"encoder.weight", "encoder.bias", "decoder.bias"}


def test_loading_fills_the_module_in_place():
    net, other = small_net(), small_net()
    other["backbone"][1].running_var.fill_(5)
    addresses = {name: tensor.data_ptr() for name, tensor in state_view(net).items()}
    load_state(net, get_state(other))
    assert {name: tensor.data_ptr() for name, tensor in state_view(net).items()} == addresses
    for name, tensor in state_view(net).items():
        assert torch.equal(tensor, state_view(other)[name])
    assert net["head"].weight.requires_grad


def test_loading_does_not_alias_what_was_loaded():
    net, state = small_net(), get_state(small_net())
    load_state(net, state)
    with torch.no_grad():
        net["head"].bias.add_(1)
    assert not torch.equal(state["head.bias"], net["head"].bias)


def test_loading_into_the_middle_of_training_keeps_autograd_sound():
    net = nn.Linear(2, 1, bias=False)
    loss = net(torch.ones(1, 2, requires_grad=True)).square().sum()
    load_state(net, {"weight": torch.zeros(1, 2)})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.bias"), r"lacks the tensor 'head.bias' of shape \(3,\)"),
        (lambda state: state.update({"head.weight": torch.zeros(3)}), r"'head.weight' must have shape \(3, 2\), got \(3,\)"),
        (lambda state: state.update(extra=torch.zeros(1)), "'extra' that the module does not know"),
    ],
)
def test_loading_is_strict(change, message):
    net = small_net()
    before = get_state(net)
    state = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    change(state)
    with pytest.raises(ValueError, match=message):
        load_state(net, state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_view(net).items()), "nothing may be half loaded"


def test_a_net_without_tensors():
    load_state(nn.ReLU(), {})
    update_ema(nn.ReLU(), nn.ReLU(), 0.9)
    assert get_state(nn.ReLU()) == {}


def test_ema_by_hand():
    """0.9 * 10 + 0.1 * 20 = 11 for parameters; BatchNorm statistics and the count of batches stay."""
    target, online = small_net(), small_net()
    for net, value in ((target, 10.0), (online, 20.0)):
        for tensor in state_view(net).values():
            tensor.fill_(value)
    online["backbone"][1].num_batches_tracked.fill_(5)
    update_ema(target, online, 0.9)
    for name, tensor in state_view(target).items():
        assert torch.allclose(tensor, torch.tensor(10.0 if "running" in name else 11.0)), name
    assert all(torch.equal(tensor, torch.full_like(tensor, 20.0)) for tensor in state_view(online).values())
    assert target["backbone"][1].num_batches_tracked == 0


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_ema_at_its_ends(momentum):
    target, online = small_net(), small_net()
    expected = get_state(target if momentum else online)
    update_ema(target, online, momentum)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in target.named_parameters())


@given(st.floats(0, 1), st.floats(-100, 100), st.floats(-100, 100))
def test_ema_stays_between_both(momentum, first, second):
    target, online = nn.Linear(1, 1), nn.Linear(1, 1)
    for net, value in ((target, first), (online, second)):
        nn.init.constant_(net.weight, value)
    update_ema(target, online, momentum)
    assert target.weight.item() == pytest.approx(momentum * first + (1 - momentum) * second, abs=1e-4)


def test_ema_of_unlike_nets():
    with pytest.raises(ValueError, match="only one of target and online has the parameter 'bias'"):
        update_ema(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), 0.9)


def test_ema_needs_no_gradients_and_leaves_the_graph_alone():
    online = nn.Linear(2, 2)
    target = freeze(copy.deepcopy(online))
    loss = online(torch.ones(1, 2)).square().sum()
    update_ema(target, online, 0.5)
    loss.backward()
    assert target.weight.grad is None


def test_freeze_keeps_the_mode():
    net = small_net().train()
    assert freeze(net) is net
    assert net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_build_seeded_depends_on_the_seed_alone():
    torch.manual_seed(1)
    first = get_state(build_seeded(small_net, 7))
    torch.manual_seed(2)
    torch.rand(3)
    again, other = get_state(build_seeded(small_net, 7)), get_state(build_seeded(small_net, 8))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_build_seeded_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    build_seeded(small_net, 2**63 - 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_are_frozen_copies():
    nets = add_targets(small_net(), ("head",))
    assert list(nets) == ["backbone", "head", "target_head"]
    assert torch.equal(nets["target_head"].weight, nets["head"].weight)
    assert nets["target_head"].weight is not nets["head"].weight
    assert not nets["target_head"].weight.requires_grad
    assert nets["head"].weight.requires_grad


def test_divergence_is_the_mean_distance_of_weight_tensors():
    """Distances 5 and 13 of two weights; the bias does not count."""
    first = {"a.weight": torch.zeros(2, 2), "a.bias": torch.zeros(2), "b.weight": torch.zeros(1, 2)}
    second = {"a.weight": torch.tensor([[3.0, 0], [0, 4]]), "a.bias": torch.ones(2), "b.weight": torch.tensor([[5.0, 12]])}
    assert weight_divergence(first, second) == pytest.approx((5 + 13) / 2)
    assert weight_divergence(first, first) == 0
    assert weight_divergence({"bias": torch.ones(2)}, {"bias": torch.zeros(2)}) == 0


def test_divergence_counts_convolutions_but_not_those_of_shortcuts():
    """Seventeen kernels as in a ResNet-18, each at distance 2; the shortcut and the linear layer are much farther apart."""
    states = []
    for value in (0.0, 1.0):
        trunk = {f"stages.{number}.conv.weight": torch.full((1, 1, 2, 2), value) for number in range(17)}
        other = {
            "stages.2.shortcut.1.weight": torch.full((4, 4, 1, 1), 9 * value),
            "head.weight": torch.full((3, 3), 9 * value),
        }
        states.append({**trunk, **other})
    assert weight_divergence(*states) == pytest.approx(2.0)


def test_mixed_states():
    first, second = {"w": torch.tensor([1.0, 2])}, {"w": torch.tensor([3.0, 4])}
    torch.testing.assert_close(mix_states(first, second, 0.25)["w"], torch.tensor([2.5, 3.5]))
    assert torch.equal(mix_states(first, second, 1.0)["w"], first["w"])
    assert torch.equal(mix_states(first, second, 0.0)["w"], second["w"])
    assert mix_states({}, {}, 0.5) == {}


def test_batch_statistics_are_not_mixed():
    first = {"w": torch.tensor([1.0]), "norm.running_mean": torch.tensor([1.0]), "norm.running_var": torch.tensor([4.0])}
    second = {"w": torch.tensor([3.0]), "norm.running_mean": torch.tensor([5.0]), "norm.running_var": torch.tensor([9.0])}
    mixed = mix_states(first, second, 0.5)
    assert mixed == {
        "w": torch.tensor([2.0]),
        "norm.running_mean": torch.tensor([5.0]),
        "norm.running_var": torch.tensor([9.0]),
    }


def test_a_variance_below_zero_is_loaded_as_zero():
    net = nn.BatchNorm1d(2)
    state = {**get_state(net), "running_var": torch.tensor([-0.1, 2.0]), "running_mean": torch.tensor([-0.1, 2.0])}
    load_state(net, state)
    assert net.running_var.tolist() == [0.0, 2.0]
    assert net.running_mean.tolist() == pytest.approx([-0.1, 2.0])


def test_networks_lend_their_tensors_in_their_own_thread_alone():
    """A client in another thread of the process may keep what it gets."""
    net, found = nn.Linear(2, 1), {}
    with lending(True):
        thread = Thread(target=lambda: found.update(lent_state(net)))
        thread.start()
        thread.join()
        assert lent_state(net)["weight"].data_ptr() == net.weight.data_ptr()
    assert found["weight"].data_ptr() != net.weight.data_ptr()
    assert lent_state(net)["weight"].data_ptr() != net.weight.data_ptr()


def test_a_state_names_tied_weights_once_and_buffers_last() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[2].weight = net[1].weight
    names = [name for name, _ in net.named_parameters()]
    assert list(state_view(net)) == [*names, "0.running_mean", "0.running_var"]
    assert "2.weight" not in names


def test_a_mode_reaches_every_part() -> None:
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    set_mode(net, False)
    assert not any(part.training for part in net.modules())
    net[1][0].train()
    set_mode(net, False)
    assert not net[1][0].training
    set_mode(net, True)
    assert all(part.training for part in net.modules())
