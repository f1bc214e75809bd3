"""The overview: is reconcile at work, who is stuck and why, decisions and checks over time, consumers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkback.consumer.group.lag import LagReader
from checkback.consumer.group.lag_screen import facts_of
from checkback.dashboard import charts
from checkback.inspect.answers import records
from checkback.inspect.status.screen import as_json, check_rows, lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages


def overview(pages: Pages, request: Request) -> Response:
    """As of a time only what the tables tell of it: groups and charts."""
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
        if then is not None:
            groups = records(answers.groups(then))
            return pages.answer(
                request, "overview.html", found | {"lines": [], "groups": groups, "endpoints": [], "status": None}
            )
        status = answers.status()
        now = round(time.time() * 1000)
        consumers = tuple(facts_of(lag, now) for lag in LagReader(answers.tables).read(now))
    status = replace(status, consumers=consumers)
    facts = status.facts
    return pages.answer(
        request,
        "overview.html",
        found
        | {
            "lines": [line._asdict() for line in lines(status)],
            "groups": [] if facts is None else [_with_time(row) for row in facts.groups],
            "endpoints": [] if facts is None else check_rows(facts),
            "status": as_json(status),
        },
    )


def _with_time(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "last_answer_at": row["last_answer_at_ms"]}
