"""Lists: pending and scheduled messages, a producer group, consumer groups."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from checkback.consumer.dead_letter_requests import command_of
from checkback.consumer.group.lag_reader import LagReader
from checkback.consumer.group.lag_screen import DIFFER, held_lines
from checkback.dashboard import charts
from checkback.dashboard.actions import dead_letters
from checkback.dashboard.pages import ROWS, given, mended, page_of
from checkback.errors import SettingsError, StorageError
from checkback.messages.durations import parse_duration
from checkback.query.answers import Answers, records
from checkback.query.check_results import hint
from checkback.query.status.screen import STATES
from checkback.query.time_series import interval_for
from checkback.query.versions.as_of import parse_as_of
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.timestamps import time_of
from checkback.urls import masked_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages
    from checkback.query.answers import AsOf

#: whose op may have decided; checkback: no op came (docs/tables.md)
SOURCES = ("producer", "check", "operator", "checkback")
#: since when decisions are shown, if no time is given
LATELY = "1h ago"
_AGAIN = "start reconcile again: it reads its settings when it starts"


def pending(pages: Pages, request: Request) -> Response:
    """The pending half messages, the oldest first; filtered by group, topic, reason and age."""
    page = page_of(request)
    group, topic, why = (given(request, name) for name in ("group", "topic", "why"))
    age, wrong = mended(request, lambda: _age(given(request, "older_than")), None)
    with pages.asking(pending=True) as answers:
        then, form = pages.as_of(request, answers)
        found = answers.pending(
            then, group=group, topic=topic, why=why, older_than=age, limit=ROWS + 1, offset=page * ROWS
        )
        rows = with_keys(answers, records(found.slice(0, ROWS)), then)
        counts = records(answers.count_pending(then).slice(0, 200))
        check_max = answers.check_max(then)
    data = {"as_of": form, "rows": rows, "more": found.num_rows > ROWS, "page": page, "wrong": wrong}
    data |= {"counts": counts, "check_max": check_max}
    return pages.answer(request, "pending.html", data, 400 if wrong else 200)


def with_keys(answers: Answers, rows: list[dict[str, Any]], then: AsOf = None) -> list[dict[str, Any]]:
    """The rows of a page with the keys of their half messages: people know an order's number, not its transaction."""
    return [row | {"keys": keys} for row, keys in zip(rows, answers.keys(rows, then), strict=True)]


def decisions(pages: Pages, request: Request) -> Response:
    """The decisions since a time, the last first, and how many there were; filtered by group, state and source."""
    page, said = page_of(request), given(request, "since") or LATELY
    of = {name: given(request, name) for name in ("group", "state", "source")}
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        end = parse_as_of(then) or datetime.now(timezone.utc)
        since, wrong = mended(request, lambda: parse_as_of(said, end, "since") or end, end)
        every = interval_for(max(end - since, timedelta(0)))
        counts = records(answers.decisions(then, since=since, every=every, **of))
        rows = answers.decided(then, since=since, **of, limit=ROWS + 1, offset=page * ROWS)
    data = {"as_of": form, "rows": records(rows.slice(0, ROWS)), "more": rows.num_rows > ROWS, "page": page}
    chart = charts.stacked(counts, "state", "decisions", every)
    about = {"since": said, "chart": chart, "every_s": every.total_seconds(), "counts": _by_group(counts)}
    about |= {"states": STATES, "sources": SOURCES, "wrong": wrong}
    return pages.answer(request, "decisions.html", data | about, 400 if wrong else 200)


def _by_group(counts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many were decided of each group, the most first, and how."""
    found: dict[str | None, Counter[str]] = {}
    for row in counts:
        found.setdefault(row["producer_group"], Counter())[row["state"]] += row["decisions"]
    groups = sorted(found.items(), key=lambda item: (-item[1].total(), item[0] or ""))
    return [{"producer_group": name} | {state: of[state] for state in STATES} for name, of in groups[:ROWS]]


def scheduled(pages: Pages, request: Request) -> Response:
    """The scheduled messages, the next to be delivered first, and how many of each topic."""

    def counts(answers: Answers, then: AsOf, **_: str | None) -> list[dict[str, Any]]:
        return records(answers.count_scheduled(then))

    return _messages(pages, request, Answers.scheduled, counts, "scheduled.html")


def unpublished(pages: Pages, request: Request) -> Response:
    """The committed messages that wait for their topic's table, the oldest first; of each topic why, and its table."""

    def counts(answers: Answers, then: AsOf, **_: str | None) -> list[dict[str, Any]]:
        topics = [one._asdict() for one in answers.count_unpublished(then)]
        place = answers.tables.location
        return [of | {"table": None if of["topic"] is None else place(TOPIC_PREFIX + of["topic"])} for of in topics]

    return _messages(pages, request, Answers.unpublished, counts, "unpublished.html")


def discarded(pages: Pages, request: Request) -> Response:
    """The messages that were given up or cancelled, the last first, and how many of each group, topic and reason."""

    def counts(answers: Answers, then: AsOf, **of: str | None) -> list[dict[str, Any]]:
        return records(answers.count_discarded(then, **of))

    return _messages(pages, request, Answers.discarded, counts, "discarded.html")


def _messages(
    pages: Pages, request: Request, ask: Callable[..., pa.Table], count: Callable[..., list[dict[str, Any]]], name: str
) -> Response:
    """A page of the messages of a question; filtered by group and topic. ``count``: gives rows with ``messages``."""
    page = page_of(request)
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        of = {"group": given(request, "group"), "topic": given(request, "topic")}
        found = ask(answers, then, **of, limit=ROWS + 1, offset=page * ROWS)
        rows = with_keys(answers, records(found.slice(0, ROWS)), then)
        counts = count(answers, then, **of)
    data = {"as_of": form, "rows": rows, "more": found.num_rows > ROWS, "page": page}
    data |= {"counts": counts[:ROWS], "total": sum(one["messages"] for one in counts)}
    return pages.answer(request, name, data)


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
        oldest = with_keys(answers, records(answers.pending(then, group=name, limit=ROWS)), then)
        check_max = answers.check_max(then)
        outages = records(answers.outages(then, group=name).slice(0, ROWS))
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
            "step": _next_step(groups[0]) if groups and groups[0]["stuck"] else None,
            "at": then or datetime.now(timezone.utc),
            "set": named,
            "endpoints": endpoints,
            "every_s": every.total_seconds(),
            "checks": charts.stacked(outcomes, "outcome", "checks", every, over),
            "decisions": charts.stacked(decisions, "state", "decisions", every, over),
            "rows": oldest,
            "check_max": check_max,
            "outages": outages,
        },
    )


def _next_step(row: Mapping[str, Any]) -> str | None:
    """What to do about a row of `group_rows`; None = its outcomes do not show it."""
    name = row["producer_group"] or ""
    if (row["unknown_share"] or 0) >= 1:
        return "ask its team what became of these transactions, or end them by hand (`checkback tx resolve`)"
    if (row["no_answer_share"] or 0) < 1:
        return None
    if not row["endpoints"]:
        return f"set producers.{name}.endpoints, and {_AGAIN}"
    if hint(row["last_error"], name):
        return f"repair the endpoint, or its settings in producers.{name}: then {_AGAIN}"
    return "ask its team whether the endpoint is up: once it answers, checks go on by themselves"


def consumers(pages: Pages, request: Request) -> Response:
    """The consumer groups: members, lag, retries, dead letters and why they were given up; always as of now."""
    now = round(time.time() * 1000)
    with pages.asking() as answers:
        found = LagReader(answers.tables).read(now)
        dead, unknown = {}, {}
        for one in found:
            if one.dead_letters:
                try:
                    listed, fates = dead_letters(answers.tables, one.group)
                    dead[one.group] = with_keys(answers, listed), fates
                except StorageError as error:  # the groups are shown all the same
                    unknown[one.group] = f"its dead letters are not known: {error}"
    rows = [
        {
            "group": one.group,
            "members": None if one.written_at is None else [member.name for member in one.members],
            "not_heard_of": [member.name for member in one.members if not member.lives],
            "heard_at": None if one.written_at is None else time_of(one.written_at),
            "errors": [
                *filter(None, (one.damaged, unknown.get(one.group))),
                *held_lines(one, now),
                *filter(None, (member.last_error for member in one.members)),
                *([DIFFER] if one.differs else []),
            ],
            "topics": [
                {
                    "topic": topic.topic,
                    "lag_messages": topic.messages,
                    "lag_s": topic.seconds,
                    "retries": topic.retries,
                    "dead_letters": topic.dead_letters,
                    "subscribed": topic.subscribed,
                    "queues_without_owner": sum(queue.owner not in one.living for queue in topic.queues),
                }
                for topic in one.topics
            ],
            "dead_letters": dead.get(one.group, ([], {}))[0],
            "fates": dead.get(one.group, ([], {}))[1],
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
