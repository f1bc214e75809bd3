"""Posts requests to one URL by the check client's rules: signature, breaker, rate, timeout, TLS (docs/checks.md)."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pycurl

from checkback.check.circuit_breaker import CircuitBreaker, Limits, State
from checkback.check.client import unreadable
from checkback.check.connections import Connections, Handle, options
from checkback.check.endpoint import Endpoint
from checkback.check.endpoint_health import Rate, RateState
from checkback.check.wire import MAX_ANSWER, StatusError, read_retry_after
from checkback.consumer.listener_calls import NotConsumedError
from checkback.errors import SettingsError
from checkback.rotated import Rotated, is_token
from checkback.signature import Signer
from checkback.urls import host_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.check.connections import Post, Response
    from checkback.rotated import Texts
    from checkback.settings.model import Check, Push

_SUCCESS = range(200, 300)
_HEADERS = ["Accept: */*", "Accept-Encoding: identity", "User-Agent: checkback"]
#: requests of which is known that they were told to wait alone
_MOST_REFUSED = 10_000
#: time for which others wait for the request that was told to wait first; a thread for room, and for a pause's end (s)
_FIRST_S, _ROOM_S, _READY_S = 1.0, 0.1, 0.02
_LAST_OF_HEADER = (b"\r\n", b"\n")
_log = logging.getLogger("checkback.push")


class Request(NamedTuple):
    """``lines``: its own headers; ``message_id``: the same for each try."""

    lines: list[str]
    body: bytes
    message_id: str


class Try(NamedTuple):
    """A request in flight. ``turn``: the breaker's; ``probe``: it is the only one that was let through."""

    message_id: str
    turn: int
    probe: bool


class WaitError(Exception):
    """The request was not sent, or was answered with Retry-After: it is to be sent again when `Webhook.ready`.

    ``suspect``: it was the first one that was told so, and is to be the next one, alone.
    """

    def __init__(self, suspect: bool = False) -> None:
        super().__init__()
        self.suspect = suspect


class _Credentials(NamedTuple):
    signer: Signer | None
    lines: list[str]

    @classmethod
    def of(cls, texts: Texts) -> _Credentials:
        """``texts``: of secret and token, as far as they are set."""
        lines = [f"Authorization: Bearer {texts['token'].split()[0]}"] if "token" in texts else []
        return cls(Signer(texts["secret"]) if "secret" in texts else None, lines)


def _refuse_other(text: str, where: str) -> None:
    if where.endswith(".secret"):
        Signer(text, where)
    elif not is_token(text.split(maxsplit=1)[0]):
        raise SettingsError("its file has what is not a bearer token", where, "write the token alone")


class Webhook:
    """One URL, for the threads of a consumer group: each has a connection of its own.

    ``clock``: seconds since the epoch. Raises SettingsError for an invalid URL, secret or check.ca_file.
    """

    def __init__(self, group: str, push: Push, check: Check, clock: Callable[[], float] = time.time) -> None:
        where, timeout_s = f"push.{group}", push.timeout.total_seconds()
        self.group, self.shown = group, host_only(push.url)
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
        self._secrets = Rotated(secrets, f"{where}.{{}}", _Credentials.of, _refuse_other)
        self._ca_file = check.ca_file
        try:
            self._options = options(check.ca_file, MAX_ANSWER) | {pycurl.TIMEOUT_MS: max(1, round(timeout_s * 1000))}
        except OSError as error:
            raise unreadable(check.ca_file, error) from error
        per_second = push.requests_per_second
        self._rate = None if per_second is None else Rate(per_second, push.requests_burst)
        self._used = RateState()
        self._lock = threading.Lock()
        #: requests so far that were neither told to wait nor failed by the URL's fault; those of them that were alone
        self.answered = self._passed = 0
        #: by message id of what was told to wait alone, `_passed` at that time
        self._refused: dict[str, int] = {}
        #: the message that was told to wait first, until it is alone
        self._first: str | None = None
        #: after a pause, how many more requests may be in flight; None = as many as there are
        self._room: int | None = None
        self._most, self._moved_at = push.concurrency, 0.0
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

    def is_closed_before_ready(self) -> bool:
        """Wait until a request may be sent; True if none is to wait any longer."""
        while not self.ready:
            if self.closed.wait(_READY_S):
                return True
        return False

    def post(self, request: Request) -> None:
        """Send a request; returns once it was answered with 2xx.

        Raises WaitError, NotConsumedError: why it failed, without what the server said.
        """
        mine = request.message_id
        if not self.has_room(mine) and (self.closed.wait(_ROOM_S) or not self.has_room(mine)):
            raise WaitError
        while wait_s := self.rate_wait(mine):
            if self.closed.wait(wait_s):
                raise WaitError
        post, sent = self.begin(request)
        handle = self._handle()
        handle.prepare(post)
        self.heard(handle.perform(self._timeout_s), sent)

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

    def has_room(self, message_id: str) -> bool:
        """False for a moment after a pause, while another message is to be alone, or those in flight are enough."""
        with self._lock:
            return self._has_room(message_id, self._clock())

    def _has_room(self, message_id: str, now: float) -> bool:
        # Neither lasts: the other message may have gone to another process, and requests in flight with their thread.
        breaker = self._endpoint.breaker
        state = breaker.state(now, self._limits)
        if state is State.HALF_OPEN:
            return self._first in (None, message_id) or not 0 <= now - breaker.until < _FIRST_S
        return state is not State.CLOSED or self._room != 0 or not 0 <= now - self._moved_at < self._limits.trial_s

    def begin(self, request: Request) -> tuple[Post, Try]:
        """The POST of a request, and what `heard` is given with the response. Raises WaitError."""
        now = self._clock()
        with self._lock:
            turn = self._endpoint.enter(now) if self._has_room(request.message_id, now) else State.ON_TRIAL
            if isinstance(turn, State):
                raise WaitError
            sent = Try(request.message_id, turn, self._endpoint.breaker.trial_until > 0)
            if sent.probe:
                self._first = None
            elif self._room:
                self._room -= 1
            self._moved_at = now
        told, credentials = {"webhook-id": request.message_id}, self._secrets.current
        if credentials.signer is not None:
            told = credentials.signer.headers(request.message_id, now, request.body)
        lines = [*request.lines, *_HEADERS, *credentials.lines, *(f"{name}: {value}" for name, value in told.items())]
        return self._endpoint.request(lines, request.body), sent

    def heard(self, response: Response, sent: Try) -> None:
        """Returns for a response that is 2xx. Raises WaitError, NotConsumedError.

        After a pause requests in flight grow from one, by one for each that is answered. The message that was told to
        wait first is alone then: one that is told so twice, while another alone passes, has failed: it would hold them
        up for ever. Among others it may be one too many for the receiver's rate.
        """
        now, retry_after_s = self._clock(), None
        error: str | None = response.error or "no final response"
        broken = True
        if response.status in _SUCCESS and (response.error is None or _has_whole_header(response)):
            error, broken = None, False  # the body may be cut short
        elif response.status and response.status not in _SUCCESS:
            status = StatusError(response.status, response.header("Retry-After"))
            error, broken = str(status), status.broken
            retry_after_s = read_retry_after(status.retry_after, now)
        waits = retry_after_s is not None
        with self._lock:
            before = self._endpoint.breaker
            if broken:
                self._endpoint.broken(now, sent.turn, retry_after_s)
            else:
                self._endpoint.answered(now, sent.turn)
                self.answered += 1
                self._passed += sent.probe
                self._refused.pop(sent.message_id, None)
            after = self._endpoint.breaker
            opened = after.until > 0 and after.until != before.until
            if opened:
                self._room = 0
            if waits and not before.until:
                self._first = sent.message_id
            if self._room is not None and sent.turn == after.turn:
                self._room += (not sent.probe) + (not broken)
                self._room = None if self._room >= self._most else self._room
            self._moved_at = now
            suspect = waits and self._first == sent.message_id
            failed = not waits or (sent.probe and self._has_failed(sent.message_id))
        if opened:
            wait_s = after.until - now
            _log.warning("group %s: %s: %s; it is left alone for %.0f s", self.group, self.shown, error, wait_s)
        if not failed:
            raise WaitError(suspect)
        if error is not None:
            raise NotConsumedError(error)

    def _has_failed(self, message_id: str) -> bool:
        """Whether others passed alone since the message was told to wait alone, as it is again. Under the lock."""
        failed = self._passed > self._refused.pop(message_id, self._passed)
        if len(self._refused) >= _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[message_id] = self._passed
        return failed

    def connections(self) -> Connections[Any]:
        """Connections for one thread that has several requests in flight."""
        return Connections(self._timeout_s, self._ca_file)

    def _handle(self) -> Handle:
        found: Handle | None = getattr(self._threads, "handle", None)
        if found is None:
            found = self._threads.handle = Handle(self._options)
        return found


def _has_whole_header(response: Response) -> bool:
    return bool(response.headers) and response.headers[-1] in _LAST_OF_HEADER
