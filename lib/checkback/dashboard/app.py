"""The ASGI application: routes, who may see them, and the headers that keep a browser from doing anything else."""

from __future__ import annotations

import asyncio
import logging
import time
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from checkback.dashboard import actions, lists, overview, transactions
from checkback.dashboard.access import COOKIE, VALID_S, is_foreign, is_same_origin
from checkback.dashboard.pages import ROWS, BusyError
from checkback.errors import CheckbackError, SettingsError, StorageError, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from checkback.dashboard.pages import Pages

    Show = Callable[[Pages, Request], Response]

_log = logging.getLogger("checkback.dashboard")
#: bytes of a form, and fields in it
FORM_MAX, FIELDS_MAX = 64 << 10, ROWS + 20
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer browsers send "Origin: null" with forms, which `is_same_origin` refuses.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
#: paths that are answered without a session
_OPEN = frozenset({"/login", *(f"/static/{name}" for name in STATIC)})
#: paths that anybody may ask, and that say nothing of the tables' content
_PROBES = frozenset({"/healthz", "/readyz"})
#: seconds for which an answer of /readyz holds
_LOOK_S = 5.0
PAGES: dict[str, Show] = {
    "/pending": lists.pending,
    "/decisions": lists.decisions,
    "/scheduled": lists.scheduled,
    "/discarded": lists.discarded,
    "/unpublished": lists.unpublished,
    "/consumers": lists.consumers,
    "/groups/{group}": lists.group,
    "/audit": overview.audit,
    "/transactions": transactions.search,
    "/transactions/{queue_id}/{queue_offset}": transactions.transaction,
}


def create_app(pages: Pages) -> Starlette:
    """The application. Each page's data are at the same path with ``.json``."""
    routes = [Route("/", _shown(pages, overview.overview)), Route("/overview.json", _shown(pages, overview.overview))]
    for path, show in PAGES.items():
        if not path.endswith("}"):
            routes.append(Route(f"{path}.json", _shown(pages, show)))
        routes.append(Route(path, _shown(pages, show)))
    routes += [
        Route("/login", _login(pages), methods=["GET", "POST"]),
        Route("/actions", _action(pages), methods=["POST"]),
        Route("/static/{name}", _static),
        Route("/healthz", _healthy),
        Route("/readyz", _ready(pages)),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found(pages)})
    app.add_middleware(BaseHTTPMiddleware, dispatch=_guard(pages))
    return app


def _guard(
    pages: Pages,
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.scope["path"] in _PROBES:  # a pod's address is no localhost
            return await answer(request)
        allowed = pages.access.allowed(request.headers, request.cookies.get(COOKIE, ""))
        if not allowed and not (pages.access.needs_token and request.scope["path"] in _OPEN):
            response = _refused(pages, request)
        elif is_foreign(request.method, request.headers, overview.runs(request)):
            response = pages.error(request, 403, "a page of another site asks for this: open it here")
        else:
            response = await answer(request)
        response.headers.update(HEADERS)
        return response

    return guard


def _refused(pages: Pages, request: Request) -> Response:
    if not pages.access.needs_token:
        return PlainTextResponse("without dashboard.token only requests for localhost are answered\n", 421)
    if "text/html" in request.headers.get("accept", "") and request.method == "GET":
        return RedirectResponse("/login", 303)
    return PlainTextResponse("the header Authorization: Bearer TOKEN is missing or wrong\n", 401)


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _ready(pages: Pages) -> Callable[[Request], Awaitable[Response]]:
    """200 if the tables can be read, as of a few seconds ago: anybody may ask."""
    turn = asyncio.Lock()
    looked_at, readable = float("-inf"), False

    def look() -> bool:
        try:
            with pages.asking() as answers:
                # A table that is missing is read as an empty one.
                if not answers.batches(limit=1).num_rows and answers.decided(limit=1).num_rows:
                    raise StorageError("there are decisions, and no batch that made them", "batches")
        except CheckbackError as error:
            _log.warning("the tables cannot be read: %s", error)
            return False
        return True

    async def ready(_: Request) -> Response:
        nonlocal looked_at, readable
        async with turn:
            if time.monotonic() >= looked_at + _LOOK_S:
                readable = await run_in_threadpool(look)
                looked_at = time.monotonic()
        return PlainTextResponse("ok\n") if readable else PlainTextResponse("the tables cannot be read\n", 503)

    return ready


def _shown(pages: Pages, show: Show) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return await _answered(pages, request, lambda: pages.moved(request) or show(pages, request))

    return page


async def _answered(
    pages: Pages, request: Request, answer: Callable[[], Response], *, acting: bool = False
) -> Response:
    try:
        async with pages.turn(acting=acting):
            return await run_in_threadpool(answer)
    except BusyError as error:
        return pages.error(request, 503, str(error))
    except SettingsError as error:
        return pages.error(request, 400, printable(str(error)))
    except CheckbackError as error:
        return pages.error(request, 409, printable(str(error)))
    except Exception as error:  # noqa: BLE001 - the browser gets a page, the log the reason without the request
        _log.error("a page failed: %s", type(error).__name__, exc_info=_log.isEnabledFor(logging.DEBUG))
        return pages.error(request, 500, "an error of the dashboard; its log says more")


def _action(pages: Pages) -> Callable[[Request], Awaitable[Response]]:
    async def action(request: Request) -> Response:
        if not pages.settings.dashboard.actions or not pages.access.needs_token:
            return pages.error(request, 403, "actions are off: set dashboard.actions and dashboard.token")
        form = await _form(request)
        cookie = request.cookies.get(COOKIE, "")
        if form is None:
            return pages.error(request, 413, "the form is too large")
        same = is_same_origin(request.headers.get("origin"), request.headers.get("host", ""))
        if not same or not pages.access.is_session(cookie) or not pages.access.is_csrf(cookie, form.get("csrf", "")):
            return pages.error(request, 403, "the form is not of this session: open the page again")
        return await _answered(pages, request, lambda: _acted(pages, request, form), acting=True)

    return action


def _acted(pages: Pages, request: Request, form: dict[str, str]) -> Response:
    try:
        return actions.handle(pages, request, form)
    except CheckbackError as error:
        return actions.refused(pages, request, form, error)


def _login(pages: Pages) -> Callable[[Request], Awaitable[Response]]:
    async def login(request: Request) -> Response:
        if request.method == "GET" or not pages.access.needs_token:
            return pages.answer(request, "login.html", {"wrong": False})
        form = await _form(request)
        if form is None or not pages.access.is_token(form.get("token", "")):
            return pages.answer(request, "login.html", {"wrong": True}, 401)
        response = RedirectResponse("/", 303)
        secure = request.headers.get("x-forwarded-proto", request.scope["scheme"]) == "https"
        response.set_cookie(
            COOKIE, pages.access.session(), max_age=VALID_S, httponly=True, samesite="strict", secure=secure
        )
        return response

    return login


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form, the values of several of one name as lines; None if it is larger than any of ours."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > FORM_MAX:
                return None
    except ClientDisconnect:  # nobody reads the answer
        return None
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return None
    form: dict[str, str] = {}
    for name, value in fields:
        form[name] = f"{form[name]}\n{value}" if name in form else value
    return form


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("there is no such file\n", 404)
    return Response(
        files("checkback.dashboard").joinpath("static").joinpath(name).read_bytes(), media_type=STATIC[name]
    )


def _not_found(pages: Pages) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, _: Exception) -> Response:
        return pages.error(request, 404, "there is no such page")

    return answer
