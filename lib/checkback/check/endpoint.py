"""The endpoints of a group: prepared requests and circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import CircuitBreaker, Limits, State
from checkback.check.connections import Post
from checkback.errors import SettingsError
from checkback.signature import Signer
from checkback.storage.valid_texts import NOT_TRIED
from checkback.urls import as_sent, masked_each, postable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.check.endpoint_health import Place

_HEADERS = [
    "Content-Type: application/json",
    "Accept: application/json",
    "Accept-Encoding: identity",  # no gzip bomb within 4 KiB
    "User-Agent: checkback",
]


@dataclass(frozen=True)
class CheckedGroup:
    """A producer group: URLs of the same service, and the secret that signs its checks."""

    endpoints: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    include_body: bool = False


@dataclass(frozen=True)
class Trial:
    """The half-open probe of an endpoint, for whose result other checks wait.

    ``turn``: the breaker's; ``until``: the deadline, by the timer.
    """

    endpoint: Endpoint
    turn: int
    until: float

    def over(self, now: float) -> bool:
        """Has it ended or timed out?"""
        breaker = self.endpoint.breaker
        return breaker.turn != self.turn or not breaker.trial_until or now >= self.until


class Endpoint:
    """One URL, prepared once, and its breaker; for one thread. ``shown``: in the tables, which more people read."""

    def __init__(self, url: str, shown: str, where: str, limits: Limits, breaker: CircuitBreaker) -> None:
        if not postable(url):
            # The URL is not quoted: it may contain a password.
            raise SettingsError(
                "an endpoint is not a URL to POST to", where, "write http(s)://host[:port]/path, without user and #"
            )
        self.url = url
        self.shown = shown
        self.breaker = breaker
        self._sent_to = as_sent(url)
        self._limits = limits

    def post(self, body: str, headers: Mapping[str, str]) -> Post:
        """The POST to the endpoint. ``body``: ASCII; ``headers``: besides those common to all checks."""
        lines = [*_HEADERS, *(f"{name}: {value}" for name, value in headers.items())] if headers else _HEADERS
        return self.request(lines, body.encode("ascii"))

    def request(self, lines: list[str], body: bytes) -> Post:
        """A POST with these headers only, as whole lines."""
        return Post(self._sent_to, lines, body)

    def enter(self, now: float) -> int | State:
        """Allow a try: returns its turn, to be passed back with its result; or the breaker's state, if not allowed."""
        entered = self.breaker.enter(now, self._limits)
        if entered is None:
            return self.breaker.state(now, self._limits)
        self.breaker = entered
        return entered.turn

    def answered(self, now: float, turn: int) -> None:
        """Record a successful try."""
        self.breaker = self.breaker.answered(now, turn)

    def broken(self, now: float, turn: int, retry_after_s: float | None) -> None:
        """Record a failed try."""
        self.breaker = self.breaker.broken(now, turn, self._limits, retry_after_s)

    def why_not(self) -> str:
        """Why a try was not allowed, for `check_answers`."""
        breaker = self.breaker
        if breaker.asked_for:
            until = datetime.fromtimestamp(breaker.until, tz=timezone.utc)
            return f"{NOT_TRIED}it asked to be left alone until {until:%Y-%m-%d %H:%M:%S}"
        return f"{NOT_TRIED}{breaker.failed} tries in a row failed"


class Service:
    """A group with its prepared endpoints and signer."""

    def __init__(
        self, name: str, group: CheckedGroup, limits: Limits, breakers: Mapping[Place, CircuitBreaker]
    ) -> None:
        where = f"producers.{name}"
        self.endpoints = [
            Endpoint(url, shown, f"{where}.endpoints", limits, breakers.get((name, url), CircuitBreaker()))
            for url, shown in zip(group.endpoints, masked_each(group.endpoints), strict=True)
        ]
        self.signer = None if group.secret is None else Signer(group.secret, f"{where}.secret")
        self.include_body = group.include_body

    def in_turn(self, check_times: int) -> list[Endpoint]:
        """All endpoints, round-robin: the first check begins at the first one, the second at the second, ..."""
        start = ((check_times or 1) - 1) % len(self.endpoints) if self.endpoints else 0
        return self.endpoints[start:] + self.endpoints[:start]
