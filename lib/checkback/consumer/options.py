"""The options of a PushConsumer, checked. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkback.consumer.retry import MAX_RECONSUME_TIMES, RETRY_LEVELS, suspend_levels
from checkback.errors import SettingsError
from checkback.messages.limits import INT_MAX

#: the longest session, commit interval or retry level (s): 30 days
_LONGEST_S = 30 * 24 * 3600.0
#: the shortest session (s): a member must manage some commits in it
_SESSION_S = 0.1


@dataclass(frozen=True)
class ConsumerOptions:
    """See `PushConsumer`; times are in s. Raises SettingsError if one is out of range."""

    threads: int
    max_batch_size: int
    orderly: bool
    max_reconsume_times: int | None
    retry_levels: tuple[float, ...] | None
    suspend: float
    session_timeout: float
    commit_interval: float

    def __post_init__(self) -> None:
        _integer("threads", self.threads, 1)
        _integer("max_batch_size", self.max_batch_size, 1)
        if self.max_reconsume_times is not None:
            _integer("max_reconsume_times", self.max_reconsume_times, -1)
        if self.retry_levels is not None and not self.retry_levels:
            raise SettingsError("has no level", "retry_levels", "give at least one pause in seconds")
        for level in self.retry_levels or ():
            _seconds("retry_levels", level, 0.0)
        _seconds("suspend", self.suspend, 0.0)
        _seconds("session_timeout", self.session_timeout, _SESSION_S)
        _seconds("commit_interval", self.commit_interval, 0.001)

    @property
    def most_retries(self) -> int:
        """Retries before a message is a dead letter; None and -1: 16, in order no limit (DefaultMQPushConsumer)."""
        if self.max_reconsume_times is not None and self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return INT_MAX if self.orderly else MAX_RECONSUME_TIMES

    @property
    def levels_ms(self) -> tuple[int, ...]:
        """Pauses before the retries (ms)."""
        if self.orderly:
            return suspend_levels(round(1000 * self.suspend))
        if self.retry_levels is None:
            return RETRY_LEVELS
        return tuple(round(1000 * level) for level in self.retry_levels)


def _integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError("is not a whole number in range", name, f"give {least} or more")


def _seconds(name: str, value: object, least: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= _LONGEST_S:  # type: ignore[arg-type, operator]
        raise SettingsError("is not a time in range", name, f"give {least:g} to {_LONGEST_S:g} seconds")
