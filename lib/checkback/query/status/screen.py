"""Rendering of `checkback status`, on screen and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.messages.durations import span
from checkback.query.status.diagnosis import clock
from checkback.query.undelivered_messages import retry_of
from checkback.storage.timestamps import iso, time_of

if TYPE_CHECKING:
    from checkback.query.status.progress import RunSchedule
    from checkback.query.status.status import ConsumerFacts, Status, TableFacts
    from checkback.storage.log.commit_reader import Backlog

#: states of a decision
STATES = ("COMMIT", "ROLLBACK", "DISCARD", "CANCEL")
#: a scheduled message so long after its deliver_at needs attention
_OVERDUE_MS = 60_000
#: a queue of a consumer group that a failing message holds up for so long needs attention (s)
_HELD_S = 60
#: transactions that a line names
_FEW = 3
GROUPS = ("group", "pending", "overdue", "oldest", "why")
CHECKS = ("group", "endpoint", "outcomes of the last 5 minutes")


class Line(NamedTuple):
    """A line above the tables; ``bad``: needs attention."""

    name: str
    text: str
    bad: bool = False


def lines(status: Status) -> list[Line]:
    """The lines above the tables."""
    about = _lost(status.facts)
    about += [] if status.past else [_at_work(status), *_batch(status), *_lag(status)]
    about += [*_decisions(status.facts, status.now), *_unpublished(status.facts, status.now)]
    new = {} if status.facts is None else status.facts.dead_letters
    consumers = (_consumers(one, new.get(one.group, 0)) for one in status.consumers or ())
    return [*about, *consumers]


def group_rows(facts: TableFacts) -> list[tuple[tuple[str, ...], bool]]:
    """Rows of the table of groups, in GROUPS; and whether a row needs attention."""
    return [
        (
            (
                row["producer_group"] or "-",
                str(row["pending"]),
                str(row["overdue"]),
                "-" if row["oldest_age_s"] is None else span(row["oldest_age_s"]),
                row["why"],
            ),
            bool(row["stuck"]),
        )
        for row in facts.groups
    ]


def check_rows(facts: TableFacts) -> list[tuple[str, ...]]:
    """Rows of the table of endpoints, in CHECKS."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for group, endpoint, outcome, number in facts.checks:
        found.setdefault((group, endpoint), []).append(f"{outcome} {number}")
    return [(group, endpoint or "-", ", ".join(outcomes)) for (group, endpoint), outcomes in found.items()]


def as_json(status: Status) -> dict[str, Any]:
    """The status as docs/inspect.md describes it."""
    found = status.reconcile.progress
    done, begun = (None, None) if found is None else (found.done, found.under_way)
    open_batch = None if begun is None else {"batch_id": begun.batch_id, "time": iso(begun.time)}
    facts, schedule = status.facts, _schedule(status)
    return {
        "at": iso(status.now),
        "reconcile": {
            "at_work": None if status.reconcile.owner is None else bool(status.reconcile.owner),
            "owner": status.reconcile.owner or None,
            "schedule": None if schedule is None else _schedule_json(schedule),
        },
        "batch": None
        if found is None or done is None
        else {
            "batch_id": done.batch_id,
            "time": iso(done.time),
            "age_s": (status.now - done.time) / 1000,
            "duration_s": None if found.done_at is None else max(0, found.done_at - done.time) / 1000,
        },
        "under_way": None if _is_gone(status) else open_batch,
        "interrupted": open_batch if _is_gone(status) else None,
        "watermarks": None
        if done is None
        else {"timeout": iso(done.time - _ms(status.timeout)), "max_age": iso(done.time - _ms(status.max_age))},
        "lag": {name: _unread_json(unread, status.now) for name, unread in status.reconcile.lag.items()},
        "decisions": None
        if facts is None
        else {
            "last_minute": _of_states(facts, 1),
            "last_5_minutes": _of_states(facts, 2),
            "discarded_today": facts.discarded_today,
        },
        "committed_not_published": None if facts is None else _lost_json(facts),
        "scheduled": None if facts is None else _scheduled_json(facts),
        "unpublished": None
        if facts is None
        else [one._asdict() | {"since": None if one.since is None else iso(one.since)} for one in facts.unpublished],
        "consumers": None
        if status.consumers is None
        else [
            asdict(each) | {"new_dead_letters": None if facts is None else facts.dead_letters.get(each.group, 0)}
            for each in status.consumers
        ],
        "pending": None if facts is None else sum(row["pending"] for row in facts.groups),
        "groups": None
        if facts is None
        else [{name: iso(of) if isinstance(of, datetime) else of for name, of in row.items()} for row in facts.groups],
        "checks": None
        if facts is None
        else [
            dict(zip(("producer_group", "endpoint", "outcome", "checks"), check, strict=True)) for check in facts.checks
        ],
    }


def _lost(facts: TableFacts | None) -> list[Line]:
    """Local transactions that have committed, and whose messages are not published."""
    if facts is None or not facts.lost.number:
        return []
    few = [f"{_shown(one['transaction_id'] or '?')} ({one['state']})" for one in facts.lost.transactions[:_FEW]]
    names = ", ".join(few) + (", ..." if facts.lost.number > _FEW else "")
    how = "`checkback tx describe TX`; `checkback tx resume TX` publishes what was discarded"
    text = f"{facts.lost.number} in the last day, decided before their COMMIT came: {names}; {how}"
    return [Line("committed, not published", text, bad=True)]


def _at_work(status: Status) -> Line:
    owner = status.reconcile.owner
    if owner is None:
        return Line("reconcile", "not known here: its lock is on another machine")
    if owner:
        return Line("reconcile", f"running: {owner}")
    schedule = _schedule(status)
    if schedule is None:
        return Line("reconcile", "not running: nobody holds its lock", bad=True)
    every = "" if schedule.every is None else f", every {span(schedule.every / 1000)}"
    text, late = f"scheduled{every}: last run {_ago(schedule.last, status.now)}", status.now > schedule.next_by
    return Line("reconcile", f"{text}; overdue since {_exact(schedule.next_by, status.now)}" if late else text, late)


def _is_gone(status: Status) -> bool:
    """Whether it is known that no reconcile works: what it began is then not under way."""
    return status.reconcile.owner == ""


def _schedule(status: Status) -> RunSchedule | None:
    return None if status.reconcile.progress is None else status.reconcile.progress.schedule


def _batch(status: Status) -> list[Line]:
    found = status.reconcile.progress
    if found is None:
        return []
    if found.begun is None:
        return [Line("last batch", "none yet: no checkpoint", bad=True)]
    said = "none is done yet"
    marks = []
    if found.done is not None:
        took = "" if found.done_at is None else f", took {max(0, found.done_at - found.done.time) / 1000:.1f} s"
        said = f"{found.done.batch_id}, {_ago(found.done.time, status.now)}{took}"
        timeout, max_age = found.done.time - _ms(status.timeout), found.done.time - _ms(status.max_age)
        marks = [
            Line(
                "watermarks",
                f"checked what was born before {_exact(timeout, status.now)} (timeout), "
                f"discarded before {_exact(max_age, status.now)} (max_age)",
            )
        ]
    if found.under_way is not None and _is_gone(status):
        said += f"; {found.under_way.batch_id} was interrupted: the next start takes it up"
    elif found.under_way is not None:
        said += f"; {found.under_way.batch_id} is under way for {span((status.now - found.under_way.time) / 1000)}"
    return [Line("last batch", said), *marks]


def _lag(status: Status) -> list[Line]:
    parts = [
        f"{name} {unread.rows} rows"
        + ("" if unread.since is None else f", oldest {span((status.now - unread.since) / 1000)}")
        for name, unread in status.reconcile.lag.items()
    ]
    return [Line("lag", "; ".join(parts))] if parts else []


def _decisions(facts: TableFacts | None, now: int) -> list[Line]:
    if facts is None:
        return []
    parts = [f"{name}: {_counts(_of_states(facts, at))}" for name, at in (("last minute", 1), ("last 5 minutes", 2))]
    today = f"discarded today: {facts.discarded_today}"
    pending = sum(row["pending"] for row in facts.groups)
    # As the alarm CheckbackDiscards: nobody has said how these transactions end.
    discards = _of_states(facts, 2)["DISCARD"] > 0
    decisions = Line("decisions", "; ".join([*parts, today]), bad=discards)
    return [Line("pending", str(pending)), *_scheduled(facts, now), decisions]


def _scheduled(facts: TableFacts, now: int) -> list[Line]:
    """What is scheduled; bad if a delivery is overdue by more than a batch may take."""
    messages, due = facts.scheduled
    if due is None:
        return []
    late = now - due
    when = f"overdue by {span(late / 1000)}" if late > 0 else f"the next in {span(-late / 1000)}"
    return [Line("scheduled", f"{messages}; {when}", bad=late > _OVERDUE_MS)]


def _unpublished(facts: TableFacts | None, now: int) -> list[Line]:
    """Messages waiting for their topic's table: by topic how many, since when and why."""
    found = () if facts is None else facts.unpublished
    return [
        Line(
            "unpublished",
            f"{one.messages} for {_shown(one.topic)}, "
            f"{'since when is unknown' if one.since is None else f'since {_ago(one.since, now)}'}: "
            f"{one.reason or 'why is unknown'}{'; ' if retry_of(one.topic) else ''}{retry_of(one.topic)}",
            True,
        )
        for one in found
    ]


def _consumers(one: ConsumerFacts, new: int) -> Line:
    """A consumer group; ``new``: new dead letters. Without members that live nobody consumes what is there."""
    if one.damaged is not None:
        return Line("consumers", f"{one.group}: {one.damaged}", bad=True)
    lag = f"lag {one.lag_messages}" + (f", {span(one.lag_s or 0)} behind" if one.lag_messages else "")
    silent = f" ({one.silent} not heard of for {span(one.heard_s or 0)})" if one.silent else ""
    times = f"given up {one.dead_letters} time{'' if one.dead_letters == 1 else 's'}"
    dead = times + (f", new dead letters {new}" if new else "")
    text = f"{one.group}: members {one.members}{silent}, {lag}, retries {one.retries}, {dead}"
    if one.held_queues:
        queues = f"{one.held_queues} queue{'' if one.held_queues == 1 else 's'}"
        text += f", {queues} blocked by a failing message for {span(one.held_s or 0)}"
    if one.unsubscribed:
        text += f"; not subscribed: {', '.join(one.unsubscribed)}"
    if one.missing:
        text += f"; not there yet: {', '.join(one.missing)}"
    held = (one.held_s or 0) >= _HELD_S
    return Line("consumers", text, bad=bool(new) or held or (not one.members and bool(one.lag_messages or one.retries)))


def _shown(name: str | None) -> str:
    """An unvalidated name, safe to print on a terminal."""
    return "no topic" if name is None else "".join(char if char.isprintable() else "?" for char in name)


def _of_states(facts: TableFacts, at: int) -> dict[str, int]:
    counts = {row[0]: int(row[at]) for row in facts.decisions}
    return {state: counts.get(state, 0) for state in STATES}


def _counts(of_states: dict[str, int]) -> str:
    return ", ".join(f"{state} {number}" for state, number in of_states.items())


def _lost_json(facts: TableFacts) -> dict[str, Any]:
    transactions = [{**one, "committed_at": iso(one["committed_at"])} for one in facts.lost.transactions]
    return {"number": facts.lost.number, "transactions": transactions}


def _scheduled_json(facts: TableFacts) -> dict[str, Any]:
    messages, due = facts.scheduled
    return {"messages": messages, "next_at": None if due is None else iso(due)}


def _schedule_json(schedule: RunSchedule) -> dict[str, Any]:
    every = None if schedule.every is None else schedule.every / 1000
    return {"last_run": iso(schedule.last), "every_s": every, "next_by": iso(schedule.next_by)}


def _unread_json(backlog: Backlog, now: int) -> dict[str, Any]:
    since = backlog.since
    return {
        "rows": backlog.rows,
        "oldest": None if since is None else iso(since),
        "age_s": None if since is None else (now - since) / 1000,
    }


def _ago(ms: int, now: int) -> str:
    return f"{_exact(ms, now)}, {span((now - ms) / 1000)} ago"


def _exact(ms: int, now: int) -> str:
    return f"{clock(ms, now)}:{time_of(ms):%S}"


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
