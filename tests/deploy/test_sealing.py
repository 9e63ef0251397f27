"""Only receivers read what is sealed, and only in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unisono.core.forms import is_sealed
from unisono.deploy.certificates import make_node_key, write_secret
from unisono.deploy.sealing import Sealer

PLACE = "run|3|points"


@pytest.fixture(scope="module")
def sealers(tmp_path_factory: pytest.TempPathFactory) -> list[Sealer]:
    root = tmp_path_factory.mktemp("keys")
    public = {}
    for client in range(4):
        private, public[client] = make_node_key()
        write_secret(root / str(client), private)
    return [Sealer(client, root / str(client), public) for client in range(4)]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(60, dtype=torch.uint8).reshape(5, 1, 3, 4),
        torch.randn(3, 2, 7),
        torch.arange(4),
        torch.empty(0, 1, 8, 8, dtype=torch.uint8),
    ],
    ids=["images", "series", "rows", "none"],
)
def test_a_sealed_tensor_comes_back_for_its_receivers(sealers: list[Sealer], tensor: torch.Tensor) -> None:
    sealed = sealers[0].seal(tensor, [1, 2], PLACE)
    assert is_sealed(sealed)
    assert not is_sealed(tensor)
    assert len(sealed) == max(1, len(tensor))
    for receiver in (1, 2):
        opened = sealers[receiver].open(sealed, 0, PLACE)
        assert opened.dtype == tensor.dtype
        assert torch.equal(opened, tensor)


def test_the_server_sees_no_byte_of_the_samples(sealers: list[Sealer]) -> None:
    tensor = torch.full((50, 1, 8, 8), 7, dtype=torch.uint8)
    assert bytes([7] * 16) not in sealers[0].seal(tensor, [1], PLACE).numpy().tobytes()
    assert not torch.equal(sealers[0].seal(tensor, [1], PLACE), sealers[0].seal(tensor, [1], PLACE))


def test_nobody_else_opens_it_and_nowhere_else(sealers: list[Sealer]) -> None:
    sealed = sealers[0].seal(torch.ones(4, 3), [1], PLACE)
    with pytest.raises(ValueError, match="cannot be opened"):
        sealers[2].open(sealed, 0, PLACE)
    with pytest.raises(ValueError, match="cannot be opened"):
        sealers[1].open(sealed, 0, "run|4|points")
    with pytest.raises(ValueError, match="client 0's, not client 3's"):
        sealers[1].open(sealed, 3, PLACE)
    with pytest.raises(ValueError, match="not sealed"):
        sealers[1].open(torch.ones(4, 3).to(torch.uint8), 0, PLACE)


def test_a_changed_byte_is_noticed(sealers: list[Sealer]) -> None:
    sealed = sealers[0].seal(torch.ones(4, 3), [1], PLACE)
    used = int(sealed.nonzero()[-1].prod()) and sealed.flatten().nonzero()[-1]
    for position in (int(used), int(used) // 2, 40):
        changed = sealed.clone().flatten()
        changed[position] ^= 1
        with pytest.raises(ValueError, match="cannot be opened"):
            sealers[1].open(changed.reshape(sealed.shape), 0, PLACE)


def test_pairs_agree_on_secrets_that_differ_by_purpose_and_pair(sealers: list[Sealer]) -> None:
    assert sealers[0].shared_secret(1, b"a") == sealers[1].shared_secret(0, b"a")
    found = {sealers[0].shared_secret(other, purpose) for other in (1, 2) for purpose in (b"a", b"b")}
    assert len(found) == 4
    with pytest.raises(ValueError, match="no public key of client 9"):
        sealers[0].shared_secret(9, b"a")


def test_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    from unisono.core.errors import UserError

    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    (tmp_path / "key").write_bytes(key)
    with pytest.raises(UserError, match="elliptic-curve"):
        Sealer(0, tmp_path / "key", {})
