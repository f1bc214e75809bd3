"""What all pages share: templates, the choice of a time, JSON beside HTML, errors, few questions at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from checkback.errors import CheckbackError, SettingsError, StorageError, printable
from checkback.messages.durations import span
from checkback.messages.limits import TRANSACTION_ID_MAX
from checkback.query.answers import Answers, records
from checkback.query.versions.as_of import parse_as_of
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractContextManager

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.dashboard.access import Access
    from checkback.settings import Settings

_log = logging.getLogger("checkback.dashboard")
#: rows of a page, characters of a text in a table, and stops of the time slider: the newest batches, and older ones
ROWS, CUT, NEAR, FAR = 50, 120, 100, 100
#: requests that are answered at a time: each may need hundreds of MiB; and how long others wait
_AT_ONCE, _PATIENCE_S = 2, 30.0
_Read = TypeVar("_Read")
_ALTERED, _ESCAPED = re.compile(r"[\x00-\x1f%]"), re.compile(r"%([01][0-9A-F]|25)")
#: what of a page's query is the time that it shows
_TIME = ("as_of", "batch")


class BusyError(CheckbackError):
    """Others are being answered, for longer than a request waits."""


class Pages:
    """Renders pages, and asks the tables for them."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self.settings = settings
        self.access = access
        self._answers = Answers(settings, say=_log.warning)
        self._turns, self._acting = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(1)
        self._templates = Environment(
            loader=PackageLoader("checkback.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters |= {
            "text": text,
            "cut": cut,
            "field": field,
            "time": time,
            "span": _span,
        }

    def stop(self) -> None:
        """End the questions that are being answered: the dashboard ends."""
        self._answers.stop(StorageError("the dashboard ends", "", "start it again"))

    @asynccontextmanager
    async def turn(self, *, acting: bool = False) -> AsyncIterator[None]:
        """The turn of a request that has just come. Raises BusyError after `_PATIENCE_S`.

        Those that wait hold no thread. ``acting``: an action, of which one is done at a time; the next one waits before
        it has a turn.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _PATIENCE_S
        action = (self._acting, BusyError("another action is running", "", "try again when it is done"))
        question = (self._turns, BusyError("other questions are being answered", "", "ask again"))
        async with AsyncExitStack() as stack:
            for turns, busy in [action, question] if acting else [question]:
                try:
                    await asyncio.wait_for(turns.acquire(), until - clock())
                except asyncio.TimeoutError:
                    raise busy from None
                stack.callback(turns.release)
            yield

    def asking(self, *, pending: bool = False) -> AbstractContextManager[Answers]:
        """The answers for a page, of one moment. ``pending``: several of its questions are about what is pending."""
        return self._answers.together(pending=pending)

    def as_of(self, request: Request, answers: Answers) -> tuple[datetime | None, dict[str, Any]]:
        """The time that a page is asked for: ``as_of``, or that of ``batch``, the number of a stop counted back.

        And what the form for it shows. ``batch``: the last stop that was complete by then, counted back; ``batch_id``:
        of the last batch that was; ``moment``: the time, None = now; ``time``: what links to other pages carry, which
        batches to come do not shift.
        """
        batches = records(answers.batch_stops(NEAR, FAR))
        ago = request.query_params.get("batch", "")
        # Python parses no number of thousands of digits.
        chosen = int(ago) if ago.isdecimal() and len(ago) < 9 and 0 < int(ago) < len(batches) else 0
        said = (given(request, "as_of") or "").strip() or None
        finished = [_json(batch["finished_at"]) for batch in batches]
        if said is not None:
            chosen = finished.index(said) if said in finished[1:] else 0
        moment = batches[chosen]["finished_at"] if chosen else _whole(said)
        complete = chosen or next((back for back, batch in enumerate(batches) if _by(batch, moment)), len(batches))
        shown = {
            "batches": batches[::-1],
            "batch": min(complete, max(0, len(batches) - 1)),
            "as_of": "" if chosen else said or "",
            "time": _json(moment) if moment else None,
            "moment": moment,
            "batch_id": batches[chosen]["batch_id"] if chosen else moment and answers.last_batch(moment),
        }
        return moment, shown

    def moved(self, request: Request) -> Response | None:
        """To the same page at a fixed time, if its address has one that moves: "3m ago", or batches counted back."""
        query = request.query_params
        said, back = query.get("as_of", ""), query.get("batch", "0")
        if wants_json(request) or (not said and back == "0"):
            return None
        with self.asking() as answers:
            fixed = self.as_of(request, answers)[1]["time"]
        if (fixed or "") == said:
            return None
        kept = [(name, value) for name, value in query.multi_items() if name not in ("as_of", "batch")]
        asked = urlencode([*kept, *([("as_of", fixed)] if fixed else [])])
        return RedirectResponse(quote(request.scope["path"]) + (f"?{asked}" if asked else ""), 303)

    def answer(self, request: Request, template: str, data: Mapping[str, Any], status: int = 200) -> Response:
        """The page, or with the suffix .json or Accept: application/json its data."""
        if wants_json(request):
            return JSONResponse(json.loads(json.dumps(dict(data), default=_json)), status)
        cookie = request.cookies.get("checkback_dashboard", "")
        # An error's links do not lead to the error again.
        then = data["as_of"]["time"] if "as_of" in data else given(request, "as_of") if status < 400 else None
        kept = {"as_of": then} if then else {}
        asked = {name: value for name, value in request.query_params.items() if name not in _TIME}
        page = self._templates.get_template(template).render(
            data,
            path=request.scope["path"],
            query=dict(request.query_params),
            then=then,
            kept=("?" + urlencode(kept)) if kept else "",
            also=("&" + urlencode(kept)) if kept else "",
            same=_query(asked | kept),
            as_of_now=_query({name: value for name, value in asked.items() if name != "page"}),
            link=lambda row: link(row, then),
            csrf=self.access.csrf(cookie),
            actions=self.settings.dashboard.actions and self.access.needs_token,
            slow={name: files for name, files in dict(self._answers.small_files).items() if files},
            root=printable(self.settings.storage.root),
        )
        return HTMLResponse(page, status)

    def error(self, request: Request, status: int, what: str) -> Response:
        """A page that says what is wrong, in one line."""
        return self.answer(request, "error.html", {"what": what, "status": status}, status)


def _whole(said: str | None) -> datetime | None:
    """The time that is meant; one that is counted back from now is to the second, as it is shown."""
    moment = parse_as_of(said)
    return moment.replace(microsecond=0) if moment and said and said.endswith("ago") else moment


def _by(batch: Mapping[str, Any], moment: datetime | None) -> bool:
    """Whether a batch was complete by then."""
    return moment is None or (batch["finished_at"] is not None and batch["finished_at"] <= moment)


def wants_json(request: Request) -> bool:
    """Is the answer to be JSON?"""
    accepted = request.headers.get("accept", "")
    return request.scope["path"].endswith(".json") or ("application/json" in accepted and "text/html" not in accepted)


def link(row: Mapping[str, Any], then: str | None = None) -> str:
    """The page of a row's transaction, as of ``then``. It is named: its offset may be another's, or have been."""
    names = {"transaction_id": row["transaction_id"], "group": row.get("producer_group")}
    # A name that only another writer could give it may be long.
    named = {name: value for name, value in names.items() if value and len(value) <= TRANSACTION_ID_MAX}
    return f"/transactions/{row['queue_id']}/{row['queue_offset']}{_query(named | ({'as_of': then} if then else {}))}"


def _query(parameters: Mapping[str, str]) -> str:
    return f"?{urlencode(parameters, quote_via=quote, errors='replace')}" if parameters else ""


def text(value: object) -> str:
    """A value of a row, whoever wrote it: control and bidirectional characters are escaped."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return time(value)
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "replace"))
    return printable(value if isinstance(value, str) else json.dumps(value, default=_json, ensure_ascii=False))


def field(name: str | None) -> str:
    """A name as the value of a field that nobody types; `of_field` reads it.

    Browsers alter control characters (HTML, "newline normalization"), and lines separate several names.
    """
    return _ALTERED.sub(lambda found: f"%{ord(found[0]):02X}", name or "")


def of_field(value: str) -> str:
    """The name whose `field` this is."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


def cut(value: object, most: int = CUT) -> str:
    """`text`, cut off."""
    whole = text(value if not isinstance(value, str) else value[: 4 * most])
    return whole if len(whole) <= most else f"{whole[:most]}…"


def time(value: datetime | int | None) -> str:
    """A time, in UTC, to the second; an int is ms since the epoch."""
    if value is None:
        return "-"
    at = time_of(value) if isinstance(value, int) else value
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def _span(value: float | timedelta | None) -> str:
    """A duration; a number is in seconds."""
    if value is None:
        return "-"
    return span(value.total_seconds() if isinstance(value, timedelta) else float(value))


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)


def mended(request: Request, read: Callable[[], _Read], otherwise: _Read) -> tuple[_Read, str]:
    """A value that was typed into a page's form; if it is wrong, another, and why: the form stays for correction.

    Raises SettingsError for JSON.
    """
    try:
        return read(), ""
    except SettingsError as error:
        if wants_json(request):
            raise
        return otherwise, printable(str(error))


def page_of(request: Request) -> int:
    """The number of the page of rows that is asked for, from 0 on."""
    number = request.query_params.get("page", "")
    return int(number) if number.isdecimal() and len(number) < 9 else 0


def given(request: Request, name: str) -> str | None:
    """A parameter of the query, as it is: ids and keys may have spaces at their ends; None if missing or empty."""
    return request.query_params.get(name) or None
