"""Lists: pending and scheduled messages, a producer group, consumer groups."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from checkback.consumer.group.lag import LagReader
from checkback.consumer.reconsume_command import command_of
from checkback.dashboard import charts
from checkback.dashboard.actions import dead_letters
from checkback.dashboard.pages import ROWS, given, page_of
from checkback.errors import SettingsError
from checkback.inspect.answers import Answers, records
from checkback.inspect.plot_intervals import interval_for
from checkback.inspect.status.screen import STATES
from checkback.inspect.versions.as_of import parse_as_of
from checkback.messages.durations import parse_duration
from checkback.storage.timestamps import time_of
from checkback.urls import masked_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages

#: whose op may have decided; checkback: no op came (docs/tables.md)
SOURCES = ("producer", "check", "operator", "checkback")
#: since when decisions are shown, if no time is given
LATELY = "1h ago"


def pending(pages: Pages, request: Request) -> Response:
    """The pending half messages, the oldest first; filtered by group, topic, reason and age."""
    page = page_of(request)
    group, topic, why = (given(request, name) for name in ("group", "topic", "why"))
    with pages.asking(pending=True) as answers:
        then, form = pages.as_of(request, answers)
        rows = answers.pending(
            then,
            group=group,
            topic=topic,
            why=why,
            older_than=_age(given(request, "older_than")),
            limit=ROWS + 1,
            offset=page * ROWS,
        )
        counts = records(answers.count_pending(then).slice(0, 200))
        check_max = answers.check_max(then)
    data = {"as_of": form, "rows": records(rows.slice(0, ROWS)), "more": rows.num_rows > ROWS, "page": page}
    return pages.answer(request, "pending.html", data | {"counts": counts, "check_max": check_max})


def decisions(pages: Pages, request: Request) -> Response:
    """The decisions since a time, the last first, and how many there were; filtered by group, state and source."""
    page, said = page_of(request), given(request, "since") or LATELY
    of = {name: given(request, name) for name in ("group", "state", "source")}
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        end = parse_as_of(then) or datetime.now(timezone.utc)
        since = parse_as_of(said, end, "since") or end
        every = interval_for(max(end - since, timedelta(0)))
        counts = records(answers.decisions(then, since=since, every=every, **of))
        rows = answers.decided(then, since=since, **of, limit=ROWS + 1, offset=page * ROWS)
    data = {"as_of": form, "rows": records(rows.slice(0, ROWS)), "more": rows.num_rows > ROWS, "page": page}
    chart = charts.stacked(counts, "state", "decisions", every)
    about = {"since": said, "chart": chart, "every_s": every.total_seconds(), "counts": _by_group(counts)}
    return pages.answer(request, "decisions.html", data | about | {"states": STATES, "sources": SOURCES})


def _by_group(counts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many were decided of each group, the most first, and how."""
    found: dict[str | None, Counter[str]] = {}
    for row in counts:
        found.setdefault(row["producer_group"], Counter())[row["state"]] += row["decisions"]
    groups = sorted(found.items(), key=lambda item: (-item[1].total(), item[0] or ""))
    return [{"producer_group": name} | {state: of[state] for state in STATES} for name, of in groups[:ROWS]]


def scheduled(pages: Pages, request: Request) -> Response:
    """The scheduled messages, the next to be delivered first."""
    return _messages(pages, request, Answers.scheduled, "scheduled.html")


def unpublished(pages: Pages, request: Request) -> Response:
    """The committed messages that wait for their topic's table, the oldest first."""
    return _messages(pages, request, Answers.unpublished, "unpublished.html")


def discarded(pages: Pages, request: Request) -> Response:
    """The messages that were given up or cancelled, the last first."""
    return _messages(pages, request, Answers.discarded, "discarded.html")


def _messages(pages: Pages, request: Request, ask: Callable[..., pa.Table], template: str) -> Response:
    """A page of the messages of a question; filtered by group and topic."""
    page = page_of(request)
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        of = {"group": given(request, "group"), "topic": given(request, "topic")}
        rows = ask(answers, then, **of, limit=ROWS + 1, offset=page * ROWS)
    data = {"as_of": form, "rows": records(rows.slice(0, ROWS)), "more": rows.num_rows > ROWS, "page": page}
    return pages.answer(request, template, data)


def group(pages: Pages, request: Request) -> Response:
    """A producer group: its endpoints and what they said, what is pending and why."""
    name = request.path_params["group"].removesuffix(".json")
    with pages.asking(pending=True) as answers:
        then, form = pages.as_of(request, answers)
        every = answers.pick_every(then)
        groups = [row for row in records(answers.groups(then)) if row["producer_group"] == name]
        outcomes = records(answers.check_outcomes(then, every=every, group=name))
        decisions = records(answers.decisions(then, every=every, group=name))
        breakers = {row["endpoint"]: row for row in records(answers.breakers(then, group=name))}
        oldest = records(answers.pending(then, group=name, limit=ROWS))
        check_max = answers.check_max(then)
    known = pages.settings.producers.get(name)
    named = None if known is None else masked_each(known.endpoints)
    counts: dict[str | None, dict[str, int]] = {url: {} for url in named or ()}
    for row in outcomes:
        of = counts.setdefault(row["endpoint"], {})
        of[row["outcome"]] = of.get(row["outcome"], 0) + row["checks"]
    endpoints = [
        {"endpoint": url, "outcomes": of, "breaker": breakers.get(url)} for url, of in islice(counts.items(), ROWS)
    ]
    over = charts.axis(every, outcomes, decisions)
    return pages.answer(
        request,
        "group.html",
        {
            "as_of": form,
            "group": name,
            "stuck": groups[0] if groups else None,
            "set": named,
            "endpoints": endpoints,
            "every_s": every.total_seconds(),
            "checks": charts.stacked(outcomes, "outcome", "checks", every, over),
            "decisions": charts.stacked(decisions, "state", "decisions", every, over),
            "rows": oldest,
            "check_max": check_max,
        },
    )


def consumers(pages: Pages, request: Request) -> Response:
    """The consumer groups: members, lag, retries, dead letters and why they were given up; always as of now."""
    now = round(time.time() * 1000)
    with pages.asking() as answers:
        found = LagReader(answers.tables).read(now)
        dead = {one.group: dead_letters(answers.tables, one.group) for one in found if one.dead_letters}
    rows = [
        {
            "group": one.group,
            "members": [member.name for member in one.members],
            "not_heard_of": [member.name for member in one.members if not member.lives],
            "heard_at": None if not one.written_at else time_of(one.written_at),
            "errors": [*filter(None, (one.damaged, *(member.last_error for member in one.members)))],
            "topics": [
                {
                    "topic": topic.topic,
                    "lag_messages": topic.messages,
                    "lag_s": topic.seconds,
                    "retries": topic.retries,
                    "dead_letters": topic.dead_letters,
                    "queues_without_owner": sum(queue.owner not in one.living for queue in topic.queues),
                }
                for topic in one.topics
            ],
            "dead_letters": dead.get(one.group, []),
            "reconsume": command_of(one.group),
        }
        for one in found
    ]
    return pages.answer(request, "consumers.html", {"rows": rows, "at": time_of(now)})


def _age(said: str | None) -> timedelta | None:
    if said is None:
        return None
    try:
        return parse_duration(said.strip())
    except ValueError as error:
        raise SettingsError(str(error), "older_than", "write 30s, 5m, 2h or 1d") from error
