"""The audit, on request: one at a time, and only for so long."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import TYPE_CHECKING

from checkback.dashboard.pages import BusyError, given, wants_json
from checkback.query.audit import report as audit_report

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages

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
