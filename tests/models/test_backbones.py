import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unisono.core.config import make_section
from unisono.core.errors import UserError
from unisono.models.backbones import ModelConfig, backbones, make_backbone
from unisono.models.nets import state_view

HERE = __name__


class Pooled(nn.Module):
    """A user's module that finds its own input width."""

    def __init__(self, input_shape: tuple[int, ...], dim: int = 5, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(input_shape[0], dim, bias=bias)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x.flatten(2).mean(2)))


class Unflattened(nn.Module):
    feature_dim = 3

    def forward(self, x: Tensor) -> Tensor:
        return x


class Triple(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def builder(input_shape: tuple[int, ...], config: ModelConfig, scale: int = 1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, round(config.width * scale)))


def not_a_module(input_shape: tuple[int, ...]) -> int:
    return 3


def make(name: str, shape: tuple[int, ...] = (3, 8, 8), **fields: object):
    return make_backbone(ModelConfig(backbone=name, **fields), shape, (0.5,) * shape[0], (0.25,) * shape[0])


def test_known_names():
    assert set(backbones) >= {"resnet18", "resnet34", "resnet50", "cfcl-cnn", "cct-2-3x2", "cct-4-3x2", "resnet1d"}


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"no backbone 'resnet-18'. Did you mean 'resnet18'.*cfcl-cnn"):
        make("resnet-18")


def test_config_reads_toml_values_with_their_types():
    values = {"backbone": "a:B", "width": 0.5, "options": {"flag": True, "depth": 3, "rate": 0.5, "name": "x"}}
    config = make_section(ModelConfig, values, "model")
    assert config.options == {"flag": True, "depth": 3, "rate": 0.5, "name": "x"}
    assert [type(value) for value in config.options.values()] == [bool, int, float, str]


@pytest.mark.parametrize("fields", [{"width": 0.0}, {"norm": "layer"}, {"stem": "7x7"}, {"backbone": ""}, {"depth": 18}])
def test_config_refuses_nonsense(fields):
    with pytest.raises(UserError, match=rf"model.{next(iter(fields))}"):
        make_section(ModelConfig, fields, "model")


@pytest.mark.parametrize("name", ["cfcl-cnn", "cct-2-3x2", "resnet18"])
def test_images_only(name):
    with pytest.raises(UserError, match=r"takes images.*resnet1d"):
        make(name, (3, 128))


def test_series_only():
    with pytest.raises(UserError, match=r"takes series.*resnet18"):
        make("resnet1d", (3, 16, 16))


def test_first_act_is_normalisation():
    backbone = make_backbone(
        ModelConfig(backbone=f"{HERE}:Pooled", options={"dim": 2}), (2, 3, 3), mean=(1.0, 2.0), std=(2.0, 4.0)
    )
    backbone.trunk = nn.Flatten()
    samples = torch.tensor([5.0, 10.0]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    assert torch.equal(backbone(samples), torch.full((1, 18), 2.0))
    assert torch.equal(samples[0, :, 0, 0], torch.tensor([5.0, 10.0])), "the caller's samples stay as they are"


@pytest.mark.parametrize(("choice", "expected"), [(False, 0.75), ("half", 0.5), (True, 2.0)])
def test_samples_are_normalised_as_the_config_says(choice, expected):
    backbone = make_backbone(ModelConfig(backbone=f"{HERE}:Pooled", normalize_input=choice), (3, 4, 4), (0.25,), (0.25,))
    backbone.trunk = nn.Flatten()
    assert torch.equal(backbone(torch.full((1, 3, 4, 4), 0.75)), torch.full((1, 48), expected))


def test_images_are_squeezed_to_the_size_of_the_network():
    """Without a crop; what has that size already, as views have, passes as it is."""
    config = ModelConfig(backbone="resnet18", width=0.125, input_size=12, normalize_input=False)
    backbone = make_backbone(config, (3, 6, 9), (0.5,), (0.25,))
    assert backbone(torch.rand(2, 3, 6, 9)).shape == (2, backbone.feature_dim)
    backbone.trunk = nn.Identity()
    x = torch.rand(2, 3, 6, 9)
    torch.testing.assert_close(backbone(x), nn.functional.interpolate(x, size=(12, 12), mode="bilinear"))
    views = torch.rand(2, 3, 12, 12)
    assert torch.equal(backbone(views), views)
    with pytest.raises(UserError, match=r"model\.input_size = 12 is for images"):
        make_backbone(config, (3, 50), (0.5,), (0.25,))


def test_one_mean_for_all_channels():
    backbone = make_backbone(ModelConfig(backbone=f"{HERE}:Pooled"), (3, 4, 4), (0.5,), (0.5,))
    assert backbone(torch.rand(2, 3, 4, 4)).shape == (2, 5)


def test_mean_and_std_are_no_part_of_the_state():
    backbone = make("cfcl-cnn", (1, 8, 8))
    assert not [name for name in (*backbone.state_dict(), *state_view(backbone)) if "mean" in name or "std" in name]


@pytest.mark.parametrize(("mean", "std"), [((0.0, 0.0), (1.0,)), ((0.0,), (1.0, 1.0)), ((0.0,), (0.0,))])
def test_statistics_are_checked(mean, std):
    with pytest.raises(ValueError, match=r"mean|std"):
        make_backbone(ModelConfig(), (3, 8, 8), mean, std)


def test_users_module_gets_options_and_input_shape():
    backbone = make(f"{HERE}:Pooled", options={"dim": 7, "bias": False})
    assert backbone.feature_dim == 7
    assert backbone.trunk.linear.bias is None
    assert backbone(torch.rand(4, 3, 8, 8)).shape == (4, 7)


def test_probing_leaves_mode_and_statistics_alone():
    backbone = make(f"{HERE}:Pooled")
    assert all(module.training for module in backbone.modules())
    assert torch.equal(backbone.trunk.norm.running_mean, torch.zeros(5))
    assert backbone.trunk.norm.num_batches_tracked == 0


def test_users_builder_gets_the_config():
    assert make(f"{HERE}:builder", (1, 2, 2), width=2.0, options={"scale": 3}).feature_dim == 6


def test_torch_module_by_path():
    with pytest.raises(UserError, match="fails on a batch of shape"):
        make("torch.nn:Linear", options={"in_features": 5, "out_features": 2})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Unflattened", {}, r"features of shape \(2, feature_dim\), got shape \(2, 3, 8, 8\)"),
        ("Triple", {}, "got tuple"),
        ("Pooled", {"depth": 3}, "model.options does not fit.*'depth'"),
        ("Missing", {}, "does not exist"),
        ("not_a_module", {}, "must give an nn.Module, got int"),
        ("HERE", {}, "must be a class or a function"),
    ],
)
def test_users_mistakes(name, options, message):
    with pytest.raises(UserError, match=message):
        make(f"{HERE}:{name}", options=options)


def test_built_in_backbones_take_no_options():
    with pytest.raises(UserError, match=r"model.options does not fit the backbone 'resnet18'.*'dropout'"):
        make("resnet18", options={"dropout": 0.5})


def test_module_that_cannot_be_imported():
    with pytest.raises(UserError, match="cannot be imported"):
        make("no_such_package:Net")


def test_the_example_of_the_page_works_and_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    source = next(text for text in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "TwoLayers" in text)
    (tmp_path / "my_nets.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    config = ModelConfig(backbone="my_nets.py:TwoLayers", pretrained="my_nets.py", options={"width": 4})
    monkeypatch.chdir("/")
    assert (config.backbone, config.pretrained) == (f"{tmp_path}/my_nets.py:TwoLayers", f"{tmp_path}/my_nets.py")
    backbone = make_backbone(config, (3, 16, 16), (0.5,), (0.25,))
    assert backbone(torch.rand(2, 3, 16, 16)).shape == (2, 8)
