"""Who looks at the pages: without a browser, by requests alone."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

from starlette.testclient import TestClient

from checkback.dashboard.access import Access
from checkback.dashboard.app import create_app
from checkback.dashboard.pages import Pages
from checkback.settings import Settings
from dashboard.hostile import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

#: what a browser sends with the dashboard's own forms
SAME = {"origin": "http://localhost:8902"}


def client(root: Path, token: str | None = None, kind: type[Pages] = Pages, **dashboard: object) -> TestClient:
    about = {"storage": {"root": str(root)}, "dashboard": dashboard | ({"token": token} if token else {})}
    pages = kind(Settings.model_validate(about), Access(token, lambda: 1_000_000.0))
    return TestClient(create_app(pages), base_url="http://localhost:8902")


def signed_in(root: Path) -> TestClient:
    browser = client(root, TOKEN, actions=True)
    browser.post("/login", data={"token": TOKEN})
    return browser


def form_of(page: str, **fields: str) -> dict[str, str]:
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert csrf is not None
    return {"csrf": csrf[1], "actor": "ann", "reason": "paid by hand"} | fields


def as_sent(page: str) -> dict[str, str]:
    """The hidden fields of a page's action as a browser sends them: it alters lines and NUL characters."""
    (form,) = re.findall(r'<form class="act"[^>]*>.*?</form>', page, re.DOTALL)
    sent = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        read = unescape(re.sub("\r\n?", "\n", value).replace("\0", "\ufffd"))
        sent[name] = re.sub("\r\n?|\n", "\r\n", read)
    return sent
