"""Answers beside topics' tables that cannot be read: one that is damaged holds up nothing that the others tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from checkback.errors import SettingsError
from checkback.storage.own_failure import own_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Answer = TypeVar("_Answer")


def beside_unreadable(
    topics: Sequence[str],
    answer: Callable[[Mapping[str, str]], _Answer],
    look: Callable[[Sequence[str]], object],
) -> tuple[_Answer, Mapping[str, str]]:
    """``answer`` without the topics' tables that cannot be read, which it is given, by name with the reason; and these.

    ``look`` reads some of the topics' tables, also none; it is called only if the answer fails. Raises what the answer
    raises without them.
    """
    try:
        return answer({}), {}
    except SettingsError:
        raise
    except Exception as error:
        own_failure(error)
        look([])  # raises if nothing can be read
        faults = _faults(topics, look)
        if not faults:
            raise
    return answer(faults), faults


def _faults(topics: Sequence[str], look: Callable[[Sequence[str]], object]) -> dict[str, str]:
    """Few of many cannot be read: they are looked at half by half."""
    try:
        look(topics)
    except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
        fault = own_failure(error)
        if len(topics) <= 1:
            return dict.fromkeys(topics, fault)
        middle = len(topics) // 2
        return _faults(topics[:middle], look) | _faults(topics[middle:], look)
    return {}
