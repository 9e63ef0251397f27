"""A federation's directory: keys nobody else can read, certificates that hold, configs that read back."""

from __future__ import annotations

import ipaddress
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from tests.attacks import attack
from unisono.core.errors import UserError
from unisono.deploy.directories import ClientDirectory, ServerDirectory, read_keys
from unisono.deploy.init import create_federation
from unisono.deploy.policy_tables import Policy, strict_tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "federation"
    create_federation(path, 2, ["fed.example.org", "10.1.2.3"], 9092)
    return path


@attack("B7", "Reads keys, tokens and states as another user of the machine", "only the owner's account may")
def test_secrets_are_their_owners_alone(made: Path) -> None:
    secret = ["authority/ca.key", "server/server.key", "client-0/node.key", "client-1/node.key", "client-0/runtime.secret"]
    assert all(stat.S_IMODE((made / name).stat().st_mode) == 0o600 for name in secret)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (made, *made.glob("*/")))
    assert not list(made.glob("client-*/ca.key"))
    assert not list((made / "server").glob("*ca.key"))


def test_the_servers_certificate_is_the_authoritys_and_names_its_addresses(made: Path) -> None:
    server = x509.load_pem_x509_certificate((made / "server" / "server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((made / "client-0" / "ca.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"fed.example.org", "localhost"}
    addresses = {ipaddress.ip_address(text) for text in ("10.1.2.3", "127.0.0.1", "::1")}
    assert set(names.get_values_for_type(x509.IPAddress)) == addresses
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.create_default_context(cafile=str(made / "client-1" / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made / "server" / "server.crt", made / "server" / "server.key")


def test_everyone_knows_everyones_public_key(made: Path) -> None:
    keys = read_keys(made / "server" / "nodes.json")
    assert sorted(keys) == [0, 1]
    for client, line in keys.items():
        directory = ClientDirectory.open(made / f"client-{client}")
        assert directory.keys == keys
        private = load_ssh_private_key(directory.key.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        assert private.public_key() == load_ssh_public_key(line.encode())


def test_configs_read_back(made: Path) -> None:
    server = ServerDirectory.open(made)
    assert (server.config.num_clients, server.config.insecure, server.address) == (2, False, "127.0.0.1:9092")
    client = ClientDirectory.open(made / "client-1").config
    assert (client.client_id, client.server, client.insecure) == (1, "fed.example.org:9092", False)
    assert ClientDirectory.open(made / "client-0").config.port != client.port


def test_a_server_listens_to_others_only_if_it_is_told_to(made: Path, tmp_path: Path) -> None:
    assert ServerDirectory.open(made).config.host == "0.0.0.0", "it has a name"
    for number, (host, expected) in enumerate([("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1")]):
        create_federation(tmp_path / str(number), 1, [host])
        assert ServerDirectory.open(tmp_path / str(number)).config.host == expected


def test_a_new_client_is_stricter_than_the_defaults(made: Path, tmp_path: Path) -> None:
    two = ClientDirectory.open(made / "client-0").config
    assert (two.allow.approve, two.require.secure_aggregation, two.require.min_cohort) == ("recipe-hash", False, 3)
    assert (two.budget.max_rounds, two.budget.max_runs) == (2000, 20)
    assert [strict_tables(number)["require"]["min_cohort"] for number in (1, 3, 4, 5, 6, 7, 99)] == [3, 3, 3, 4, 5, 5, 5]
    create_federation(tmp_path / "f", 9)
    nine = ClientDirectory.open(tmp_path / "f" / "client-8").config
    assert (nine.require.secure_aggregation, nine.require.min_cohort) == (True, 5)
    text = (tmp_path / "f" / "client-8" / "client.toml").read_text()
    keys = [key for table in Policy().tables.values() for key in table.model_dump()]
    assert all(f"\n{key} =" in text or f"\n# {key} =" in text for key in keys)


def test_insecure_is_said_everywhere_and_has_no_certificates(tmp_path: Path) -> None:
    create_federation(tmp_path / "f", 1, insecure=True)
    assert ServerDirectory.open(tmp_path / "f").certificate is None
    assert ClientDirectory.open(tmp_path / "f" / "client-0").config.insecure
    assert not list((tmp_path / "f").glob("*/server.crt"))


def test_a_directory_that_holds_something_is_left_alone(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        create_federation(made, 2)
    with pytest.raises(UserError, match="at least 1"):
        create_federation(tmp_path / "f", 0)
    with pytest.raises(UserError, match="unisono deploy init"):
        ServerDirectory.open(tmp_path)


def test_a_misspelt_option_is_named(tmp_path: Path) -> None:
    create_federation(tmp_path / "f", 1)
    path = tmp_path / "f" / "client-0" / "client.toml"
    path.write_text(path.read_text().replace("min_samples =", "min_sample ="))
    with pytest.raises(UserError, match=r"client\.require\.min_sample is not a known option\. Did you mean 'min_samples'"):
        ClientDirectory.open(path.parent)
