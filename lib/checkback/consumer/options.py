"""The options of a PushConsumer, checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from checkback.consumer.retry_or_dead_letter import MAX_RECONSUME_TIMES, RETRY_LEVELS, suspend_levels
from checkback.errors import SettingsError
from checkback.messages.durations import seconds_of
from checkback.messages.limits import INT_MAX

#: the longest session, commit interval or retry level (s): 30 days
_LONGEST_S = 30 * 24 * 3600.0
#: the shortest session (s): a member must manage some commits in it
_SESSION_S = 0.1


@dataclass(frozen=True)
class ConsumerOptions:
    """See `PushConsumer`. Raises SettingsError if one is out of range, TypeError for a duration without a unit."""

    threads: int
    max_batch_size: int
    orderly: bool
    max_reconsume_times: int | None
    retry_levels: tuple[timedelta, ...] | None
    suspend: timedelta
    session_timeout: timedelta
    commit_interval: timedelta

    def __post_init__(self) -> None:
        _integer("threads", self.threads, 1)
        _integer("max_batch_size", self.max_batch_size, 1)
        if self.max_reconsume_times is not None:
            _integer("max_reconsume_times", self.max_reconsume_times, -1)
        if self.retry_levels is not None and not self.retry_levels:
            raise SettingsError("has no level", "retry_levels", "give at least one pause")
        for level in self.retry_levels or ():
            _within("a level of retry_levels", level, 0.0)
        _within("suspend", self.suspend, 0.0)
        _within("session_timeout", self.session_timeout, _SESSION_S)
        _within("commit_interval", self.commit_interval, 0.001)

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
            return suspend_levels(_ms(self.suspend))
        if self.retry_levels is None:
            return RETRY_LEVELS
        return tuple(_ms(level) for level in self.retry_levels)


def _integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError("is not a whole number in range", name, f"give {least} or more")


def _within(name: str, value: timedelta, least: float) -> None:
    if not least <= seconds_of(name, value) <= _LONGEST_S:
        raise SettingsError("is not a time in range", name, f"give {least:g} to {_LONGEST_S:g} seconds")


def _ms(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
