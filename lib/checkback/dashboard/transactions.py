"""A transaction: found by its id, a key, or topic and place; its story, what became of it, what may be done with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from checkback.consumer import dead_letter_requests
from checkback.consumer.dead_letters import TABLE
from checkback.consumer.reconsume import AGAIN
from checkback.dashboard.charts import positions
from checkback.dashboard.pages import ROWS, given, link, mended, page_of
from checkback.errors import CheckbackError, SettingsError
from checkback.messages.half import parse_place
from checkback.messages.limits import INT_MAX, LONG_MAX
from checkback.messages.trace_context import trace_id_of
from checkback.operate.operator_tables import FileStore
from checkback.query.answers import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.consumer.reconsume import Judged
    from checkback.dashboard.pages import Pages
    from checkback.query.answers import Answers, AsOf
    from checkback.storage.tables import Tables

#: events of a story, and bytes of a body, that are shown
EVENTS, BODY = 500, 4096


def search(pages: Pages, request: Request) -> Response:
    """The half messages with an id, a key, at a place, or of a topic. The only one is shown at once."""
    page = page_of(request)
    rows: list[dict[str, Any]] = []
    more = False
    wanted, wrong = mended(request, lambda: _wanted(request), rows)
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        for by in wanted:
            found = answers.transactions(then, **by, limit=ROWS + 1, offset=page * ROWS)
            rows, more = records(found.slice(0, ROWS)), found.num_rows > ROWS
            if rows:
                break
    if len(rows) == 1 and not page and not request.scope["path"].endswith(".json"):
        return RedirectResponse(link(rows[0], form["time"]), 303)
    data = {"as_of": form, "rows": rows, "more": more, "page": page, "asked": bool(wanted), "wrong": wrong}
    return pages.answer(request, "transactions.html", data, 400 if wrong else 200)


def _wanted(request: Request) -> list[dict[str, Any]]:
    """What is searched for: the arguments of questions, of which the first that finds something is shown.

    ``find`` is an id, a key, or a place as pages show it. Raises SettingsError.
    """
    find = given(request, "find")
    if find is not None:
        by_key: list[dict[str, Any]] = [{"key": find.strip()}] if find.strip() else []
        by_place: list[dict[str, Any]] = [{"place": place}] if (place := parse_place(find.strip())) is not None else []
        return [{"transaction_id": find}, *by_key, *by_place]
    by: dict[str, Any] = {name: given(request, name) for name in ("transaction_id", "key", "topic")}
    by["place"] = place_of(request)
    return [by] if any(value is not None for value in by.values()) else []


def transaction(pages: Pages, request: Request) -> Response:
    """One half message and all that the tables have of its transaction id, in the order of time.

    Of several at one place that which is taken, the first that landed, unless ``transaction_id`` and ``group`` name
    another.
    """
    queue, offset = request.path_params["queue_id"], request.path_params["queue_offset"].removesuffix(".json")
    place = _place(queue, offset)
    bodies = pages.settings.dashboard.bodies and request.query_params.get("body") == "1"
    with pages.asking() as answers:
        then, form = pages.as_of(request, answers)
        halves = records(answers.transactions(then, place=place, bodies=bodies))
        halves.sort(key=lambda one: not one["taken"])
        named = {"transaction_id": given(request, "transaction_id"), "producer_group": given(request, "group")}
        fit = (one for one in halves if all(value in (None, one[name]) for name, value in named.items()))
        half = next(fit, None)
        if half is None:
            what = "this transaction has no half message" if any(named.values()) else "there is no half message"
            return pages.error(request, 404, f"{what} at queue {queue}, offset {offset}")
        fate = fate_of(answers, then, half)
        events = records(answers.lineage(half["transaction_id"], then, group=half["producer_group"]))
        of = {event["event"] for event in events}
        unpublished = []
        if half["taken"] and half["state"] and "UNPUBLISHED" in of:
            unpublished = records(answers.unpublished(then, group=half["producer_group"], place=place))
    trace_url = pages.settings.dashboard.trace_url
    dead = dead_letters_of(answers.tables, half) if "DEAD_LETTER" in of else []
    events = events[:EVENTS]
    at = positions([event["at"] for event in events])
    known = [event["at"] for event in events if event["at"] is not None]
    return pages.answer(
        request,
        "transaction.html",
        {
            "as_of": form,
            "taken": half["taken"],
            "fate": fate.__dict__,
            "dead_letters": dead,
            "half": {name: value for name, value in half.items() if name not in ("body", "taken")},
            "body": half["body"][:BODY] if bodies and half.get("body") is not None else None,
            "trace": (trace := trace_id_of(dict(half["properties"] or ()))),
            "trace_url": trace_url.replace("{trace_id}", trace) if trace and trace_url else None,
            "may_body": pages.settings.dashboard.bodies,
            "no_body": bodies and half.get("body") is None,
            "events": [event | {"x": x, "own": _own(event, place)} for event, x in zip(events, at, strict=True)],
            "span": (min(known), max(known)) if known else None,
            "why": fate.pending["why"] if fate.pending else None,
            "next_check_at": fate.pending["next_check_at"] if fate.pending else None,
            "pending": fate.pending,
            "check_max": fate.check_max,
            "unpublished": unpublished[0] if unpublished else None,
        },
    )


def _own(event: Mapping[str, Any], place: tuple[int, int] | None) -> bool:
    """Whether it is about the half message, not about one that was made of it, or of which it was made."""
    return event["queue_offset"] is None or (event["queue_id"], event["queue_offset"]) == place


def place_of(request: Request) -> tuple[int, int] | None:
    """The place that a query names; None = none. Raises SettingsError."""
    return _place(given(request, "queue_id"), given(request, "queue_offset"))


def _place(queue_id: str | None, queue_offset: str | None) -> tuple[int, int] | None:
    if queue_id is None and queue_offset is None:
        return None
    said = [text.strip() for text in (queue_id, queue_offset) if text is not None]
    numbers = [text for text in said if text.isdecimal() and len(text) < 20]
    if len(numbers) != 2 or int(numbers[0]) > INT_MAX or int(numbers[1]) > LONG_MAX:
        raise SettingsError("is no place", "queue_id, queue_offset", "give both, as whole numbers")
    return int(numbers[0]), int(numbers[1])


#: `half` was restored to an older version: what was resumed may be resumed again
GONE = "GONE"
#: consumer groups whose dead letter a message may be shown to be
_GROUPS = 20


@dataclass(frozen=True)
class Fate:
    """``pending``: its row of `pending`, with ``check_max``; ``scheduled``: it is published later.

    ``resumed_as``, ``resumed_from``: queue_id, queue_offset, transaction_id, producer_group of the half message made of
    it, and of the one it was made of; the former's ``state``, None = pending, GONE = it is not in
    `half` any more. ``acts``: the actions that are allowed.
    """

    pending: Mapping[str, Any] | None = None
    check_max: int | None = None
    scheduled: bool = False
    resumed_as: Mapping[str, Any] | None = None
    resumed_from: Mapping[str, Any] | None = None
    acts: tuple[str, ...] = ()


def fate_of(answers: Answers, then: AsOf, half: Mapping[str, Any]) -> Fate:
    """That of a row of `Answers.transactions`."""
    if not half["taken"]:
        return Fate()
    place, group = (half["queue_id"], half["queue_offset"]), half["producer_group"]
    resumes = records(answers.resumes(half["transaction_id"], then, group=group))
    named = {name: half[name] for name in ("transaction_id", "producer_group")}
    later = [one for one in resumes if (one["queue_id"], one["queue_offset"]) == place]
    earlier = [one for one in resumes if (one["new_queue_id"], one["new_queue_offset"]) == place]
    origin = {name: earlier[-1][name] for name in ("queue_id", "queue_offset")} | named if earlier else None
    if not half["state"]:
        waiting = records(answers.pending(then, group=group, place=place))
        acts = ("commit", "rollback") if waiting and waiting[0]["op_waiting"] is None else ()
        return Fate(waiting[0] if waiting else None, answers.check_max(then), resumed_from=origin, acts=acts)
    if half["state"] == "COMMIT":
        scheduled = bool(half["scheduled_for"]) and bool(answers.scheduled(then, group=group, place=place).num_rows)
        return Fate(scheduled=scheduled, resumed_from=origin, acts=("cancel",) if scheduled else ())
    if half["state"] not in ("DISCARD", "CANCEL"):
        return Fate(resumed_from=origin)
    if not later:
        return Fate(resumed_from=origin, acts=("resume",))
    new = later[-1]["new_queue_id"], later[-1]["new_queue_offset"]
    found = records(answers.transactions(then, place=new))
    state = next((one["state"] for one in found if all(one[name] == half[name] for name in named)), GONE)
    there = {"queue_id": new[0], "queue_offset": new[1], "state": state}
    return Fate(resumed_as=there | named, resumed_from=origin, acts=("resume",) if state == GONE else ())


def dead_letters_of(tables: Tables, half: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The consumer groups that gave a message up now: group, topic, and fate, what became of it (`AGAIN`: nothing).

    Of a group that cannot be read, e.g. as its table is gone, the topic is None, and the fate why it is not known.
    """
    equal = {"transaction_id": [half["transaction_id"]], "half_queue_id": [half["queue_id"]]}
    equal["half_queue_offset"] = [half["queue_offset"]]
    rows = FileStore(tables).rows(TABLE, equal, ["consumer_group"]).to_pylist()
    found: list[dict[str, Any]] = []
    for group in sorted({row["consumer_group"] for row in rows if row["consumer_group"]})[:_GROUPS]:
        try:
            letters = dead_letter_requests.dead_letters(tables, group, None, [half["transaction_id"]])
        except CheckbackError as error:  # the story, and the other groups, are shown all the same
            found.append({"group": group, "topic": None, "fate": f"not known: {error}"})
            continue
        found += [
            {"group": group, "topic": one.buried.queue.topic, "fate": fate_of_letter(one)}
            for one in letters
            if (one.buried.half_queue_id, one.buried.half_queue_offset) == (half["queue_id"], half["queue_offset"])
        ]
    return found


def fate_of_letter(one: Judged) -> str:
    """What became of a dead letter; AGAIN is what `reconsume` would do."""
    return "given up" if one.fate == AGAIN else one.fate
