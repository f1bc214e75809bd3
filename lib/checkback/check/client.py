"""The HTTP client for check-backs to producers. No Spark: it runs in any task."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from checkback import tracing
from checkback.check.circuit_breaker import CircuitBreaker, Limits, State
from checkback.check.connections import Connections, Response
from checkback.check.endpoint import CheckedGroup, Endpoint, Service, Trial
from checkback.check.fair_scheduler import ActiveCheck, CheckScheduler, run_checks
from checkback.check.wire import (
    DELIVERED,
    NO_ANSWER,
    TOO_LONG,
    UNDELIVERED,
    CheckAnswer,
    CheckRequest,
    NoAnswerError,
    StatusError,
    nobody_of,
    read_answer,
    read_retry_after,
)
from checkback.errors import SettingsError
from checkback.messages.trace_context import trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from checkback.check.connections import Post
    from checkback.check.endpoint_health import Place
    from checkback.check.fair_scheduler import Dialogue
    from checkback.signature import Signer


_SUCCESS = range(200, 300)


@dataclass(frozen=True)
class _Try:
    """The result of one endpoint. ``error``: why ``outcome`` is NO_ANSWER, or UNKNOWN if it says so.

    ``sent``: the request was written to a connection, and no intermediary says that it has reached nobody.
    ``refused``: not tried, because of this breaker state.
    ``broken``: the endpoint is unreachable or failing, regardless of the transaction.
    ``retry_after_s``: its Retry-After.
    """

    outcome: str
    error: str | None = None
    sent: bool = True
    refused: State | None = None
    broken: bool = False
    retry_after_s: float | None = None


class CheckClient:
    """Sends checks to the endpoints of a request's group; for one thread, with many checks in flight.

    ``timeout_s`` bounds each try as a whole, from connecting to the last byte. ``limits``: of the circuit breakers
    (`circuit_breaker`); ``breakers``: their earlier states. A producer that is down thus costs a batch a few timeouts,
    not one for each request. ``clock``: seconds since the epoch; ``timer``: seconds from any origin. Redirects are not
    followed, cookies not kept, and proxies and credentials not taken from the environment: only the configured
    endpoints are called. Raises SettingsError for an invalid endpoint, secret or ``ca_file`` (PEM; None: the system's
    authorities); no error or repr ever contains a secret.
    """

    def __init__(
        self,
        groups: Mapping[str, CheckedGroup],
        timeout_s: float,
        ca_file: str | None = None,
        *,
        limits: Limits | None = None,
        breakers: Mapping[Place, CircuitBreaker] | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits or Limits(trial_s=timeout_s + 1)
        self._services = {name: Service(name, group, limits, breakers or {}) for name, group in groups.items()}
        self._clock, self._timer = clock, timer
        self._connections = _connections(timeout_s, ca_file)

    def __enter__(self) -> CheckClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the keep-alive connections."""
        self._connections.close()

    def breakers(self) -> dict[Place, CircuitBreaker]:
        """The current breakers of the endpoints."""
        return {
            (name, endpoint.url): endpoint.breaker
            for name, service in self._services.items()
            for endpoint in service.endpoints
        }

    def ask(self, request: CheckRequest) -> CheckAnswer:
        """The group's answer for the transaction; NO_ANSWER if there is none."""
        ((_, answer),) = self.ask_all(CheckScheduler([request]), 1)
        return answer

    def ask_all(
        self, scheduler: CheckScheduler, concurrency: int, clock: Callable[[], float] = time.time
    ) -> list[tuple[CheckRequest, CheckAnswer]]:
        """Every request handed out with its answer, in the order of the answers.

        At most ``concurrency`` are in flight at a time. ``clock``: for ``scheduler``.
        """
        return run_checks(self._dialogue, scheduler, self._connections, concurrency, clock, self._timer)

    def _dialogue(self, request: CheckRequest) -> Dialogue:
        """The endpoints are tried in turn until one answers; UNKNOWN is an answer."""
        started = self._timer()
        service = self._services.get(request.producer_group)
        if service is None or not service.endpoints:
            return self._answer(started, [(None, _Try(NO_ANSWER, nobody_of(request.producer_group), sent=False))])
        message = request.whole_message if service.include_body else None
        body, trace = request.to_json(message), trace_of((message and message.properties) or {})
        if not tracing.loaded():
            return self._answer(started, (yield from self._tries(service, request, body, trace)))
        about = request.producer_group, request.real_topic, request.transaction_id
        with tracing.asking(*about, trace) as (span, trace):
            answer = self._answer(started, (yield from self._tries(service, request, body, trace)))
            span.set_attribute("checkback.outcome", answer.outcome)
        return answer

    def _tries(
        self, service: Service, request: CheckRequest, body: str, trace: Mapping[str, str]
    ) -> Generator[Post | Trial, Response | None, list[tuple[Endpoint, _Try]]]:
        """Those of a check."""
        endpoints = service.in_turn(request.check_times)
        tries = yield from self._round(endpoints, service.signer, request, body, trace)
        on_trial = [endpoint for endpoint, one in tries if one.refused is State.ON_TRIAL]
        if on_trial and all(one.refused for _, one in tries):
            # The probe's outcome is known soon, and applies to this check, too: "not tried" now would waste it.
            breaker = on_trial[0].breaker
            yield Trial(on_trial[0], breaker.turn, self._timer() + breaker.trial_until - self._clock())
            tries = yield from self._round(endpoints, service.signer, request, body, trace)
        return tries

    def _round(
        self,
        endpoints: Sequence[Endpoint],
        signer: Signer | None,
        request: CheckRequest,
        body: str,
        trace: Mapping[str, str],
    ) -> Generator[Post | Trial, Response | None, list[tuple[Endpoint, _Try]]]:
        """The tries at these endpoints, up to the first that answers."""
        tries = []
        for number, endpoint in enumerate(endpoints):
            one = yield from self._try(endpoint, signer, request, body, trace, number)
            tries.append((endpoint, one))
            if one.outcome != NO_ANSWER:
                break
        return tries

    def _try(
        self,
        endpoint: Endpoint,
        signer: Signer | None,
        request: CheckRequest,
        body: str,
        trace: Mapping[str, str],
        number: int,
    ) -> Generator[Post | Trial, Response | None, _Try]:
        """Try one endpoint, if its breaker allows it now.

        ``number``: of the tries before, by which the time signed differs: two URLs may lead to the same process, which
        would take the second of two tries in one second for a replay.
        """
        now = self._clock()
        turn = endpoint.enter(now)
        if isinstance(turn, State):
            return _Try(NO_ANSWER, endpoint.why_not(), sent=False, refused=turn)
        headers = {} if signer is None else signer.headers(request.webhook_id, now + number, body)
        response = yield endpoint.post(body, {**headers, **trace})
        if response is None:
            raise TypeError("a Post is answered with a Response")
        now = self._clock()
        outcome = _heard(response, request, now)
        if outcome.broken:
            endpoint.broken(now, turn, outcome.retry_after_s)
        else:
            endpoint.answered(now, turn)
        return outcome

    def _answer(self, started: float, tries: Sequence[tuple[Endpoint | None, _Try]]) -> CheckAnswer:
        endpoint, last = tries[-1]
        return CheckAnswer(
            outcome=last.outcome,
            endpoint=None if endpoint is None else endpoint.shown,
            error=last.error,
            latency_ms=round((self._timer() - started) * 1000),
            answered_at=datetime.fromtimestamp(self._clock(), tz=timezone.utc),
            failed_tries=tuple((failed.shown, one.error) for failed, one in tries[:-1] if failed and one.error),
            delivered=any(one.sent for _, one in tries),
        )


def _heard(response: Response, request: CheckRequest, now: float) -> _Try:
    """The result of a try, from its response."""
    if (not response.status or response.status in _SUCCESS) and response.error is not None:
        return _Try(NO_ANSWER, response.error, sent=response.sent, broken=True)
    try:
        return _Try(*_state(response, request))
    except StatusError as refused:
        if (response.header(DELIVERED) or "").lower() == "false":
            return _Try(NO_ANSWER, UNDELIVERED, sent=False)
        retry_after_s = read_retry_after(refused.retry_after, now)
        return _Try(NO_ANSWER, str(refused), broken=refused.broken, retry_after_s=retry_after_s)
    except NoAnswerError as refused:
        return _Try(NO_ANSWER, str(refused) if response.status == 200 else f"status {response.status}: {refused}")


def _state(response: Response, request: CheckRequest) -> tuple[str, str | None]:
    """The state in the response, and of UNKNOWN the cause.

    Any status but 2xx is conclusive, even if the body is incomplete.
    """
    if response.status not in _SUCCESS:
        raise StatusError(response.status, response.header("Retry-After"))
    if response.too_long:
        raise NoAnswerError(TOO_LONG)
    return read_answer(response.body, request.transaction_id, request.place)


def _connections(timeout_s: float, ca_file: str | None) -> Connections[ActiveCheck]:
    try:
        return Connections(timeout_s, ca_file)
    except OSError as error:
        raise unreadable(ca_file, error) from error


def unreadable(ca_file: str | None, error: OSError) -> SettingsError:
    """The error for a ``ca_file`` that cannot be read."""
    # ssl.SSLError is an OSError: not PEM
    reason = os.strerror(error.errno) if isinstance(error, FileNotFoundError) and error.errno else "not PEM"
    return SettingsError(f"{ca_file}: {reason}", "check.ca_file", "name a file of PEM certificates")
