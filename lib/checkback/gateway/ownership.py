"""Who owns a half queue of the gateway, as transaction versions of `half` and `op`. Pure.

Of each queue the tables have (docs/gateway.md, "One gateway a queue"):

- ``gateway/<queue>``: the fencing epoch, and a commit counter within it;
- ``gateway/<queue>/journal``: the id of the journal that it belongs to; 0 = none, messages go straight to the tables;
- ``gateway/<queue>/first``: the first offset that its owner may assign.

And of each journal:

- ``journal/<id>``: the position up to which the table has its records;
- ``journal/<id>/start``: the last start with it, in `half`: a number that grows, and differs between copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import FencedError, SettingsError, StorageError
from checkback.messages.limits import LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_EPOCH = 32
#: Offsets that are left to the journal from which a queue is taken over: more than it can hold messages, so that what
#: it has acknowledged can still land, at the offsets that were acknowledged.
GAP = 2**32


def epoch_app(queue_id: int) -> str:
    """The application whose version is the queue's epoch."""
    return f"gateway/{queue_id}"


def journal_app(queue_id: int) -> str:
    """The application whose version is the id of the queue's journal."""
    return f"gateway/{queue_id}/journal"


def first_app(queue_id: int) -> str:
    """The application whose version is the first offset that the owner may assign."""
    return f"gateway/{queue_id}/first"


def position_app(journal: int) -> str:
    """The application whose version is the journal's position in the table."""
    return f"journal/{journal}"


def start_app(journal: int) -> str:
    """The application whose version is the last start with the journal."""
    return f"journal/{journal}/start"


def is_outdated(started: int | None, last: int, following: int) -> bool:
    """Has another copy of a journal been started since?

    ``started``: the last start, by the table; ``last``, ``following``: by the journal, the last one, and one that
    may have been claimed. A table that was restored from a backup has an earlier one.
    """
    return (started or 0) > last and started != following


def next_start(started: int | None, last: int, following: int, chance: int) -> int:
    """The number of a start. ``chance``: 32 random bits, else two copies could have the same."""
    return ((max(started or 0, last, following) >> _EPOCH) + 1 << _EPOCH) + chance


def epoch_of(versions: Mapping[str, int | None], queues: Collection[int]) -> int:
    """The last epoch in which any of the queues was claimed; 0 = never."""
    return max((versions.get(epoch_app(queue)) or 0) >> _EPOCH for queue in queues)


def claimed(epoch: int, queues: Collection[int]) -> dict[str, int]:
    """The versions of queues that are claimed in this epoch."""
    return {epoch_app(queue): epoch << _EPOCH for queue in queues}


def owned_by_others(versions: Mapping[str, int | None], queues: Sequence[int], own: Collection[int]) -> list[int]:
    """The queues that belong to a journal which is none of one's ``own``."""
    return [queue for queue in queues if versions.get(journal_app(queue)) not in (None, 0, *own)]


def changed_hands(
    versions: Mapping[str, int | None],
    queues: Sequence[int],
    journal: int,
    drained: int,
    next_offset: Callable[[int], int],
) -> dict[str, int]:
    """The versions, besides the epochs, with which the queues belong to ``journal`` (0 = to none).

    ``drained``: the journal, emptied, to which they may have belonged. A queue of any other journal goes on GAP offsets
    further. ``next_offset``: after the last in the tables.

    Raises StorageError if too few offsets are left.
    """
    new = {}
    for queue in queues:
        if (versions.get(journal_app(queue)) or 0) != journal:
            new[journal_app(queue)] = journal
    for queue in owned_by_others(versions, queues, (journal, drained)):
        first = max(next_offset(queue), versions.get(first_app(queue)) or 0) + GAP
        if first > LONG_MAX - GAP:
            raise StorageError("too few offsets are left", f"queue {queue}", "give the gateway other gateway.queues")
        new[first_app(queue)] = first
    return new


def fenced(place: str) -> FencedError:
    """The error of a gateway whose queue another one has claimed."""
    return FencedError("another gateway has taken over a queue of this one", place, "let only one own each queue")


def outdated(place: str) -> StorageError:
    """The error of a start with a journal of which another copy has been started since."""
    what = "another copy of this journal has been started since: what this one has acknowledged cannot be committed"
    fix = "start the gateway with that one; moved away, what only this one has is lost"
    return StorageError(what, place, fix)


def belongs_to_another(queues: Sequence[int]) -> SettingsError:
    """The error of a start on queues of another journal."""
    named = ", ".join(map(str, queues))
    what = f"another gateway's journal may have messages for half queue {named} that are not in the tables yet"
    fix = (
        "start that gateway, or name its gateway.journal; or --take-over: what it has acknowledged and not yet "
        "committed lands when it is started again"
    )
    return SettingsError(what, "gateway.queues", fix)
