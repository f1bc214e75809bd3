"""Posts requests to one URL by the check client's rules: signature, breaker, rate, timeout, TLS (docs/checks.md)."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pycurl

from checkback.check.circuit_breaker import CircuitBreaker, Limits, State
from checkback.check.client import unreadable
from checkback.check.connections import Connections, Handle, options
from checkback.check.endpoint import Endpoint
from checkback.check.endpoint_health import Rate, RateState
from checkback.check.wire import MAX_ANSWER, StatusError, read_retry_after
from checkback.consumer.listener_calls import NotConsumedError
from checkback.rotated import Rotated
from checkback.signature import Signer
from checkback.urls import masked

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.check.connections import Post, Response
    from checkback.rotated import Texts
    from checkback.settings.model import Check, Push

_SUCCESS = range(200, 300)
_HEADERS = ["Accept: */*", "Accept-Encoding: identity", "User-Agent: checkback"]
_log = logging.getLogger("checkback.push")


class Request(NamedTuple):
    """``lines``: its own headers; ``message_id``: the same for each try."""

    lines: list[str]
    body: bytes
    message_id: str


class WaitError(Exception):
    """The request was not sent, or was answered with Retry-After: it is to be sent again when `Webhook.ready`."""


class _Credentials(NamedTuple):
    signer: Signer | None
    lines: list[str]

    @classmethod
    def of(cls, texts: Texts, where: str) -> _Credentials:
        """``texts``: of secret and token, as far as they are set."""
        lines = [f"Authorization: Bearer {texts['token'].split()[0]}"] if "token" in texts else []
        return cls(Signer(texts["secret"], where) if "secret" in texts else None, lines)


class Webhook:
    """One URL, for the threads of a consumer group: each has a connection of its own.

    ``clock``: seconds since the epoch. Raises SettingsError for an invalid URL, secret or check.ca_file.
    """

    def __init__(self, group: str, push: Push, check: Check, clock: Callable[[], float] = time.time) -> None:
        where, timeout_s = f"push.{group}", push.timeout.total_seconds()
        self.group, self.shown = group, masked(push.url)
        limits = Limits(
            failures=check.breaker_failures,
            pause_s=check.breaker_pause.total_seconds(),
            trial_s=timeout_s + 1,
            longest_s=check.retry_after_max.total_seconds(),
        )
        self._limits, self._clock, self._timeout_s = limits, clock, timeout_s
        self._endpoint = Endpoint(push.url, self.shown, f"{where}.url", limits, CircuitBreaker())
        stated = {"secret": push.secret, "token": push.token}
        secrets = {name: each.get_secret_value() for name, each in stated.items() if each is not None}
        self._secrets = Rotated(secrets, f"{where}.{{}}", lambda texts: _Credentials.of(texts, f"{where}.secret"))
        self._ca_file = check.ca_file
        try:
            self._options = options(check.ca_file, MAX_ANSWER) | {pycurl.TIMEOUT_MS: max(1, round(timeout_s * 1000))}
        except OSError as error:
            raise unreadable(check.ca_file, error) from error
        per_second = push.requests_per_second
        self._rate = None if per_second is None else Rate(per_second, push.requests_burst)
        self._used = RateState()
        self._lock = threading.Lock()
        self._threads = threading.local()
        #: no request is to wait any longer
        self.closed = threading.Event()

    def close(self) -> None:
        """Wait no longer for the rate: messages that do are left to another member."""
        self.closed.set()

    @property
    def ready(self) -> bool:
        """True if a request may be sent now, as far as the breaker is concerned."""
        with self._lock:
            state = self._endpoint.breaker.state(self._clock(), self._limits)
        return state in (State.CLOSED, State.HALF_OPEN)

    def post(self, request: Request) -> None:
        """Send a request; returns once it was answered with 2xx.

        Raises WaitError, NotConsumedError: why it failed, without what the server said.
        """
        while wait_s := self.rate_wait(request.message_id):
            if self.closed.wait(wait_s):
                raise WaitError
        post, turn = self.begin(request)
        handle = self._handle()
        handle.prepare(post)
        self.heard(handle.perform(self._timeout_s), turn)

    def rate_wait(self, salt: str) -> float:
        """Seconds until the rate allows the next request; 0: now, and it counts. ``salt``: of the pause after it."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        with self._lock:
            wait_s = self._used.wait(now, self._rate)
            if not wait_s:
                self._used = self._used.sent(now, self._rate, salt)
        return wait_s

    def begin(self, request: Request) -> tuple[Post, int]:
        """The POST of a request, and its turn, which `heard` is given with the response. Raises WaitError."""
        now = self._clock()
        with self._lock:
            turn = self._endpoint.enter(now)
        if isinstance(turn, State):
            raise WaitError
        told, credentials = {"webhook-id": request.message_id}, self._secrets.current
        if credentials.signer is not None:
            told = credentials.signer.headers(request.message_id, now, request.body)
        lines = [*request.lines, *_HEADERS, *credentials.lines, *(f"{name}: {value}" for name, value in told.items())]
        return self._endpoint.request(lines, request.body), turn

    def heard(self, response: Response, turn: int) -> None:
        """Returns for a response that is 2xx. Raises WaitError, NotConsumedError."""
        now, retry_after_s = self._clock(), None
        error = response.error
        broken = error is not None
        if response.status and response.status not in _SUCCESS:
            refused = StatusError(response.status, response.header("Retry-After"))
            error, broken = str(refused), refused.broken
            retry_after_s = read_retry_after(refused.retry_after, now)
        elif error is None and response.status not in _SUCCESS:
            error, broken = "no final response", True
        with self._lock:
            before = self._endpoint.breaker
            if broken:
                self._endpoint.broken(now, turn, retry_after_s)
            else:
                self._endpoint.answered(now, turn)
            after = self._endpoint.breaker
        if after.until and after.until != before.until:
            wait_s = after.until - now
            _log.warning("group %s: %s: %s; it is left alone for %.0f s", self.group, self.shown, error, wait_s)
        if retry_after_s is not None and retry_after_s > 0:
            raise WaitError
        if error is not None:
            raise NotConsumedError(error)

    def connections(self) -> Connections[tuple[int, int]]:
        """Connections for one thread that has several requests in flight."""
        return Connections(self._timeout_s, self._ca_file)

    def _handle(self) -> Handle:
        found: Handle | None = getattr(self._threads, "handle", None)
        if found is None:
            found = self._threads.handle = Handle(self._options)
        return found
