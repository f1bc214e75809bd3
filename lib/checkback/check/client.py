"""The client that asks producers what became of their transactions. No Spark: it runs wherever a task runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import requests
from urllib3 import Timeout

from checkback.check.breaker import Breaker, Limits, State
from checkback.check.deadline import DeadlineAdapter, NotConnectedError, StaleConnectionError
from checkback.check.endpoint import Endpoint, Group, Service
from checkback.check.exchange import (
    MAX_ANSWER,
    NO_ANSWER,
    CheckAnswer,
    CheckRequest,
    NoAnswerError,
    StatusError,
    read_answer,
    read_retry_after,
)
from checkback.check.failure import causes, describe
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from requests.adapters import HTTPAdapter
    from urllib3.response import BaseHTTPResponse

    from checkback.check.signature import Signer
    from checkback.check.traffic import Place

__all__ = ["CheckClient", "Group"]


@dataclass(frozen=True)
class _Try:
    """What came of one endpoint. ``outcome`` is NO_ANSWER when ``error`` says why.

    ``sent``: the request was written to a connection. ``refused``: it was not even tried, by its
    breaker's state. ``broken``: the endpoint is
    not reachable or out of order, whatever transaction it is asked about. ``retry_after_s``: what it asked for.
    """

    outcome: str
    error: str | None = None
    sent: bool = True
    refused: State | None = None
    broken: bool = False
    retry_after_s: float | None = None


class CheckClient:
    """Asks the endpoints of a request's group; safe to call from many threads.

    ``timeout_s`` bounds each try as a whole, from connecting to the last byte. ``connections`` are kept alive per
    host. ``limits``: when an endpoint that is broken is left alone (`breaker`), and ``breakers``, what is known of the
    endpoints from before: a producer that is down costs a batch a few timeouts, not one for each request.
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
        limits: Limits | None = None,
        breakers: Mapping[Place, Breaker] | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        adapter: HTTPAdapter | None = None,
    ) -> None:
        limits = limits or Limits(trial_s=timeout_s + 1)
        self._services = {name: Service(name, group, limits, breakers or {}) for name, group in groups.items()}
        self._timeout_s = timeout_s
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

    def breakers(self) -> dict[Place, Breaker]:
        """What is known of the endpoints now."""
        return {
            (name, endpoint.url): endpoint.breaker
            for name, service in self._services.items()
            for endpoint in service.endpoints
        }

    def ask(self, request: CheckRequest) -> CheckAnswer:
        """What the group says of the transaction: always an answer, NO_ANSWER when there is none.

        Its endpoints are tried in turn until one answers; UNKNOWN is an answer.
        """
        started = self._timer()
        service = self._services.get(request.producer_group)
        if service is None or not service.endpoints:
            nobody = f"producers.{request.producer_group} has no endpoints"[:200]
            return self._answer(started, [(None, _Try(NO_ANSWER, nobody, sent=False))])
        body = request.to_json(service.include_body)
        endpoints = service.in_turn(request.check_times)
        tries = self._round(endpoints, service.signer, request, body)
        on_trial = [endpoint for endpoint, one in tries if one.refused is State.ON_TRIAL]
        if on_trial and all(one.refused for _, one in tries):
            # Its outcome is known soon, and decides about all of us: to say "not tried" now would waste the check.
            on_trial[0].await_trial(self._clock())
            tries = self._round(endpoints, service.signer, request, body)
        return self._answer(started, [(endpoint.url, one) for endpoint, one in tries])

    def _round(
        self, endpoints: Sequence[Endpoint], signer: Signer | None, request: CheckRequest, body: str
    ) -> list[tuple[Endpoint, _Try]]:
        """The tries at these endpoints, up to the first that answers."""
        tries = []
        for endpoint in endpoints:
            tries.append((endpoint, self._try(endpoint, signer, request, body)))
            if tries[-1][1].outcome != NO_ANSWER:
                break
        return tries

    def _answer(self, started: float, tries: Sequence[tuple[str | None, _Try]]) -> CheckAnswer:
        endpoint, last = tries[-1]
        return CheckAnswer(
            outcome=last.outcome,
            endpoint=endpoint,
            error=last.error,
            latency_ms=round((self._timer() - started) * 1000),
            answered_at=datetime.fromtimestamp(self._clock(), tz=timezone.utc),
            failed_tries=tuple((url, one.error) for url, one in tries[:-1] if url is not None and one.error),
            delivered=any(one.sent for _, one in tries),
        )

    def _try(self, endpoint: Endpoint, signer: Signer | None, request: CheckRequest, body: str) -> _Try:
        """One endpoint, if it may be tried now."""
        turn = endpoint.enter(self._clock())
        if isinstance(turn, State):
            return _Try(NO_ANSWER, endpoint.why_not(), sent=False, refused=turn)
        outcome = self._sent(endpoint, signer, request, body)
        if outcome.broken:
            endpoint.broken(self._clock(), turn, outcome.retry_after_s)
        else:
            endpoint.answered(self._clock(), turn)
        return outcome

    def _sent(self, endpoint: Endpoint, signer: Signer | None, request: CheckRequest, body: str) -> _Try:
        try:
            headers = {} if signer is None else signer.headers(request.webhook_id, self._clock(), body)
            answer = self._post(endpoint.prepare(body, headers))
            return _Try(read_answer(answer, request.transaction_id))
        except StatusError as refused:
            retry_after_s = read_retry_after(refused.retry_after, self._clock())
            return _Try(NO_ANSWER, str(refused), broken=refused.broken, retry_after_s=retry_after_s)
        except NoAnswerError as refused:
            return _Try(NO_ANSWER, str(refused))
        except Exception as failure:  # noqa: BLE001 - whatever a producer does to one request, the others go on
            connected = not any(isinstance(cause, NotConnectedError) for cause in causes(failure))
            return _Try(NO_ANSWER, describe(failure, self._timeout_s), sent=connected, broken=True)

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
        raise StatusError(response.status, response.headers.get("Retry-After"))
    body = b""
    while part := response.read(MAX_ANSWER + 1 - len(body), decode_content=False):
        body += part
        if len(body) > MAX_ANSWER:
            raise NoAnswerError("over 4 KiB")
    return body


def _adapter(services: Mapping[str, Service], ca_file: str | None, connections: int) -> HTTPAdapter:
    hosts = {urlsplit(endpoint.url).netloc for service in services.values() for endpoint in service.endpoints}
    try:
        return DeadlineAdapter(ca_file, hosts=len(hosts), connections=connections)
    except OSError as error:  # ssl.SSLError is one: not PEM
        reason = os.strerror(error.errno) if isinstance(error, FileNotFoundError) and error.errno else "not PEM"
        raise SettingsError(f"{ca_file}: {reason}", "check.ca_file", "name a file of PEM certificates") from error
