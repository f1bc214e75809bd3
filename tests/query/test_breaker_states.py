"""What the answers tell of the breakers, compared with the breakers themselves."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.check.circuit_breaker import CircuitBreaker, State, limits_of
from checkback.query.check_results import breakers_question
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.versions.view import View
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.examples import DEAR
from support.stories import DONE, Row, Transaction, write

pytestmark = pytest.mark.slow

_A, _B = "http://a/", "http://b/"
_FAILURES, _PAUSE = 3, timedelta(seconds=10)
_RULES = {"check": {"breaker_failures": _FAILURES, "breaker_pause": "10s"}}
#: what an endpoint would do: answer (None), refuse though it is healthy, or fail
_REFUSALS = ("status 404", "redirect 302", "not JSON", "another transaction_id")
_SAYS = st.sampled_from(
    (None, None, None, *_REFUSALS, *("connection refused", "timeout", "status 503", "status 429") * 2)
)
#: seconds since the one before; what each endpoint would do
_CHECKS = st.tuples(st.integers(1, 12), _SAYS, _SAYS)


def _answer(number: int, at: datetime, endpoint: str, outcome: str, error: str | None, tries: list[Any]) -> Row:
    row = {"check_times": 1, "real_topic": "a", "latency_ms": 1, "batch_id": 0, "delivered": True}
    said = {"endpoint": endpoint, "outcome": outcome, "error": error, "failed_tries": tries, "answered_at": at}
    return "check_answers", Transaction(0, number).key | row | said


class _Endpoint:
    """An endpoint with a real breaker, and when that last changed its state."""

    def __init__(self, settings: Settings) -> None:
        self.limits = limits_of(settings)
        self.breaker = CircuitBreaker()
        self.opened: datetime | None = None
        self.closed: datetime | None = None
        self.unanswered = 0
        self._failed = False

    def ask(self, at: datetime, says: str | None) -> str | None:
        """None = it answered; otherwise the error."""
        now = at.timestamp()
        entered = self.breaker.enter(now, self.limits)
        if entered is None:
            return f"not tried: {self.breaker.failed} tries in a row failed"
        self.unanswered = 0 if says is None else self.unanswered + 1
        healthy = says is None or says in _REFUSALS
        after = entered.answered(now, entered.turn) if healthy else entered.broken(now, entered.turn, self.limits)
        if healthy:
            self.closed = at if self._failed and not self.closed else self.closed
            self.opened = None
        else:
            self._failed, self.closed = True, None
            self.opened = self.opened or (at if after.until else None)
        self.breaker = after
        return says


@DEAR
@given(st.lists(_CHECKS, min_size=1, max_size=20), st.integers(0, 30))
def test_the_answers_tell_the_state_of_the_breakers(
    checks: list[tuple[int, str | None, str | None]], later: int
) -> None:
    """Each check is sent to A, then to B, as the breakers allow."""
    with TemporaryDirectory() as root:
        about = Settings.model_validate({"storage": {"root": root}, **_RULES})
        endpoints = {url: _Endpoint(about) for url in (_A, _B)}
        at, rows = DONE, [Transaction(0, 0).half()]
        for number, (seconds, *saying) in enumerate(checks):
            at += timedelta(seconds=seconds)
            tries: list[dict[str, str]] = []
            for url, says in zip(endpoints, saying, strict=True):
                error = endpoints[url].ask(at, says)
                if error is None or url == _B:
                    rows.append(_answer(number, at, url, "NO_ANSWER" if error else "UNKNOWN", error, tries))
                    break
                tries.append({"endpoint": url, "error": error})
        now = at + timedelta(seconds=later)
        tables = Tables.of(about.storage)
        write(None, tables, rows)
        with DuckDBEngine(tables) as engine:
            found = View(engine, None, now).ask(breakers_question(about)).to_pylist()
        for row in found:
            known = endpoints[row["endpoint"]]
            state = known.breaker.state(now.timestamp(), known.limits)
            assert (row["breaker"], row["failures"]) == (state.value, known.breaker.failed)
            assert row["unanswered"] == known.unanswered
            assert (
                row["since"]
                == {
                    State.CLOSED: known.closed,
                    State.OPEN: known.opened,
                    State.HALF_OPEN: datetime.fromtimestamp(known.breaker.until, timezone.utc),
                }[state]
            )
