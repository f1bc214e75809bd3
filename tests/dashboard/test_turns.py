"""Many requests at a time: which are answered, which wait, and for how long."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from checkback.dashboard import app, pages
from checkback.operate import request as operate_request
from checkback.operate.operator_tables import OperatorTables, open_tables
from dashboard.hostile import HOSTILE, TOKEN
from dashboard.visitors import SAME, client, form_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from checkback.dashboard.pages import Pages
    from checkback.settings import Settings

pytestmark = pytest.mark.slow

#: requests, several times as many as there are threads to answer them; and seconds that none of these tests takes
_MANY, _LONG_S = 150, 60.0


class Held:
    """Something that takes until the test lets it end."""

    def __init__(self) -> None:
        self.begun, self._ends = Event(), Event()

    def take(self) -> None:
        self.begun.set()
        assert self._ends.wait(_LONG_S)

    async def has_begun(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, _LONG_S)

    def end(self) -> None:
        self._ends.set()


def _visit(root: Path, act: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Visits to the application, all in one event loop, as its server has one."""

    async def run() -> None:
        transport = httpx.ASGITransport(client(root, TOKEN, actions=True).app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8902", timeout=_LONG_S) as browser:
            await browser.post("/login", data={"token": TOKEN})
            await act(browser)

    asyncio.run(asyncio.wait_for(run(), _LONG_S))


def test_all_that_wait_are_refused_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when they are more than there are threads: all have waited since they came."""
    held = [Held() for _ in range(pages._AT_ONCE)]
    free = iter(held)

    def show(pages: Pages, _: Request) -> Response:
        with pages.asking():
            next(free).take()
        return PlainTextResponse("held")

    monkeypatch.setitem(app.PAGES, "/audit", show)
    monkeypatch.setattr(pages, "_PATIENCE_S", 1.0)

    async def act(browser: httpx.AsyncClient) -> None:
        first = [asyncio.create_task(browser.get("/audit")) for _ in held]
        for one in held:
            await one.has_begun()
        began = time.monotonic()
        refused = await asyncio.gather(*(browser.get("/pending.json") for _ in range(_MANY)))
        took = time.monotonic() - began
        assert {answer.status_code for answer in refused} == {503}
        assert refused[0].json()["what"] == "other questions are being answered; ask again"
        assert 1 <= took < 3, "40 threads would wait four times"
        for one in held:
            one.end()
        assert [(await task).text for task in first] == ["held"] * len(held)
        assert (await browser.get("/pending.json")).status_code == 200

    _visit(root, act)


def test_an_action_waits_for_the_other_and_pages_for_neither(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of Spark that an action opens is the process's only one."""
    held, opened = Held(), 0

    @contextmanager
    def opening(settings: Settings) -> Iterator[OperatorTables]:
        nonlocal opened
        opened += 1
        with open_tables(settings) as store:
            if not held.begun.is_set():
                held.take()
            yield store

    monkeypatch.setattr(operate_request, "open_tables", opening)

    async def act(browser: httpx.AsyncClient) -> None:
        def form(number: int, page: str) -> dict[str, Any]:
            offset = str(len(HOSTILE) + number + 1)
            names = {"transaction_id": f"t-{number}", "group": "orders", "queue_id": "0", "queue_offset": offset}
            return form_of(page, action="commit", confirmed="yes", **names)

        page = (await browser.get(f"/transactions/0/{len(HOSTILE) + 6}")).text
        post = partial(browser.post, "/actions", headers=SAME)
        first = asyncio.create_task(post(data=form(5, page)))
        await held.has_begun()
        monkeypatch.setattr(pages, "_PATIENCE_S", 0.5)
        refused = await post(data=form(6, page))
        assert (refused.status_code, opened) == (503, 1)
        assert "another action is running; try again when it is done" in refused.text
        monkeypatch.setattr(pages, "_PATIENCE_S", _LONG_S)
        second = asyncio.create_task(post(data=form(6, page)))
        assert (await browser.get("/pending.json")).status_code == 200
        assert (second.done(), opened) == (False, 1)
        held.end()
        for task in (first, second):
            assert "the op is appended" in (await task).text

    _visit(root, act)
