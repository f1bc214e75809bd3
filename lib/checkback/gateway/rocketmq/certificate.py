"""The certificate of the port with TLS: of files, or made at the start. Java's client trusts any."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from checkback.errors import SettingsError

_LASTING = timedelta(days=3650)
_NAME = "checkback"


class Certificate(NamedTuple):
    """The private key and the certificate chain, PEM."""

    key: bytes
    chain: bytes


def certificate_of(certificate: str | None, key: str | None) -> Certificate:
    """That of the files, or one made now if there are none. Raises SettingsError if a file cannot be read."""
    if certificate is None or key is None:
        return self_made()
    return Certificate(_read(key, "gateway.rocketmq.key"), _read(certificate, "gateway.rocketmq.certificate"))


def _read(path: str, setting: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", setting, "name a PEM file") from error


def self_made() -> Certificate:
    """A certificate that signs itself, for this machine's names."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    loopback = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    now = datetime.now(timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LASTING)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *loopback]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return Certificate(private, signed.public_bytes(serialization.Encoding.PEM))
