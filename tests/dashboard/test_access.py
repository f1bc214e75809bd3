"""Who may see the dashboard: sessions, forms, hosts."""

from __future__ import annotations

import pytest

from checkback.dashboard.access import VALID_S, Access, is_foreign, is_same_origin
from checkback.urls import host_of

TOKEN = "t" * 32


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_valid_for_its_time_and_of_its_token_only() -> None:
    clock = Clock()
    access = Access(TOKEN, clock)
    cookie = access.session()
    assert access.is_session(cookie)
    assert access.session() != cookie
    assert not Access("u" * 32, clock).is_session(cookie)
    until, rest = cookie.split(".", 1)
    for forged in (
        "",
        "x",
        f"{int(until) + 1}.{rest}",
        cookie[:-1],
        f"{cookie}0",
        "99999999999..",
        "\u0661.x.y",
        "a.b.\xe9",
        "\ud800",
    ):
        assert not access.is_session(forged)
    clock.now += VALID_S
    assert not access.is_session(cookie)


def test_a_form_belongs_to_its_session() -> None:
    access = Access(TOKEN, Clock())
    one, other = access.session(), access.session()
    assert access.is_csrf(one, access.csrf(one))
    for given in ("", access.csrf(other), "é", "\ud800"):
        assert not access.is_csrf(one, given)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({"authorization": f"Bearer {TOKEN}"}, True),
        ({"authorization": f"bearer  {TOKEN} "}, True),
        ({"authorization": f"Basic {TOKEN}"}, False),
        ({"authorization": f"Bearer {TOKEN}x"}, False),
        ({"host": "localhost"}, False),
    ],
)
def test_with_a_token_it_is_needed(headers: dict[str, str], allowed: bool) -> None:
    assert Access(TOKEN, Clock()).allowed(headers, "") is allowed


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8902", True),
        ("127.0.0.1", True),
        ("[::1]:8902", True),
        ("evil.example", False),
        ("", False),
        ("localhost.evil.example", False),
        ("[", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_without_a_token_only_requests_for_this_machine_are_answered(host: str, allowed: bool) -> None:
    assert Access(None, Clock()).allowed({"host": host}, "") is allowed


_LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
_IMAGE = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
_FRAME = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}


@pytest.mark.parametrize(
    ("headers", "costly", "foreign"),
    [
        ({}, True, False),  # a program, or a browser of before 2023
        ({"sec-fetch-site": "none"} | _LINK, True, False),
        ({"sec-fetch-site": "same-origin"} | _IMAGE, True, False),
        ({"sec-fetch-site": "cross-site"} | _LINK, False, False),
        ({"sec-fetch-site": "cross-site"} | _LINK, True, True),
        ({"sec-fetch-site": "same-site"} | _LINK, True, True),  # another port of this machine
        ({"sec-fetch-site": "same-site"} | _IMAGE, False, True),
        ({"sec-fetch-site": "cross-site"} | _FRAME, False, True),
        ({"sec-fetch-site": "cross-site", "sec-purpose": "prefetch"} | _LINK, False, True),
        ({"sec-fetch-site": "cross-site"}, False, True),
        ({"origin": "http://evil.example"}, False, True),
        ({"origin": "http://localhost:8902"}, True, False),
    ],
)
def test_what_a_page_of_another_site_asks_for(headers: dict[str, str], costly: bool, foreign: bool) -> None:
    assert is_foreign("GET", headers | {"host": "localhost:8902"}, costly) is foreign


def test_no_form_of_another_site_is_answered() -> None:
    assert is_foreign("POST", {"sec-fetch-site": "cross-site"} | _LINK, costly=False)


def test_hosts_and_origins() -> None:
    assert host_of("EXAMPLE.org:80") == "example.org"
    assert is_same_origin("http://localhost:8902", "localhost:8902")
    for origin in (None, "null", "http://evil.example", "http://localhost:1", "http://[", "http://localhost:8902\xe9"):
        assert not is_same_origin(origin, "localhost:8902")
