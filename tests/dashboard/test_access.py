"""Who may see the dashboard: sessions, forms, hosts."""

from __future__ import annotations

import pytest

from checkback.dashboard.access import VALID_S, Access, host_of, is_same_origin

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


def test_hosts_and_origins() -> None:
    assert host_of("EXAMPLE.org:80") == "example.org"
    assert is_same_origin("http://localhost:8902", "localhost:8902")
    for origin in (None, "null", "http://evil.example", "http://localhost:1", "http://[", "http://localhost:8902\xe9"):
        assert not is_same_origin(origin, "localhost:8902")
