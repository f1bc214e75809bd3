"""An audit's report as a table and as JSON. Contains offsets only: no bodies, no transaction ids."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from checkback.query.audit.findings import Found
from checkback.query.audit.promises import PROMISES, UNPUBLISHED
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from checkback.query.audit.findings import Report
    from checkback.storage.checkpoints.checkpoint import Batch

COLUMNS = ("level", "promise", "finding", "count", "meaning", "samples")
_SHOWN = ("broken", "warning", "figure")
#: the figures that add up to `halves`, unless a promise is broken
ENDS = ("published", "unpublished", "rolled_back", "discarded", "pending", "scheduled", "cancelled")


def table_rows(report: Report) -> list[tuple[str, ...]]:
    """The rows of the table, in COLUMNS: figures, then warnings, then broken promises."""
    found = sorted(_with_unpublished(report), key=lambda found: -_SHOWN.index(found.finding.level))
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
    return [*circumstances(report, now), *verdict(report)]


def circumstances(report: Report, now: datetime) -> list[str]:
    """As of when it is, and what was left out."""
    lines = []
    if report.done is not None:
        lines.append(f"as of batch {report.done.batch_id}, {iso(report.done.time)}")
    if report.under_way:
        batches = ", ".join(f"{batch.batch_id} ({iso(batch.time)})" for batch in report.under_way)
        lines.append(f"in progress, not audited: batch {batches}; if nothing runs, the next start ends it")
    if report.oldest_pending is not None:
        lines.append(f"the oldest pending transaction is {int(now.timestamp()) - report.oldest_pending // 1000}s old")
    if report.first is None:
        lines.append("no batch has a row in `batches`: checks and discards are judged without the rules of their time")
    elif report.past:
        lines.append(f"batches before {iso(report.first.time)} have no row in `batches`: judged without their rules")
    if report.since is not None:
        lines.append(f"what ended before {iso(report.since)} was removed (retention.history), and is not judged")
    if report.bodies_since is not None:
        lines.append(f"bodies of what landed before {iso(report.bodies_since)} are not compared (retention.bodies)")
    if report.asked is not None:
        lines.append(f"judged is only what had not ended at {iso(report.asked)}, or has a row since (--since)")
    if report.topics_since:
        oldest, number = min(report.topics_since.values()), len(report.topics_since)
        lines.append(f"not looked for in {number} topics: what retention.topics removed there, from {iso(oldest)} back")
    lines += [f"not read: topics/{name}: {why}" for name, why in report.unread.items()]
    return lines


def verdict(report: Report) -> list[str]:
    """Each promise that is broken, or that none is."""
    broken = sorted({found.finding.promise for found in report.found if found.finding.level == "broken"})
    unread = f", but {len(report.unread)} of the topics could not be read" if report.unread else ""
    return [f"{promise} is broken: {PROMISES[promise]}" for promise in broken] or [f"No promise is broken{unread}."]


def as_json(report: Report) -> dict[str, Any]:
    """The report as docs/inspect.md describes it."""
    return {
        "broken": report.broken,
        "unread": dict(report.unread),
        "batch": None if report.done is None else _batch(report.done),
        "under_way": [_batch(batch) for batch in report.under_way],
        "judged_from": None if report.first is None else _batch(report.first),
        "since": None if report.since is None else iso(report.since),
        "asked_since": None if report.asked is None else iso(report.asked),
        "topics_since": {topic: iso(at) for topic, at in report.topics_since.items()},
        "bodies_since": None if report.bodies_since is None else iso(report.bodies_since),
        "oldest_pending": None if report.oldest_pending is None else iso(report.oldest_pending),
        "figures": {found.finding.name: found.count for found in _with_unpublished(report) if _is_figure(found)},
        "findings": [
            {
                "level": found.finding.level,
                "promise": found.finding.promise or None,
                "finding": found.finding.name,
                "about": found.finding.about,
                "count": found.count,
                "meaning": found.finding.meaning,
                "samples": _samples(found),
            }
            for found in report.found
            if not _is_figure(found)
        ],
    }


def _with_unpublished(report: Report) -> list[Found]:
    """What is found, and the figure of the warning `unpublished`, after that of what is published."""
    waiting = next((one for one in report.found if one.finding.name == UNPUBLISHED.name), None)
    figure = Found(UNPUBLISHED, 0, ()) if waiting is None else replace(waiting, finding=UNPUBLISHED)
    return [one for each in report.found for one in ((each, figure) if each.finding.name == "published" else (each,))]


def _is_figure(found: Found) -> bool:
    return found.finding.level == "figure"


def _samples(found: Found) -> list[str]:
    return [_sample(found.finding.about, sample) for sample in found.samples]


def _sample(about: str, sample: tuple[int | None, int | None] | str) -> str:
    if isinstance(sample, str):
        return sample
    if about != "transaction":
        number, time = sample
        return f"{number}@{'-' if time is None else iso(time)}"
    return "/".join("-" if part is None else str(part) for part in sample)


def _batch(batch: Batch) -> dict[str, Any]:
    return {"batch_id": batch.batch_id, "time": iso(batch.time)}
