"""Half queues that have an owner: a door that alone gives out their offsets. `half` itself tells whose a queue is.

A second writer of such a queue would take the offset of a message that has been acknowledged: `reconcile` keeps the
first that landed. Each owner commits under an application of Delta's transaction identifiers of its own for the queue:
``gateway/<queue>`` (`gateway.tables`), ``operator/<queue>`` (`operate.resume`), ``kafka/<queue>`` (`landing`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from checkback.errors import SettingsError
from checkback.storage.delta_log import DeltaLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.storage.tables import Tables

#: A gateway's versions begin with its epoch, from 1 on, in these bits. Less is the mark of another writer.
_EPOCH = 32


class QueueOwner(Enum):
    """Who writes half messages: the prefix of its applications, and how it is told of."""

    GATEWAY = "gateway"
    OPERATOR = "operator"
    KAFKA = "kafka"
    FILES = "files"

    @property
    def whose(self) -> str:
        """A queue of it, in a sentence."""
        return {
            QueueOwner.GATEWAY: "the gateway's",
            QueueOwner.OPERATOR: "the operator's",
            QueueOwner.KAFKA: "of a topic of Kafka",
        }[self]


class Queues:
    """The queues into which a door lands, looked at before each write. ``operator``: the one of operator.queue.

    ``mark``: what stands for the topic whose queues become Kafka's.
    ``kind``: of half messages, or of ops: those for a topic's queues may come by files, and the other way round.
    """

    def __init__(
        self, tables: Tables, kind: Literal["half", "op"], door: QueueOwner, operator: int, mark: int = 1
    ) -> None:
        self._tables = tables
        self._kind = kind
        self._door = door
        self._operator = operator
        self._mark = mark
        self._log: DeltaLog | None = None
        self._queues: frozenset[int] = frozenset()
        self._found: dict[str, int | None] = {}

    def refused(self, queues: Iterable[int]) -> dict[int, str]:
        """Why, for each of the queues that are another door's. Raises StorageError."""
        self._queues = frozenset(queues)
        self._found = self._look()
        owners = owners_of(self._found)
        if self._operator in self._queues:
            owners[self._operator] = QueueOwner.OPERATOR
        mine = {self._door} if self._kind == "half" else {self._door, QueueOwner.KAFKA}
        return {
            queue: f"queue_id: {queue} is {owner.whose}, whose messages come by no other door"
            for queue, owner in owners.items()
            if owner not in mine
        }

    def fence(self) -> tuple[dict[str, int | None], dict[str, int]]:
        """What a commit of half messages expects and writes beside its own version, see Tables.append_fenced.

        A gateway that claims one of the queues meanwhile makes the commit fail; for one that claims it later nothing
        has changed. The queues of a topic of Kafka become Kafka's.
        """
        owned = owners_of(self._found)
        gateways = [_app(QueueOwner.GATEWAY, queue) for queue in self._queues if queue not in owned]
        marks = {app: self._found.get(app) or 0 for app in gateways}
        if self._door is QueueOwner.KAFKA:
            marks |= {
                _app(QueueOwner.KAFKA, queue): self._mark
                for queue in self._queues
                if owned.get(queue, self._door) is self._door
            }
        return {app: self._found.get(app) for app in gateways}, marks if self._log is not None else {}

    def changed(self) -> bool:
        """Has one of the queues another owner than when they were last looked at?"""
        return self._look() != self._found

    def _look(self) -> dict[str, int | None]:
        if self._log is None:
            self._log = log_of_half(self._tables)
        return versions_of(self._log, self._queues)


def versions_of(log: DeltaLog | None, queues: Iterable[int]) -> dict[str, int | None]:
    """The versions of all applications that may own one of the queues; of none, without a log. Raises StorageError."""
    if log is None:
        return {}
    return log.versions([_app(door, queue) for queue in queues for door in _OWNERS])


def owners_of(versions: Mapping[str, int | None]) -> dict[int, QueueOwner]:
    """The owner of each queue that has one."""
    found: dict[int, QueueOwner] = {}
    for app, version in versions.items():
        name, _, queue = app.partition("/")
        if version is not None and (name != QueueOwner.GATEWAY.value or version >> _EPOCH > 0):
            found.setdefault(int(queue), QueueOwner(name))
    return found


def refuse_foreign(log: DeltaLog | None, queues: Iterable[int], door: QueueOwner, key: str, mark: int = 1) -> None:
    """Raise SettingsError when one of the queues, which the setting ``key`` gives to the door, is another's already.

    Also when it is that of a topic with another ``mark``. Raises StorageError.
    """
    versions = versions_of(log, queues)
    for queue, owner in sorted(owners_of(versions).items(), key=lambda owned: owned[0]):
        if owner is not door:
            raise SettingsError(f"half queue {queue} is {owner.whose} already", key, "give each a queue of its own")
        found = versions[_app(owner, queue)]
        if owner is QueueOwner.KAFKA and found != mark and 1 not in (found, mark):
            what = f"half queue {queue} holds messages of another topic, or of this one before it was made anew"
            raise SettingsError(what, key, "choose queues that no topic has had")


def log_of_half(tables: Tables) -> DeltaLog | None:
    """The log of `half`, one of its own; None where Spark writes it, or when there is no such table."""
    place = tables.location("half")
    return DeltaLog("half", place, tables.sync) if tables.by_files and DeltaLog.exists(place) else None


_OWNERS = (QueueOwner.GATEWAY, QueueOwner.OPERATOR, QueueOwner.KAFKA)


def _app(door: QueueOwner, queue: int) -> str:
    return f"{door.value}/{queue}"
