"""The overview: is reconcile at work, who is stuck and why, decisions and checks over time, consumers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from checkback.consumer.group.lag import LagReader
from checkback.consumer.group.lag_screen import facts_of
from checkback.dashboard import charts
from checkback.inspect.answers import records
from checkback.inspect.status.screen import as_json, check_rows, fact_lines, lines
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages
    from checkback.inspect.status.status import TableFacts

#: seconds after which the overview of now is shown anew
REFRESH_S = 30


def overview(pages: Pages, request: Request) -> Response:
    """As of a time only what the tables tell of it: not whether reconcile was at work, and no consumers."""
    with pages.asking(pending=True) as answers:
        then, form = pages.as_of(request, answers)
        every = answers.pick_every(then)
        decided, checked, waiting = (
            records(ask(then, every=every))
            for ask in (answers.decisions, answers.check_outcomes, answers.pending_over_time)
        )
        over = charts.axis(every, decided, checked, waiting)
        found = {
            "as_of": form,
            "every_s": every.total_seconds(),
            "decisions": charts.stacked(decided, "state", "decisions", every, over),
            "checks": charts.stacked(checked, "outcome", "checks", every, over),
            "pending": charts.line(waiting, "pending", every, over),
            "counts": records(answers.count_pending(then).slice(0, 20)),
        }
        now = round((then or datetime.now(timezone.utc)).timestamp() * 1000)
        if then is not None:
            facts: TableFacts | None = answers.facts(then)
            told: dict[str, Any] = {"lines": fact_lines(facts, now), "status": None}
        else:
            consumers = tuple(facts_of(lag, now) for lag in LagReader(answers.tables).read(now))
            status = replace(answers.status(), consumers=consumers)
            facts, told = status.facts, {"lines": lines(status), "status": as_json(status)}
    about = {
        "at": time_of(now),
        "status": told["status"],
        "lines": [line._asdict() for line in told["lines"]],
        "groups": [] if facts is None else [_with_times(row) for row in facts.groups],
        "endpoints": [] if facts is None else check_rows(facts),
        "refresh_s": REFRESH_S,
    }
    return pages.answer(request, "overview.html", found | about)


def _with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    due = row["first_discard_ms"]
    return {**row, "last_answer_at": row["last_answer_at_ms"], "first_discard": None if due is None else time_of(due)}
