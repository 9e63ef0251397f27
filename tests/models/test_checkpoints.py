"""Checkpoints of others: files in their layouts, and networks of the same function that are not ours."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from unisono.core.errors import UserError
from unisono.models.backbones import Backbone, ModelConfig, fitting_backbone, make_backbone
from unisono.models.checkpoints import adapted
from unisono.models.pretrained import load_pretrained


class _Block(nn.Module):
    """A residual block with the names of torchvision."""

    def __init__(self, width: int, out: int, stride: int, deep: bool) -> None:
        super().__init__()
        middle = out // 4 if deep else out
        kernels = ((width, middle, 1, 1), (middle, middle, 3, stride), (middle, out, 1, 1)) if deep else (
            (width, out, 3, stride), (out, out, 3, 1))  # fmt: skip
        for number, (a, b, kernel, step) in enumerate(kernels, start=1):
            setattr(self, f"conv{number}", nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(b))
        self.number = len(kernels)
        self.downsample = None
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.number + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            y = F.relu(y) if number < self.number else y
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class _ResNet(nn.Module):
    """A ResNet with the names of torchvision."""

    def __init__(self, depths: tuple[int, ...], width: int, deep: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for stage, depth in enumerate(depths):
            blocks = []
            for position in range(depth):
                out = width * 2**stage * (4 if deep else 1)
                blocks.append(_Block(channels, out, 2 if stage and position == 0 else 1, deep))
                channels = out
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, 10)
        for buffer in self.buffers():
            if buffer.is_floating_point():
                nn.init.uniform_(buffer, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


def _start(path: Path, shape: tuple[int, ...], **options: object) -> tuple[Backbone, str, ModelConfig]:
    config = fitting_backbone(ModelConfig(pretrained=str(path), **options), shape, on_gpu=False)
    encoder = make_backbone(config, shape, (0.0,), (1.0,))
    return encoder.eval(), load_pretrained(encoder, str(path)), config


@pytest.mark.parametrize(
    ("name", "depths", "deep"),
    [("resnet18", (2, 2, 2, 2), False), ("resnet34", (3, 4, 6, 3), False), ("resnet50", (3, 4, 6, 3), True)],
)
@pytest.mark.parametrize("kind", ["pth", "safetensors", "moco"])
def test_a_resnet_of_torchvision_is_the_same_function(tmp_path, name, depths, deep, kind):
    torch.manual_seed(0)
    theirs = _ResNet(depths, 8, deep).eval()
    file = tmp_path / f"weights.{'safetensors' if kind == 'safetensors' else 'pth'}"
    if kind == "safetensors":
        save_file(theirs.state_dict(), file)
    elif kind == "pth":
        torch.save(theirs.state_dict(), file)
    else:
        torch.save({"epoch": 3, "state_dict": {f"module.encoder_q.{k}": v for k, v in theirs.state_dict().items()}}, file)
    ours, sentence, config = _start(file, (3, 64, 64))
    assert (config.backbone, config.stem, config.width) == (name, "imagenet", 1 / 8)
    x = torch.rand(2, 3, 64, 64)
    assert torch.allclose(ours(x), theirs(x), atol=1e-4)
    number = len(ours.trunk.state_dict()) - sum("tracked" in name for name in ours.trunk.state_dict())
    assert sentence == f"model.pretrained: {number} of {number} tensors fitted; left out fc.bias, fc.weight"


def test_small_and_grey_images_get_an_adapted_stem(tmp_path):
    theirs = _ResNet((2, 2, 2, 2), 8, False)
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    ours, sentence, config = _start(tmp_path / "a.pth", (1, 28, 28))
    assert config.stem == "3x3"
    assert "adapted conv.weight from 8x3x7x7 to 8x1x3x3" in sentence
    # A constant image has the same answer: the sum of all weights is kept.
    total = theirs.conv1.weight.sum((1, 2, 3))
    assert torch.allclose(ours.trunk.conv.weight.sum((1, 2, 3)), total, atol=1e-4)
    five = adapted("conv.weight", theirs.conv1.weight.detach(), torch.Size((8, 5, 7, 7)))
    assert five.shape == (8, 5, 7, 7)
    assert torch.allclose(five[:, 3], theirs.conv1.weight[:, 0] * 3 / 5)


class _Vit(nn.Module):
    """A ViT of torch's own transformer layers."""

    def __init__(self, dim: int, heads: int, depth: int, patch: int, grid: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, grid * grid + 1, dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", 1e-12, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), -1, -1), tokens), 1) + self.positions
        for layer in self.layers:
            tokens = layer(tokens)
        return self.norm(tokens)[:, 0]


def _hugging_face(folder: Path, vit: _Vit, heads: int, prefix: str = "", dino_v2: bool = False) -> None:
    """Write the folder that save_pretrained writes."""
    state = {
        "embeddings.cls_token": vit.token,
        "embeddings.position_embeddings": vit.positions,
        "embeddings.patch_embeddings.projection.weight": vit.patches.weight,
        "embeddings.patch_embeddings.projection.bias": vit.patches.bias,
        "layernorm.weight": vit.norm.weight,
        "layernorm.bias": vit.norm.bias,
        "pooler.dense.weight": torch.zeros(2, 2),
    }
    for number, layer in enumerate(vit.layers):
        base = f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            parts = getattr(layer.self_attn, f"in_proj_{kind}").chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                state[f"{base}.attention.attention.{name}.{kind}"] = part.clone()
            state[f"{base}.attention.output.dense.{kind}"] = getattr(layer.self_attn.out_proj, kind)
            first, second = ("norm1", "norm2") if dino_v2 else ("layernorm_before", "layernorm_after")
            state[f"{base}.{first}.{kind}"] = getattr(layer.norm1, kind)
            state[f"{base}.{second}.{kind}"] = getattr(layer.norm2, kind)
            up, down = ("mlp.fc1", "mlp.fc2") if dino_v2 else ("intermediate.dense", "output.dense")
            state[f"{base}.{up}.{kind}"] = getattr(layer.linear1, kind)
            state[f"{base}.{down}.{kind}"] = getattr(layer.linear2, kind)
        if dino_v2:
            state[f"{base}.layer_scale1.lambda1"] = torch.ones(vit.norm.weight.shape)
            state[f"{base}.layer_scale2.lambda1"] = torch.ones(vit.norm.weight.shape)
    folder.mkdir()
    save_file({prefix + name: tensor.detach().clone() for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": heads, "layer_norm_eps": 1e-12, "hidden_size": 32}))


@pytest.mark.parametrize(("prefix", "dino_v2"), [("", False), ("vit.", False), ("dinov2.", True)])
def test_a_folder_of_hugging_face_is_the_same_function(tmp_path, prefix, dino_v2):
    torch.manual_seed(0)
    theirs = _Vit(32, 4, 3, 8, 4).eval()
    _hugging_face(tmp_path / "vit", theirs, 4, prefix, dino_v2)
    ours, sentence, config = _start(tmp_path / "vit", (3, 32, 32))
    assert config.backbone == "vit"
    assert config.options["heads"] == 4
    assert "left out pooler.dense.weight" in sentence
    x = torch.rand(2, 3, 32, 32)
    assert torch.allclose(ours(x), theirs(x), atol=1e-3)
    other, sentence, _ = _start(tmp_path / "vit", (1, 48, 48))
    assert "pos_embed from 1x17x32 to 1x37x32" in sentence
    assert other(torch.rand(2, 1, 48, 48)).isfinite().all()


class _Evil:
    def __reduce__(self):
        return print, ("this ran",)


def test_what_cannot_be_taken_is_one_sentence(tmp_path, capsys):
    for name, content in (("evil.pth", {"weight": _Evil()}), ("module.pth", nn.Linear(2, 2))):
        with (tmp_path / name).open("wb") as file:
            pickle.dump(content, file) if name == "evil.pth" else torch.save(content, file)
        with pytest.raises(UserError, match=r"more than tensors, and reading it could run code"):
            _start(tmp_path / name, (3, 32, 32), backbone="resnet18")
    assert "this ran" not in capsys.readouterr().out
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="must hold named tensors"):
        _start(tmp_path / "list.pth", (3, 32, 32), backbone="resnet18")
    torch.save(_ResNet((2, 2, 2, 2), 8, False).state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"\(64, 3, 3, 3\) and has shape \(8, 3, 7, 7\) in it; leave model.backbone unset"):
        _start(tmp_path / "a.pth", (3, 32, 32), backbone="resnet18")
    with pytest.raises(UserError, match="no such file"):
        _start(tmp_path / "none.pth", (3, 32, 32), backbone="resnet18")


@pytest.mark.parametrize("backbone", ["resnet18", "convnet", "vit"])
def test_frozen_stages_keep_weights_and_statistics(backbone):
    options = {"depth": 2, "dim": 12} if backbone == "vit" else {}
    config = ModelConfig(backbone=backbone, width=0.1, frozen_stages=2, options=options)
    encoder = make_backbone(config, (3, 32, 32), (0.5,), (0.2,))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.train()
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=0.1)
    encoder(torch.rand(8, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    same = {name for name, tensor in encoder.state_dict().items() if torch.equal(tensor, before[name])}
    frozen = {name for name in before if name.removeprefix("trunk.").startswith(tuple(f"{part}" for part in encoder.frozen))}
    assert frozen
    assert same >= frozen
    assert len(same) < len(before)


@pytest.mark.parametrize(("backbone", "number", "message"), [("resnet18", 5, "at most 4"), ("cfcl-cnn", 1, "no stages")])
def test_too_many_frozen_stages(backbone, number, message):
    with pytest.raises(UserError, match=message):
        make_backbone(ModelConfig(backbone=backbone, width=0.1, frozen_stages=number), (3, 32, 32), (0.5,), (0.2,))
