"""Every page and every command that reads, on tables whose times are at the ends of their range, or null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from checkback.cli import main
from checkback.dashboard.pages import Pages
from dashboard.extreme_times import EXTREMES, build
from dashboard.visitors import client

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from starlette.responses import Response
    from starlette.testclient import TestClient

pytestmark = pytest.mark.slow
PAGES = (
    *("/", "/pending", "/scheduled", "/unpublished", "/consumers", "/audit?run=1", "/groups/orders", "/groups/billing"),
    *("/transactions?topic=payments", "/transactions?topic=a", "/?as_of=10m ago", "/pending?as_of=10m ago"),
    *(f"/transactions/{queue}/{offset}" for queue in (5, 6) for offset in range(3)),
    *("/?batch=1", "/?batch=5", "/?as_of=0001-01-01T00:00"),
)
COMMANDS = (
    *(
        "status",
        "status -o json",
        "tx list",
        "tx list -o json",
        "topic list",
        "tx list --state scheduled",
        "tx list --state unpublished",
    ),
    *("tx decisions", "tx list --state discarded"),
    *(
        "group list",
        "group describe ledger",
        "group describe ledger -o json",
        "audit",
        "audit -o json",
        "tx describe tx-5-0",
    ),
    *("topic consume payments", "group reconsume ledger --all --actor ann --reason why"),
    "tx resolve tx-6-0 --commit --actor ann --reason why --queue-id 6 --queue-offset 0",
    "tx resume tx-5-0 --actor ann --reason why --queue-id 5 --queue-offset 0",
)


@pytest.fixture(scope="module", params=EXTREMES, ids=str)
def extreme(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tables."""
    root = tmp_path_factory.mktemp("extreme")
    build(root, request.param)
    return root


class _BothPages(Pages):
    """Every page is its JSON, too, without asking the tables again."""

    def answer(self, request: Request, template: str, data: Mapping[str, Any], status: int = 200) -> Response:
        """The page."""
        as_json = Request({**request.scope, "headers": [(b"accept", b"application/json")]})
        found = super().answer(as_json, template, data, status)
        assert (found.status_code, found.media_type) == (status, "application/json")
        return super().answer(request, template, data, status)


@pytest.fixture(scope="module")
def browser(extreme: Path) -> TestClient:
    """Somebody who goes from page to page."""
    return client(extreme, kind=_BothPages)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers(browser: TestClient, path: str) -> None:
    """What a query asks for, as JSON is answered in another way: errors in it, a time in the past, an audit."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    page, _, query = path.partition("?")
    if query:
        data = browser.get(f"{'/overview' if page == '/' else page}.json?{query}")
        assert data.status_code == 200, data.text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers(extreme: Path, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """0; 1: the audit has found something; 2: refused, in one line."""
    code = main([*command.split(), "--set", f"storage.root={extreme}"])
    out, err = capfd.readouterr()
    assert (code in (0, 1, 2), "unexpected" in err, out == "" and err == "") == (True, False, False), err
    assert code != 2 or err.count("\n") == 1
