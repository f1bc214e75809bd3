"""The endpoints of a group, made ready: what is sent to them, and who may try them now."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from threading import Condition
from typing import TYPE_CHECKING

import requests

from checkback.check.breaker import Breaker, Limits, State
from checkback.check.signature import Signer
from checkback.errors import SettingsError
from checkback.urls import postable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.check.traffic import Place

_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # 4 KiB are 4 KiB, not a gzip bomb
    "User-Agent": "checkback",
}


@dataclass(frozen=True)
class Group:
    """A producer group: URLs of one and the same service, and the secret its checks are signed with."""

    endpoints: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    include_body: bool = False


class Endpoint:
    """One URL, prepared once, and its breaker; safe to use from many threads."""

    def __init__(self, url: str, where: str, limits: Limits, breaker: Breaker) -> None:
        if not postable(url):
            # The URL is not quoted: it may hold a password.
            raise SettingsError(
                "an endpoint is not a URL to POST to", where, "write http(s)://host[:port]/path, without user and #"
            )
        self._template = requests.Request("POST", url, headers=_HEADERS).prepare()
        self.url = url
        self._limits = limits
        self._breaker = breaker
        self._changed = Condition()

    @property
    def breaker(self) -> Breaker:
        """What is known of it now."""
        return self._breaker

    def prepare(self, body: str, headers: Mapping[str, str]) -> requests.PreparedRequest:
        """The POST to it."""
        prepared = self._template.copy()
        prepared.body = body.encode("ascii")
        prepared.headers.update({**headers, "Content-Length": str(len(body))})
        return prepared

    def enter(self, now: float) -> int | State:
        """Let a try in: its turn, to be given back with its outcome. Or not, by the breaker's state."""
        with self._changed:
            entered = self._breaker.enter(now, self._limits)
            if entered is None:
                return self._breaker.state(now, self._limits)
            self._breaker = entered
            return entered.turn

    def answered(self, now: float, turn: int) -> None:
        """A try found it well."""
        with self._changed:
            self._breaker = self._breaker.answered(now, turn)
            self._changed.notify_all()

    def broken(self, now: float, turn: int, retry_after_s: float | None) -> None:
        """A try found it broken."""
        with self._changed:
            self._breaker = self._breaker.broken(now, turn, self._limits, retry_after_s)
            self._changed.notify_all()

    def await_trial(self, now: float) -> None:
        """Wait until the trial that is under way has ended, or had its time."""
        with self._changed:
            trial = self._breaker
            self._changed.wait_for(
                lambda: self._breaker.turn != trial.turn or not self._breaker.trial_until, trial.trial_until - now
            )

    def why_not(self) -> str:
        """Why a try was not let in, for `check_answers`."""
        breaker = self._breaker
        if breaker.asked_for:
            until = datetime.fromtimestamp(breaker.until, tz=timezone.utc)
            return f"not tried: it asked to be left alone until {until:%Y-%m-%d %H:%M:%S}"
        return f"not tried: {breaker.failed} tries in a row failed"


class Service:
    """A group with its endpoints and its signer made ready."""

    def __init__(self, name: str, group: Group, limits: Limits, breakers: Mapping[Place, Breaker]) -> None:
        where = f"producers.{name}"
        self.endpoints = [
            Endpoint(url, f"{where}.endpoints", limits, breakers.get((name, url), Breaker())) for url in group.endpoints
        ]
        self.signer = None if group.secret is None else Signer(group.secret, f"{where}.secret")
        self.include_body = group.include_body

    def in_turn(self, check_times: int) -> list[Endpoint]:
        """All endpoints; the first check begins at the first one, the second at the second, ..."""
        start = ((check_times or 1) - 1) % len(self.endpoints) if self.endpoints else 0
        return self.endpoints[start:] + self.endpoints[:start]
