"""Where a listener failed: the line of its own code, whatever library has raised the error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from types import FunctionType
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from checkback.consumer.listener_calls import outcome_of
from checkback.errors import CheckbackError, error_summary
from checkback.messages.names import is_group


def _sql() -> None:
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("SELECT :amount"), {"sum": 42})  # here


def _json() -> None:
    json.loads("{")  # here


def _decimal() -> None:
    Decimal("forty")  # here


def _checkback() -> None:
    is_group(None)  # type: ignore[arg-type]  # here


def _own() -> None:
    raise ValueError  # here


@pytest.mark.parametrize("listener", [_sql, _json, _decimal, _checkback, _own])
def test_line_is_the_listeners_own(listener: Callable[[], Any]) -> None:
    line = listener.__code__.co_firstlineno + (2 if listener is _sql else 1)
    told = outcome_of(lambda _: listener(), None)
    assert told is not None
    assert re.fullmatch(rf"\w+ at test_error_summary\.py:{line}", told)


@pytest.mark.parametrize(
    ("called", "raises", "told"),
    [
        ("/srv/credits.py", "/usr/lib/site-packages/sqlalchemy/compiler.py", "credits.py"),
        ("/v/site-packages/credits/app.py", "/v/site-packages/sqlalchemy/compiler.py", "app.py"),
        ("/v/site-packages/credits/app.py", "/v/site-packages/credits/books.py", "books.py"),
        ("/usr/lib/python3/dist-packages/tenacity/retry.py", "/srv/credits.py", "credits.py"),
        ("<string>", "/v/site-packages/sqlalchemy/compiler.py", "<string>"),
        ("C:\\srv\\credits.py", "C:\\v\\site-packages\\sqlalchemy\\compiler.py", "credits.py"),
    ],
)
def test_installed_service_and_wrapped_listener(called: str, raises: str, told: str) -> None:
    """A service in a package of its own has its line; so has a listener that a library's decorator wraps."""
    inner = FunctionType(_own.__code__.replace(co_filename=raises), {})
    outer = FunctionType(_call.__code__.replace(co_filename=called), {"inner": inner})
    assert re.fullmatch(rf"ValueError at {re.escape(told)}:\d+", _summary(outer))


def _call() -> None:
    inner()  # type: ignore[name-defined]  # noqa: F821 - given as a global


def _summary(listener: Callable[[], None]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its traceback is the point
        listener()
    first = caught.value.__traceback__
    assert first is not None
    return error_summary(caught.value.with_traceback(first.tb_next))  # without this file


def test_error_of_checkback_alone_has_its_innermost_line() -> None:
    assert error_summary(CheckbackError("what")) == "CheckbackError"
    with pytest.raises(TypeError) as caught:
        is_group(None)  # type: ignore[arg-type]
    assert caught.value.__traceback__ is not None
    assert error_summary(caught.value.with_traceback(caught.value.__traceback__.tb_next)).startswith(
        "TypeError at names.py:"
    )
