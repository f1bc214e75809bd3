"""How texts in the tables' rows begin that other parts go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: the error of an attempt of a check, in `check_answers`, that a circuit breaker prevented
NOT_TRIED = "not tried: "
#: the error of a check that cannot be sent: another writer's half message
NOT_UTF8 = "not asked: its transaction id, group or topic is not UTF-8"
#: shown in place of NOT_TRIED's errors, which differ with each check
BREAKER_OPEN = f"{NOT_TRIED}breaker open"
#: the error of a check, SKIPPED, that was requested again before its outcome was read
COUNTED = "overtaken by the outcome of the same check"
#: the reason of a dead letter's RESUME_DEAD_LETTER, in `operations`: this, the consumer group, and `CONSUMER_GROUP_END`
CONSUMER_GROUP, CONSUMER_GROUP_END = "consumer group ", ": "


def tried_error(errors: Iterable[str | None]) -> str | None:
    """The first error of a check's attempts that was made; None = all were prevented, or there is none."""
    return next((error for error in errors if error is not None and not error.startswith(NOT_TRIED)), None)
