from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.core.errors import UserError
from unisono.core.payload import Payload
from unisono.models.nets import get_state
from unisono.models.pretrained import load_pretrained
from unisono.runs.files import payload_to_safetensors


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "model").mkdir(parents=True)
    content = payload_to_safetensors(Payload({"encoder": get_state(nn.Linear(3, 2))}))
    (tmp_path / "run" / "model" / "encoder.safetensors").write_bytes(content)
    return tmp_path / "run"


def test_a_run_and_its_file_give_the_same_weights(run: Path) -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    load_pretrained(first, str(run))
    load_pretrained(second, str(run / "model" / "encoder.safetensors"))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_what_is_wrong_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not fit the table"):
        load_pretrained(nn.Linear(4, 2), str(run))
    with pytest.raises(UserError, match="no finished encoder"):
        load_pretrained(nn.Linear(3, 2), str(tmp_path))
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be read"):
        load_pretrained(nn.Linear(3, 2), str(tmp_path / "broken.safetensors"))
