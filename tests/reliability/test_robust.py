"""The attacks of ``make robust``, and one round of it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr")

from reliability.robust import ATTACKS, RULES, learn, prepare, table

from unisono.core.payload import Payload

RECEIVED = Payload({"encoder": {"w": torch.tensor([3.0, 4.0]), "steps": torch.tensor(7)}})
HONEST = Payload({"encoder": {"w": torch.tensor([3.0, 4.5]), "steps": torch.tensor(8)}})


def sent(attack: str) -> torch.Tensor:
    forged = ATTACKS[attack](HONEST, RECEIVED, torch.Generator().manual_seed(0)).groups["encoder"]
    assert int(forged["steps"]) == 8
    return forged["w"]


def test_attacks_by_hand() -> None:
    assert sent("sign flip").tolist() == [3.0, 3.5]
    assert sent("scaled").tolist() == [3.0, -1.0]
    assert float((sent("noise") - RECEIVED.groups["encoder"]["w"]).norm()) == pytest.approx(3 * 0.5)
    assert sent("collapse").tolist() == pytest.approx([3.0 * 0.7, 4.0 * 0.7]), "1.5 of a length of 5 nearer to zero"


def test_the_screen_leaves_out_all_who_scale() -> None:
    few = ("data.limit=400", "data.test_limit=100", "training.local_epochs=1")
    screened = prepare(0, [*RULES["mean, screened (default)"], *few])
    assert learn(screened, "scaled", 6, rounds=1)[1] == 6
    assert learn(screened, "none", 0, rounds=1)[1] == 0


def test_the_table_has_means_over_seeds() -> None:
    cells = [("none", 0), ("noise", 2)]
    found: dict[tuple[object, ...], dict[str, float]] = {(seed, "floors", "", 0): {"raw pixels": 50.0} for seed in (0, 1)}
    found |= {(seed, rule, *cell): {"linear": 60.0 + seed} for seed in (0, 1) for rule in RULES for cell in cells}
    lines = table(found, 2, cells)
    assert lines[0] == "| Rule | no attack | noise, 2 of 20 |"
    assert "| median | 60.5 | 60.5 |" in lines
    assert lines[-1] == "floors: raw pixels 50.0"
    del found[1, "median", "noise", 2]
    assert lines == [*table(found, 2, cells)[:4], "| median | 60.5 | 60.5 |", *table(found, 2, cells)[4:]], "whole rows alone"
