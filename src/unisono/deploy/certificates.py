"""Certificates and keys of a federation: its own authority, the server's certificate, and a key pair per client."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unisono.core.errors import UserError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 365
WARN_DAYS = 30
"""Days before the end of a certificate from which on people are told."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Authority:
    """A certificate authority.

    Args:
        key: signs certificates.
        certificate: what others trust.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def create(name: str) -> Authority:
        """Return a new authority that vouches for itself, and for servers only, not for other authorities."""
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return Authority(key, builder.sign(key, hashes.SHA384()))

    @staticmethod
    def open(path: Path) -> Authority:
        """Return the authority in the directory that ``unisono deploy init`` made for it."""
        try:
            key = serialization.load_pem_private_key((path / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((path / "ca.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} holds no authority ({error}): give --authority the directory that 'unisono deploy init' made."
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UserError(f"ca.key and ca.crt in {path} do not belong together: fetch them from a backup.")
        return Authority(key, certificate)

    def certify(self, names: Iterable[str], days: int = SERVER_DAYS) -> tuple[bytes, bytes]:
        """Return key and certificate of a server, both PEM.

        Args:
            names: host names and addresses that clients know it by; those of its own machine are added.
            days: that the certificate holds.
        """
        key = ec.generate_private_key(ec.SECP384R1())
        known = list(dict.fromkeys([*names, *LOCAL_NAMES]))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, known[0][:64])])
        builder = _builder(subject, self.certificate.subject, key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(name) for name in known]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        return private_pem(key), builder.sign(self.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def certified_names(pem: bytes) -> list[str]:
    """Return the host names and addresses in a server's certificate, the one that clients use first."""
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def expiry(path: Path, now: datetime.datetime | None = None) -> tuple[datetime.datetime, str]:
    """Return when a certificate ends, and a warning if that is soon or over; an empty one if not.

    Args:
        path: the certificate.
        now: the time; the present where None.
    """
    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    days = (end - (now or datetime.datetime.now(datetime.UTC))).total_seconds() / 86400
    if days > WARN_DAYS:
        return end, ""
    when = f"ends in {int(days)} days" if days > 0 else "has ended"
    return end, f"{path.name} {when}, on {end:%Y-%m-%d}: renew it with 'unisono deploy rotate'"


def make_node_key() -> tuple[bytes, str]:
    """Return a client's private key, and its public key as one line, both as OpenSSH writes them (P-384, as Flower asks)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public.decode()


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key, not encrypted: the file's permissions protect it."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
