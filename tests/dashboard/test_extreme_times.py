"""Every page and every command that reads, on tables whose times are at the ends of their range, or null."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from checkback.cli import main
from checkback.dashboard.pages import Pages
from dashboard.extreme_times import EXTREMES, build, queues
from dashboard.visitors import client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.responses import Response
    from starlette.testclient import TestClient

pytestmark = pytest.mark.slow
PAGES = (
    *("/", "/pending", "/scheduled", "/unpublished", "/consumers", "/audit?run=1", "/groups/orders", "/groups/billing"),
    *("/transactions?topic=payments", "/transactions?topic=a", "/?as_of=10m ago", "/pending?as_of=10m ago"),
    *("/?batch=1", "/?batch=5", "/?as_of=0001-01-01T00:00"),
)
COMMANDS = (
    *("status", "status -o json", "tx list", "tx list -o json", "topic list", "tx list --state scheduled"),
    *(
        "tx list --state unpublished",
        "tx decisions",
        "tx list --state discarded",
        "group list",
        "group describe ledger",
    ),
    *("group describe ledger -o json", "audit", "audit -o json", "topic consume payments"),
    "group reconsume ledger --all --actor ann --reason why",
)


def pages_of(number: int) -> list[str]:
    """The pages of the transactions with the folder's extreme time of this number."""
    return [f"/transactions/{queue}/{offset}" for queue in queues(number) for offset in range(3)]


def commands_of(number: int) -> list[str]:
    """Commands about them."""
    decided, pending = queues(number)
    by = "--actor ann --reason why"
    return [
        f"tx describe tx-{decided}-0",
        f"tx resolve tx-{pending}-0 --commit {by} --queue-id {pending} --queue-offset 0",
        f"tx resume tx-{decided}-0 {by} --queue-id {decided} --queue-offset 0",
    ]


def _of_folders(of_all: Sequence[str], of_each: Callable[[int], list[str]]) -> list[tuple[int, str]]:
    """What is asked of all rows of each folder, by its number, and of each of its extreme times."""
    return [
        (folder, asked)
        for folder, extremes in enumerate(EXTREMES)
        for asked in (*of_all, *(one for number in range(len(extremes)) for one in of_each(number)))
    ]


@pytest.fixture(scope="module")
def extreme(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of the tables, by its number."""

    @cache
    def of(folder: int) -> Path:
        root = tmp_path_factory.mktemp("extreme")
        build(root, *EXTREMES[folder])
        return root

    return of


class _BothPages(Pages):
    """Every page is its JSON, too, without asking the tables again."""

    def answer(self, request: Request, template: str, data: Mapping[str, Any], status: int = 200) -> Response:
        """The page."""
        as_json = Request({**request.scope, "headers": [(b"accept", b"application/json")]})
        found = super().answer(as_json, template, data, status)
        assert (found.status_code, found.media_type) == (status, "application/json")
        return super().answer(request, template, data, status)


@pytest.fixture(scope="module")
def browsers(extreme: Callable[[int], Path]) -> Callable[[int], TestClient]:
    """Who goes from page to page of a folder."""
    return cache(lambda folder: client(extreme(folder), kind=_BothPages))


@pytest.mark.parametrize(("folder", "path"), _of_folders(PAGES, pages_of))
def test_every_page_answers(browsers: Callable[[int], TestClient], folder: int, path: str) -> None:
    """What a query asks for, as JSON is answered in another way: errors in it, a time in the past, an audit."""
    browser = browsers(folder)
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    page, _, query = path.partition("?")
    if query:
        data = browser.get(f"{'/overview' if page == '/' else page}.json?{query}")
        assert data.status_code == 200, data.text


@pytest.mark.parametrize(("folder", "command"), _of_folders(COMMANDS, commands_of))
def test_every_command_answers(
    extreme: Callable[[int], Path], folder: int, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """0; 1: the audit has found something; 2: refused, in one line."""
    code = main([*command.split(), "--set", f"storage.root={extreme(folder)}"])
    out, err = capfd.readouterr()
    assert (code in (0, 1, 2), "unexpected" in err, out == "" and err == "") == (True, False, False), err
    assert code != 2 or err.count("\n") == 1
