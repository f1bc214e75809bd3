"""A gateway as both producers see it: its address, and whether it is left alone."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checkback.check.circuit_breaker import CircuitBreaker, Limits
from checkback.errors import SettingsError
from checkback.producer.message import Message, half_json
from checkback.rotated import Rotated
from checkback.urls import as_sent, postable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.rotated import Texts

_PROBE = Message("probe", b"")


@dataclass(frozen=True)
class Address:
    """A producer group's gateway URL and token.

    Raises SettingsError for an invalid URL or token, MessageRejectedError for an invalid group name; possible secrets
    are never quoted.
    """

    group: str
    gateway_url: str
    token: str | None = field(default=None, repr=False)
    _headers: Rotated[list[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        half_json(self.group, _PROBE, "probe", 0)  # validates the group's name
        if not _fit(self.gateway_url):
            raise SettingsError("is not a gateway's URL", "gateway_url", "write http(s)://host[:port][/path]")
        stated = {} if self.token is None else {"token": self.token}
        object.__setattr__(self, "_headers", Rotated(stated, "{}", _headers, _refuse_other))

    def url(self, path: str) -> str:
        """The URL of an API path."""
        return self._sent_to + path

    @cached_property
    def _sent_to(self) -> str:
        url = self.gateway_url
        return (url if url.isascii() else as_sent(url)).rstrip("/")

    @property
    def headers(self) -> list[str]:
        """The headers of every request, in lines: the same list until the token changes."""
        return self._headers.current


def _headers(texts: Texts) -> list[str]:
    lines = [
        "Content-Type: application/json",
        "Accept: application/json, application/problem+json",
        "Accept-Encoding: identity",
        "User-Agent: checkback-producer",
    ]
    return [*lines, *(f"Authorization: Bearer {text.split()[0]}" for text in texts.values())]


def _refuse_other(text: str, where: str) -> None:
    token = text.split(maxsplit=1)[0]
    if not (token.isascii() and token.isprintable()):
        raise SettingsError("is no ASCII text", where, "give the group's token")


def addresses(group: str, gateway_url: str | Sequence[str], token: str | None) -> list[Address]:
    """The addresses of a gateway, or of several. Raises as Address does, and SettingsError if there is none."""
    urls = [gateway_url] if isinstance(gateway_url, str) else list(dict.fromkeys(gateway_url))
    if not urls:
        raise SettingsError("names no gateway", "gateway_url", "write http(s)://host[:port][/path], or a list of them")
    return [Address(group, url, token) for url in urls]


def not_pem(ca_file: str | None, error: OSError) -> SettingsError:
    """The error for an unreadable CA file; ssl.SSLError is an OSError, too."""
    reason = os.strerror(error.errno) if isinstance(error, FileNotFoundError) and error.errno else "not PEM"
    return SettingsError(f"{ca_file}: {reason}", "ca_file", "name a file of PEM certificates")


def _fit(url: str) -> bool:
    odd = any(char <= " " or char in "\x7f\\" for char in url)
    return not odd and postable(url) and not urlsplit(url).query


_LIMITS = Limits(failures=1, pause_s=1.0, trial_s=2.0)
#: seconds for the reply to a probe
PROBE_S = 1.0
PROBE = "/readyz"


class Gateway:
    """A gateway's address and circuit breaker. Thread-safe. ``only``: there is no other, it is never left alone."""

    def __init__(self, address: Address, *, only: bool, timer: Callable[[], float]) -> None:
        self.address = address
        self.url = address.gateway_url
        self.only = only
        self._timer = timer
        self.begin()

    def begin(self) -> None:
        """Start over, in the child of a fork."""
        self._lock = Lock()
        self._breaker = CircuitBreaker()

    def is_left_alone(self) -> bool:
        """Has it failed, and not answered a probe since?"""
        return self._breaker.until != 0

    def failed(self, turn: int | None = None) -> None:
        """It gave no reply, or none of its own; ``turn``: to this probe."""
        if self.only:
            return
        with self._lock:
            now, breaker = self._timer(), self._breaker
            if turn is not None or not breaker.until:
                self._breaker = breaker.broken(now, breaker.turn if turn is None else turn, _LIMITS)

    def probe_due(self) -> int | None:
        """The turn of a probe that is to be sent now; None: not yet, or another thread's is on its way."""
        with self._lock:
            entered = self._breaker.enter(self._timer(), _LIMITS) if self._breaker.until else None
            if entered is None:
                return None
            self._breaker = entered
            return entered.turn

    def answered(self, turn: int) -> None:
        """It has answered the probe."""
        with self._lock:
            self._breaker = self._breaker.answered(self._timer(), turn)
