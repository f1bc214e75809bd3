"""Signatures of clients: which groups they stand for, and for how long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from checkback.gateway.rocketmq.authentication import Caller, Credentials
from checkback.gateway.rocketmq.codes import Code, Refusal
from checkback.rotated import read_again
from checkback.settings import Producer
from gateway.rocketmq.calls import TOKEN, signed

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
OTHER = "fedcba9876543210"


def credentials(**producers: dict[str, str]) -> Credentials:
    groups = {name: Producer.model_validate(given) for name, given in producers.items()}
    return Credentials(groups, clock=lambda: NOW)


TWO = {
    "orders": {"token": TOKEN},
    "payments": {"token": TOKEN, "access_key": "shop"},
    "refunds": {"token": TOKEN, "access_key": "shop"},
    "stock": {"token": OTHER, "access_key": "shop"},
}


@pytest.mark.parametrize(
    ("access_key", "secret", "groups"),
    [
        ("orders", TOKEN, {"orders"}),
        ("shop", TOKEN, {"payments", "refunds"}),
        ("shop", OTHER, {"stock"}),
    ],
)
def test_access_key_and_secret_stand_for_groups(access_key: str, secret: str, groups: set[str]) -> None:
    caller = credentials(**TWO).caller(signed(access_key, secret, NOW))
    assert isinstance(caller, Caller)
    assert set(caller.groups or ()) == groups


@pytest.mark.parametrize(("access_key", "secret"), [("orders", OTHER), ("payments", TOKEN), ("", ""), ("nobody", "x")])
def test_others_are_refused(access_key: str, secret: str) -> None:
    caller = credentials(**TWO).caller(signed(access_key, secret, NOW))
    assert isinstance(caller, Refusal)
    assert caller.code == Code.UNAUTHORIZED


def test_signature_in_upper_case() -> None:
    headers = signed("orders", TOKEN, NOW)
    scheme, _, signature = headers["authorization"].rpartition("=")
    headers["authorization"] = f"{scheme}={signature.upper()}"
    assert isinstance(credentials(**TWO).caller(headers), Caller)


@pytest.mark.parametrize(("age_s", "taken"), [(899, True), (901, False), (-899, True), (-901, False)])
def test_age_of_a_signature(monkeypatch: pytest.MonkeyPatch, age_s: float, taken: bool) -> None:
    """Unlike RocketMQ, which takes one of 2020."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    caller = credentials(**TWO).caller(signed("orders", TOKEN, NOW - age_s))
    assert isinstance(caller, Caller) == taken


def test_local_time_of_the_python_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It signs its local time as if it were UTC."""
    try:
        monkeypatch.setenv("TZ", "XXX-8")
        time.tzset()
        assert isinstance(credentials(**TWO).caller(signed("orders", TOKEN, NOW + 8 * 3600)), Caller)
        assert isinstance(credentials(**TWO).caller(signed("orders", TOKEN, NOW)), Caller)
        assert isinstance(credentials(**TWO).caller(signed("orders", TOKEN, NOW + 4 * 3600)), Refusal)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_signature_holds_as_long_as_its_token(tmp_path: Path) -> None:
    """That of a stream, which was taken when it was new."""
    file, now = tmp_path / "token", [NOW]
    file.write_text(f"{TOKEN} {OTHER}")
    known = Credentials({"orders": Producer.model_validate({"token": f"file:{file}"})}, clock=lambda: now[0])
    old, new = (known.caller(signed("orders", token, NOW)) for token in (TOKEN, OTHER))
    assert isinstance(old, Caller)
    assert isinstance(new, Caller)
    keys, now[0] = known.keys, NOW + 86_400
    assert (known.still_hold(old), known.still_hold(new), known.keys is keys) == (True, True, True)
    file.write_text(OTHER)
    read_again()
    assert (known.still_hold(old), known.still_hold(new), known.keys is keys) == (False, True, False)


@pytest.mark.parametrize("date_time", ["", "yesterday", "2020", "20270115T080000Z\n", "9" * 5000])
def test_time_that_is_none(date_time: str) -> None:
    headers = signed("orders", TOKEN, NOW) | {"x-mq-date-time": date_time}
    assert isinstance(credentials(**TWO).caller(headers), Refusal)


def test_without_tokens_nobody_needs_a_signature() -> None:
    """Python's client sends one of empty credentials."""
    caller = credentials(orders={}).caller(signed("", "") | {"x-mq-language": "PYTHON"})
    assert caller[:4] == ("client-1", None, "PYTHON", "")


def test_client_without_an_id() -> None:
    caller = credentials().caller({})
    assert isinstance(caller, Refusal)
    assert caller.code == Code.CLIENT_ID_REQUIRED
