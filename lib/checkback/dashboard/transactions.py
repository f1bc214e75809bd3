"""A transaction: found by its id, a key, or topic and place; its story in time, from all tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from checkback.dashboard.charts import positions
from checkback.dashboard.fate import dead_letters_of, fate_of
from checkback.dashboard.pages import ROWS, given, link, mended, page_of
from checkback.errors import SettingsError
from checkback.messages.half import parse_place
from checkback.messages.limits import INT_MAX, LONG_MAX
from checkback.query.answers import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.pages import Pages

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
            "may_body": pages.settings.dashboard.bodies,
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
