"""The gateway's address, as both producers take it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from checkback.errors import SettingsError
from checkback.producer.message import Message, half_json
from checkback.urls import postable

HALF, OP = "/v1/half", "/v1/op"
_PROBE = Message("probe", b"", transaction_id="probe")


@dataclass(frozen=True)
class Address:
    """Where a producer group sends, and with which token.

    Raises SettingsError for a URL or token, messages.Rejected for a group's name that is not fit; none of them is
    quoted where it may be a secret.
    """

    group: str
    gateway_url: str
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        half_json(self.group, _PROBE, 0)  # a group that no gateway takes is known now
        if not _fit(self.gateway_url):
            raise SettingsError("is not a gateway's URL", "gateway_url", "write http(s)://host[:port][/path]")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise SettingsError("is empty, or no ASCII text in one line", "token", "give the group's token")

    def url(self, path: str) -> str:
        """The URL of a path of the contract."""
        return self.gateway_url.rstrip("/") + path

    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, application/problem+json",
            "Accept-Encoding": "identity",
            "User-Agent": "checkback-producer",
        }
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return headers


def certificates(ca_file: str | None) -> ssl.SSLContext:
    """The authorities that a gateway's certificate is held to: those in ``ca_file`` (PEM), or the system's.

    Raises SettingsError when there are none in it.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise not_pem(ca_file, error) from error


def not_pem(ca_file: str | None, error: OSError) -> SettingsError:
    """The error to raise when no authorities could be read; ssl.SSLError is an OSError too."""
    reason = os.strerror(error.errno) if isinstance(error, FileNotFoundError) and error.errno else "not PEM"
    return SettingsError(f"{ca_file}: {reason}", "ca_file", "name a file of PEM certificates")


def _fit(url: str) -> bool:
    odd = any(char <= " " or char in "\x7f\\" for char in url)
    return not odd and postable(url) and not urlsplit(url).query
