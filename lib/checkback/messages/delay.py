"""When a message is to be delivered, as producers say it: RocketMQ's delay levels and timers. Pure.

The rules are those of HookUtils.handleScheduleMessage and transformTimerMessage (broker) and of
ScheduleMessageService.parseDelayLevel and MessageStoreConfig.messageDelayLevel (store).
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.messages.durations import LONGEST, format_duration, parse_duration
from checkback.messages.limits import MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MS = timedelta(milliseconds=1)
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
#: ms by level, from level 1 on: MessageStoreConfig.messageDelayLevel
LEVELS = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)
#: MessageConst.PROPERTY_DELAY_TIME_LEVEL, and the PROPERTY_TIMER_ ones in the order in which the broker looks
LEVEL_PROPERTY = "DELAY"
TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
PROPERTIES = (LEVEL_PROPERTY, *TIMER_PROPERTIES)
FIELDS = ("delay_level", "delay", "deliver_at")
_LONG = re.compile(r"[+-]?[0-9]{1,19}")


class Delay(NamedTuple):
    """``delay_ms``: from COMMIT to delivery; ``deliver_at``: ms since the epoch. Both None = no delay."""

    delay_ms: int | None = None
    deliver_at: int | None = None


NONE = Delay()


def delay_of(fields: Mapping[str, Any], properties: Mapping[str, str]) -> Delay:
    """The delay in a message's fields, or else in its RocketMQ properties.

    ``delay_level``: from 1; over 18 is 18, 0 and less none. ``delay``: text such as ``30s``. ``deliver_at``: ms
    since the epoch. Raises ValueError, with the field's name and what is wrong, also if more than one is stated.
    """
    stated = [name for name in FIELDS if fields.get(name) is not None]
    if len(stated) > 1:
        raise ValueError(f"{stated[1]}: {stated[0]} is there too, only one of {', '.join(FIELDS)} may be")
    if stated:
        name = stated[0]
        return _OF_FIELD[name](name, fields[name])
    if LEVEL_PROPERTY in properties:
        found = _level(LEVEL_PROPERTY, _parsed(LEVEL_PROPERTY, properties[LEVEL_PROPERTY]))
        if found.delay_ms is not None:
            return found
    for name in TIMER_PROPERTIES:
        if name in properties:
            number = _parsed(name, properties[name])
            if name == "TIMER_DELIVER_MS":
                return _at(name, number)
            return _after(name, number * _SECOND if name == "TIMER_DELAY_SEC" else number)
    return NONE


def too_late(delay_ms: int | None, deliver_at: int | None, now: int, most: int) -> str | None:
    """Why a message's delay is too long; None = it is not. ``now``: ms since the epoch; ``most``: delay.max in ms."""
    if delay_ms is not None and delay_ms > most:
        return f"delay: {delay_ms} ms is longer than delay.max, {most} ms"
    if deliver_at is not None and deliver_at - now > most:
        return f"deliver_at: {deliver_at} is later than delay.max, {most} ms, from now"
    return None


def _parsed(name: str, text: str) -> int:
    """A property's number, as Long.parseLong takes it."""
    if not text.isascii() or not _LONG.fullmatch(text):
        raise ValueError(f"{name}: not a whole number")
    return int(text)


def _level(_: str, level: int) -> Delay:
    return Delay(delay_ms=LEVELS[min(level, len(LEVELS)) - 1]) if level > 0 else NONE


def _duration(name: str, text: str) -> Delay:
    try:
        return _after(name, parse_duration(text) // _MS)
    except ValueError as error:  # the text has few characters, by the field's pattern
        raise ValueError(f"{name}: {error}") from None


def _after(name: str, ms: int) -> Delay:
    if ms > LONGEST // _MS:
        raise ValueError(f"{name}: longer than {format_duration(LONGEST)}")
    return Delay(delay_ms=ms) if ms > 0 else NONE


def _at(name: str, ms: int) -> Delay:
    if ms > MS_MAX:
        raise ValueError(f"{name}: over {MS_MAX}")
    return Delay(deliver_at=max(ms, 0))


_OF_FIELD: Mapping[str, Callable[[str, Any], Delay]] = {"delay_level": _level, "delay": _duration, "deliver_at": _at}
