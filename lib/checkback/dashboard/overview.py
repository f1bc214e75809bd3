"""The overview: is reconcile running, who is stuck and why, decisions and checks over time, consumers; the audit."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import TYPE_CHECKING

from checkback.consumer.group.lag_reader import LagReader
from checkback.consumer.group.lag_screen import facts_of
from checkback.dashboard import charts
from checkback.dashboard.pages import BusyError, given, wants_json
from checkback.query.answers import records
from checkback.query.audit import report as audit_report
from checkback.query.status.screen import as_json, check_rows, lines
from checkback.query.status.status import TableFacts
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages

#: seconds after which the overview of now is refreshed
REFRESH_S = 30


def overview(pages: Pages, request: Request) -> Response:
    """As of a time it omits whether reconcile was running, and the consumers."""
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
        status = answers.status(then)
        if then is None:
            consumers = tuple(facts_of(lag, status.now) for lag in LagReader(answers.tables).read(status.now))
            status = replace(status, consumers=consumers)
    facts = status.facts or TableFacts()
    about = {
        "at": time_of(status.now),
        "status": as_json(status),
        "lines": [line._asdict() for line in lines(status)],
        "groups": facts.groups,
        "endpoints": check_rows(facts),
        "refresh_s": REFRESH_S,
    }
    return pages.answer(request, "overview.html", found | about)


#: how long one may take; `checkback audit` has no limit
WITHIN = timedelta(minutes=2)
_running = Lock()


def runs(request: Request) -> bool:
    """Does the request make an audit run?"""
    asked = request.scope["path"] in ("/audit", "/audit.json")
    return asked and (wants_json(request) or given(request, "run") is not None)


def audit(pages: Pages, request: Request) -> Response:
    """A form; with ``run``, and as JSON, what the audit finds. Raises BusyError while another is running."""
    if not runs(request):
        return pages.answer(request, "audit.html", {"found": None})
    if not _running.acquire(blocking=False):
        raise BusyError("another audit is running", "", "ask again when it is done")
    try:
        with pages.asking() as answers:
            report = answers.audit(WITHIN)
    finally:
        _running.release()
    found = audit_report.as_json(report)
    if wants_json(request):
        return pages.answer(request, "audit.html", found)
    about = audit_report.circumstances(report, datetime.now(timezone.utc))
    data = {"found": found, "about": about, "verdict": audit_report.verdict(report)}
    return pages.answer(request, "audit.html", data | {"sums": audit_report.ENDS})
