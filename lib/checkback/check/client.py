"""The client that asks producers what became of their transactions. No Spark: it runs wherever a task runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import requests
from urllib3 import Timeout

from checkback.check.deadline import DeadlineAdapter, StaleConnectionError
from checkback.check.exchange import MAX_ANSWER, NO_ANSWER, CheckAnswer, CheckRequest, NoAnswerError, read_answer
from checkback.check.failure import TIMED_OUT, causes, describe
from checkback.check.signature import Signer
from checkback.errors import SettingsError
from checkback.urls import postable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from requests.adapters import HTTPAdapter
    from urllib3.response import BaseHTTPResponse

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


class _Endpoint:
    """One URL, prepared once, and how often in a row it was too late."""

    def __init__(self, url: str, where: str) -> None:
        if not postable(url):
            # The URL is not quoted: it may hold a password.
            raise SettingsError(
                "an endpoint is not a URL to POST to", where, "write http(s)://host[:port]/path, without user and #"
            )
        self._template = requests.Request("POST", url, headers=_HEADERS).prepare()
        self.url = url
        self._late = 0
        self._lock = Lock()

    def prepare(self, body: str, headers: Mapping[str, str]) -> requests.PreparedRequest:
        prepared = self._template.copy()
        prepared.body = body.encode("ascii")
        prepared.headers.update({**headers, "Content-Length": str(len(body))})
        return prepared

    @property
    def late(self) -> int:
        """Tries in a row, the latest ones, that timed out."""
        return self._late

    def tried(self, timed_out: bool) -> None:
        with self._lock:
            self._late = self._late + 1 if timed_out else 0


class _Service:
    """A group with its endpoints and its signer made ready."""

    def __init__(self, name: str, group: Group) -> None:
        where = f"producers.{name}"
        self.endpoints = [_Endpoint(url, f"{where}.endpoints") for url in group.endpoints]
        self.signer = None if group.secret is None else Signer(group.secret, f"{where}.secret")
        self.include_body = group.include_body

    def in_turn(self, check_times: int) -> list[_Endpoint]:
        """All endpoints; the first check begins at the first one, the second at the second, ..."""
        start = ((check_times or 1) - 1) % len(self.endpoints) if self.endpoints else 0
        return self.endpoints[start:] + self.endpoints[:start]


class CheckClient:
    """Asks the endpoints of a request's group; safe to call from many threads.

    ``timeout_s`` bounds each try as a whole, from connecting to the last byte. ``connections`` are kept alive per
    host. ``give_up_after``: an endpoint that timed out that often in a row is not tried any more by this client (one
    lives as long as a task of a batch): a producer that hangs costs a batch a few timeouts, not one for each request.
    ``clock`` tells seconds since the epoch, ``timer`` seconds of any origin; ``adapter`` opens the connections.
    An adapter alone, without a session, follows no redirect, keeps no cookie, and takes neither proxies nor
    credentials from the environment: what is asked is what the settings name.

    Raises SettingsError for an endpoint, a secret or a ``ca_file`` (PEM; None: the system's authorities) that is
    not fit; no error or repr ever holds a secret.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        timeout_s: float,
        ca_file: str | None = None,
        *,
        connections: int = 32,
        give_up_after: int | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        adapter: HTTPAdapter | None = None,
    ) -> None:
        self._services = {name: _Service(name, group) for name, group in groups.items()}
        self._timeout_s = timeout_s
        self._give_up_after = give_up_after
        self._clock, self._timer = clock, timer
        self._adapter = adapter or _adapter(self._services, ca_file, connections)

    def __enter__(self) -> CheckClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are kept alive."""
        self._adapter.close()

    def ask(self, request: CheckRequest) -> CheckAnswer:
        """What the group says of the transaction: always an answer, NO_ANSWER when there is none.

        Its endpoints are tried in turn until one answers; UNKNOWN is an answer.
        """
        started = self._timer()
        service = self._services.get(request.producer_group)
        failed: list[tuple[str, str]] = []
        outcome, endpoint, error = NO_ANSWER, None, None
        if service is None or not service.endpoints:
            error = f"producers.{request.producer_group} has no endpoints"[:200]
        else:
            body = request.to_json(service.include_body)
            for tried in service.in_turn(request.check_times):
                if endpoint is not None and error is not None:
                    failed.append((endpoint, error))
                endpoint = tried.url
                outcome, error = self._try(tried, service.signer, request, body)
                if outcome != NO_ANSWER:
                    break
        return CheckAnswer(
            outcome=outcome,
            endpoint=endpoint,
            error=error,
            latency_ms=round((self._timer() - started) * 1000),
            answered_at=datetime.fromtimestamp(self._clock(), tz=timezone.utc),
            failed_tries=tuple(failed),
        )

    def _try(
        self, endpoint: _Endpoint, signer: Signer | None, request: CheckRequest, body: str
    ) -> tuple[str, str | None]:
        """(outcome, error) of one endpoint."""
        late = endpoint.late
        if self._give_up_after is not None and late >= self._give_up_after:
            return NO_ANSWER, f"not tried: {late} tries in a row timed out"
        try:
            headers = {} if signer is None else signer.headers(request.webhook_id, self._clock(), body)
            prepared = endpoint.prepare(body, headers)
            answer = self._post(prepared)
            outcome, error = read_answer(answer, request.transaction_id), None
        except NoAnswerError as refused:
            outcome, error = NO_ANSWER, str(refused)
        except Exception as failure:  # noqa: BLE001 - whatever a producer does to one request, the others go on
            outcome, error = NO_ANSWER, describe(failure, self._timeout_s)
        endpoint.tried(timed_out=error is not None and error.startswith(TIMED_OUT))
        return outcome, error

    def _post(self, prepared: requests.PreparedRequest) -> bytes:
        """The body of a 200, of at most 4 KiB + 1. A stale kept-alive connection is replaced once, in the same time."""
        until = self._timer() + self._timeout_s
        try:
            return self._send(prepared, self._timeout_s)
        except requests.ConnectionError as error:
            if not any(isinstance(cause, StaleConnectionError) for cause in causes(error)):
                raise
        left = until - self._timer()
        if left <= 0:
            raise TimeoutError
        return self._send(prepared, left)

    def _send(self, prepared: requests.PreparedRequest, timeout_s: float) -> bytes:
        total = Timeout(total=timeout_s)
        response: BaseHTTPResponse = self._adapter.send(prepared, stream=True, timeout=total).raw  # type: ignore[arg-type]  # requests takes urllib3's Timeout; its stubs do not
        try:
            return _read(response)
        except BaseException:
            response.close()  # what was not read would be taken for the next answer
            raise
        finally:
            response.release_conn()


def _read(response: BaseHTTPResponse) -> bytes:
    """The body of a 200 to its end, which is what lets the connection be used again."""
    if response.status != 200:
        word = "redirect" if response.status in {301, 302, 303, 307, 308} else "status"
        raise NoAnswerError(f"{word} {response.status}")
    body = b""
    while part := response.read(MAX_ANSWER + 1 - len(body), decode_content=False):
        body += part
        if len(body) > MAX_ANSWER:
            raise NoAnswerError("over 4 KiB")
    return body


def _adapter(services: Mapping[str, _Service], ca_file: str | None, connections: int) -> HTTPAdapter:
    hosts = {urlsplit(endpoint.url).netloc for service in services.values() for endpoint in service.endpoints}
    try:
        return DeadlineAdapter(ca_file, hosts=len(hosts), connections=connections)
    except OSError as error:  # ssl.SSLError is one: not PEM
        reason = os.strerror(error.errno) if isinstance(error, FileNotFoundError) and error.errno else "not PEM"
        raise SettingsError(f"{ca_file}: {reason}", "check.ca_file", "name a file of PEM certificates") from error
