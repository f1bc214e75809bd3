"""An audit's report as a table and as JSON. Contains offsets only: no bodies, no transaction ids."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from checkback.inspect.audit.promises import PROMISES
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from checkback.inspect.audit.run import Found, Report
    from checkback.storage.checkpoints.checkpoint import Batch

COLUMNS = ("level", "promise", "finding", "count", "meaning", "samples")
_SHOWN = ("broken", "warning", "figure")


def table_rows(report: Report) -> list[tuple[str, ...]]:
    """The rows of the table, in COLUMNS: figures, then warnings, then broken promises."""
    found = sorted(report.found, key=lambda found: -_SHOWN.index(found.finding.level))
    return [
        (
            each.finding.level,
            each.finding.promise or "-",
            each.finding.name,
            str(each.count),
            each.finding.meaning,
            " ".join(_samples(each)) or "-",
        )
        for each in found
    ]


def conclusion(report: Report, now: datetime) -> list[str]:
    """The lines below the table: as of when, what was left out, and whether a promise is broken."""
    lines = []
    if report.done is not None:
        lines.append(f"as of batch {report.done.batch_id}, {_time(report.done.time)}")
    if report.under_way:
        batches = ", ".join(f"{batch.batch_id} ({_time(batch.time)})" for batch in report.under_way)
        lines.append(f"in progress, not audited: batch {batches}; if nothing runs, the next start ends it")
    if report.oldest_pending is not None:
        lines.append(f"the oldest pending transaction is {int(now.timestamp()) - report.oldest_pending // 1000}s old")
    if report.first is None:
        lines.append("no batch has a row in `batches`: checks and discards are judged without the rules of their time")
    elif report.past:
        lines.append(f"batches before {_time(report.first.time)} have no row in `batches`: judged without their rules")
    broken = sorted({found.finding.promise for found in report.found if found.finding.level == "broken"})
    lines += [f"{promise} is broken: {PROMISES[promise]}" for promise in broken] or ["No promise is broken."]
    return lines


def as_json(report: Report) -> dict[str, Any]:
    """The report as docs/audit.md describes it."""
    return {
        "broken": report.broken,
        "batch": None if report.done is None else _batch(report.done),
        "under_way": [_batch(batch) for batch in report.under_way],
        "judged_from": None if report.first is None else _batch(report.first),
        "oldest_pending": None if report.oldest_pending is None else _time(report.oldest_pending),
        "figures": {found.finding.name: found.count for found in report.found if found.finding.level == "figure"},
        "findings": [
            {
                "level": found.finding.level,
                "promise": found.finding.promise or None,
                "finding": found.finding.name,
                "count": found.count,
                "meaning": found.finding.meaning,
                "samples": _samples(found),
            }
            for found in report.found
            if found.finding.level != "figure"
        ],
    }


def _samples(found: Found) -> list[str]:
    if found.finding.about != "transaction":
        return [f"{number}@{'-' if time is None else _time(time)}" for number, time in found.samples]
    return ["/".join("-" if part is None else str(part) for part in place) for place in found.samples]


def _batch(batch: Batch) -> dict[str, Any]:
    return {"batch_id": batch.batch_id, "time": _time(batch.time)}


def _time(ms: int) -> str:
    return time_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
