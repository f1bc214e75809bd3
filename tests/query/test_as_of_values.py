"""A moment: what is taken, and what is refused."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import SettingsError
from checkback.query.versions.as_of import parse_as_of


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, us: int = 0) -> datetime:
    """A time, UTC."""
    return datetime(year, month, day, hour, minute, second, us, tzinfo=timezone.utc)


_NOW = datetime(2026, 11, 21, 14, 5, 30, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T15:00", utc(2026, 11, 20, 15)),
        (" 2026-11-20 15:00:01.250 ", utc(2026, 11, 20, 15, 0, 1, 250_000)),
        ("2026-11-20T15:00Z", utc(2026, 11, 20, 15)),
        ("2026-11-20T15:00+01:00", utc(2026, 11, 20, 14)),
        ("14:00", utc(2026, 11, 21, 14)),
        ("14:06", utc(2026, 11, 21, 14, 6)),  # another machine's clock
        ("13:59:59", utc(2026, 11, 21, 13, 59, 59)),
        ("10m ago", utc(2026, 11, 21, 13, 55, 30)),
        ("2d ago", utc(2026, 11, 19, 14, 5, 30)),
        ("0001-01-01T00:00", utc(1, 1, 1)),
    ],
)
def test_text_is_a_time_in_utc(text: str, moment: datetime) -> None:
    assert parse_as_of(text, _NOW) == moment


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-11-20", "25:00", "2026-13-01T00:00", "10 m ago", "99999999d ago", "15", "1732200000"],
)
def test_what_is_not_a_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is not a time; write 2026-11-20T15:00 .* 10m ago") as error:
        parse_as_of(text, _NOW)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("23:50", "for the day before write 2026-11-20T23:50"),
        ("2026-11-22T10:00", "ask for a time that is over"),
        ("2026-11-21T14:10-01:00", "ask for a time that is over"),
    ],
)
def test_a_time_in_the_future_is_refused(text: str, fix: str) -> None:
    """At ten past midnight 23:50 means yesterday; what is now is no answer to it."""
    with pytest.raises(SettingsError, match=f"is in the future: it is 14:05 UTC; {fix}"):
        parse_as_of(text, _NOW)


@given(st.integers(0, 2**52), st.integers(-14, 14))
def test_datetime_means_the_same_in_every_form(us: int, hours: int) -> None:
    """One with a zone is that instant; a text without one is UTC."""
    moment = utc(1970, 1, 2) + timedelta(microseconds=us)
    there = moment.astimezone(timezone(timedelta(hours=hours)))
    text = parse_as_of(there.isoformat(), utc(9999, 1, 1))
    assert parse_as_of(there) == text == moment
    assert parse_as_of(moment.replace(tzinfo=None).isoformat(), utc(9999, 1, 1)) == moment


@given(st.datetimes())
def test_a_datetime_without_a_time_zone_is_refused(naive: datetime) -> None:
    """UTC or the machine's own: nobody knows, and a wrong guess is hours off."""
    for of in (naive, pd.Timestamp("2026-11-20T15:00")):
        with pytest.raises(SettingsError) as error:
            parse_as_of(of, name="since")
        assert str(error.value) == f"since: '{of}' has no time zone; give it a time zone: datetime.now(timezone.utc)"
    moment = pd.Timestamp("2026-11-20T15:00", tz="Asia/Shanghai")
    assert parse_as_of(moment) == utc(2026, 11, 20, 7)


@pytest.mark.parametrize("what", [date(2026, 11, 20), 1_732_200_000, np.datetime64("2026-11-20T15:00")])
def test_what_is_neither_text_nor_datetime_is_refused(what: Any) -> None:
    with pytest.raises(SettingsError, match=r"as_of: .* is not a time; give it a time zone"):
        parse_as_of(what)


def test_no_moment_is_now() -> None:
    assert parse_as_of(None) is None
