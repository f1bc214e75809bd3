"""What producers may say about when a message is delivered, and what RocketMQ's broker makes of the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.messages.delay import LEVELS, PROPERTIES, Delay, delay_of, too_late
from checkback.messages.durations import LONGEST

_MS_MAX = 253_402_300_799_999
_LONGEST_MS = round(LONGEST.total_seconds() * 1000)


@given(st.integers(-(2**63), 2**63))
def test_a_level_is_one_of_18(level: int) -> None:
    """As RocketMQ has them: more is the last level, 0 and less none."""
    found = delay_of({"delay_level": level}, {})
    assert found == (Delay(LEVELS[min(level, 18) - 1]) if level > 0 else Delay())


@given(st.integers(0, 10**20), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_is_that_of_the_settings(number: int, unit: str) -> None:
    """One rule for both: the same texts, the same limit."""
    ms = number * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    text = f"{number}{unit}"
    if ms <= _LONGEST_MS and len(str(number)) <= 18:
        assert delay_of({"delay": text}, {}) == delay_of({"delay": f"{ms}ms"}, {}) == Delay(ms or None)
    else:
        with pytest.raises(ValueError, match=rf"^delay: '{text}' is (?:not a duration|longer than 36500d)"):
            delay_of({"delay": text}, {})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"delay": "\uff11s"}, "delay: '\uff11s' is not a duration"),
    ({"delay": "-1s"}, "delay: '-1s' is not a duration"),
    ({"delay": f"{_LONGEST_MS + 1}ms"}, "delay: '3153600000001ms' is longer than 36500d"),
    ({"deliver_at": _MS_MAX + 1}, "deliver_at: over 253402300799999"),
    ({"delay": "1ms", "delay_level": 1}, "delay: delay_level is there too, only one"),
    ({"delay": "1ms", "deliver_at": 1}, "deliver_at: delay is there too, only one"),
]


@pytest.mark.parametrize(("fields", "why"), WRONG)
def test_what_is_wrong_is_told(fields: dict[str, Any], why: str) -> None:
    """With the field's name first."""
    with pytest.raises(ValueError, match="^" + why):
        delay_of(fields, {})


READ: list[tuple[dict[str, Any], dict[str, str], Delay]] = [
    ({}, {}, Delay()),
    ({}, {"DELAY": "3"}, Delay(10_000)),
    ({}, {"DELAY": "19"}, Delay(7_200_000)),
    ({}, {"DELAY": "0", "TIMER_DELAY_MS": "7"}, Delay(7)),
    ({}, {"DELAY": "1", "TIMER_DELAY_MS": "7"}, Delay(1_000)),
    ({}, {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "7"}, Delay(2_000)),
    ({}, {"TIMER_DELAY_MS": "7", "TIMER_DELIVER_MS": "99"}, Delay(7)),
    ({}, {"TIMER_DELIVER_MS": "99"}, Delay(deliver_at=99)),
    ({}, {"TIMER_DELIVER_MS": "-1"}, Delay(deliver_at=0)),
    ({}, {"TIMER_DELAY_SEC": "+5"}, Delay(5_000)),
    ({"delay": "0s"}, {"DELAY": "3"}, Delay()),
    ({"deliver_at": 5}, {"DELAY": "3", "TIMER_DELAY_MS": "x"}, Delay(deliver_at=5)),
]


@pytest.mark.parametrize(("fields", "properties", "found"), READ)
def test_fields_come_before_properties(fields: dict[str, Any], properties: dict[str, str], found: Delay) -> None:
    """The broker looks at DELAY first, then at the timers in its order; a field wins over all of them."""
    assert delay_of(fields, properties) == found


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("text", ["", " 1", "1.0", "0x1", "\uff11", "1_0", "9" * 20])
def test_a_property_that_is_no_number_is_refused(name: str, text: str) -> None:
    """It is not taken as no delay: the message would come too early."""
    with pytest.raises(ValueError, match=f"^{name}: not a whole number"):
        delay_of({}, {name: text})


@given(st.integers(0, _MS_MAX), st.integers(0, _MS_MAX), st.integers(1, _LONGEST_MS))
def test_too_late_is_what_is_over_delay_max(ms: int, now: int, most: int) -> None:
    """A delay over it, and a time that is further away; the limit itself is allowed."""
    assert (too_late(ms, None, now, most) is not None) == (ms > most)
    assert (too_late(None, ms, now, most) is not None) == (ms - now > most)
    assert too_late(None, None, now, most) is None
