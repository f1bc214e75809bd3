"""Ownership of half queues: an owner is the only ingestion path that assigns a queue's offsets.

A second writer could reuse the offset of an acknowledged message, and `reconcile` keeps the first one that landed.
Ownership is recorded in `half` itself: each owner commits under a Delta transaction identifier for the queue,
``gateway/<queue>`` (`gateway.appender`), ``operator/<queue>`` (`operate.resume`), ``kafka/<queue>`` or
``table/<queue>`` (`landing`).
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import TYPE_CHECKING, Literal

from checkback.errors import SettingsError
from checkback.storage.horizon import floor_app, floors_of
from checkback.storage.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from checkback.storage.tables import Tables

#: Shift of the epoch (from 1 on) in a gateway's versions. Smaller versions were written by another owner's `fence`.
_EPOCH = 32
#: mark of a Kafka topic whose id is not known: it may be any topic
ANY_TOPIC = 1


def mark_of(source: str) -> int:
    """A positive number that identifies a Kafka topic or a source table by its id; never ANY_TOPIC."""
    return 2 + int.from_bytes(hashlib.sha256(source.encode()).digest()[:7], "big")


class QueueOwner(Enum):
    """An ingestion path that writes half messages. Its value is the prefix of its application ids."""

    GATEWAY = "gateway"
    OPERATOR = "operator"
    KAFKA = "kafka"
    TABLE = "table"
    FILES = "files"

    @property
    def whose(self) -> str:
        """How messages name a queue of this owner."""
        return {
            QueueOwner.GATEWAY: "the gateway's",
            QueueOwner.OPERATOR: "the operator's",
            QueueOwner.KAFKA: "of a topic of Kafka",
            QueueOwner.TABLE: "of an outbox table",
        }[self]


class OwnedQueues:
    """The queues an owner lands in, checked before each write. ``operator``: the queue of operator.queue.

    ``mark``: the version that identifies a Kafka topic, or an outbox table, as the owner of its queues.
    ``kind``: half messages, or ops: ops for a Kafka topic's queues may also come from files, and vice versa.
    """

    def __init__(
        self, tables: Tables, kind: Literal["half", "op"], owner: QueueOwner, operator: int, mark: int = ANY_TOPIC
    ) -> None:
        self._tables = tables
        self._kind = kind
        self._owner = owner
        self._operator = operator
        self._mark = mark
        self._log: DeltaLog | None = None
        self._queues: frozenset[int] = frozenset()
        self._found: dict[str, int | None] = {}
        self._floors: dict[int, int] = {}

    def refused(self, queues: Iterable[int]) -> dict[int, str]:
        """The reason for refusal, for each queue owned by another one. Raises StorageError."""
        self._queues = frozenset(queues)
        self._found, self._floors = self._look()
        owners = owners_of(self._found)
        if self._operator in self._queues:
            owners[self._operator] = QueueOwner.OPERATOR
        mine = {self._owner} if self._kind == "half" else {self._owner, QueueOwner.KAFKA}
        whose = {queue: owner.whose for queue, owner in owners.items() if owner not in mine}
        if self._kind == "half" and self._owner in _MARKED:  # a partition was added, or both begin
            others = (queue for queue, owner in owners.items() if owner is self._owner and self._is_of_another(queue))
            whose |= dict.fromkeys(others, _OF_ANOTHER[self._owner])
        return {
            queue: f"queue_id: {queue} is {owner}, whose messages come by no other door"
            for queue, owner in whose.items()
        }

    def _is_of_another(self, queue: int) -> bool:
        owner = self._owner if self._owner in _MARKED else QueueOwner.KAFKA
        return _differ(self._found.get(_app(owner, queue)), self._mark)

    def fence(self) -> tuple[dict[str, int | None], dict[str, int]]:
        """The expected versions and marks of a commit of half messages, see Tables.append.

        A gateway or a topic that claims one of the queues concurrently makes the commit fail, and so do another `land`
        that commits to one of them and retention that raises its floor; a gateway that claims it later is not affected.
        The queues of a Kafka topic become Kafka's, that of an outbox table the table's.
        """
        owned = owners_of(self._found)
        mine = [
            queue
            for queue in self._queues
            if owned.get(queue, self._owner) is self._owner and not self._is_of_another(queue)
        ]
        gateways = [_app(QueueOwner.GATEWAY, queue) for queue in mine]
        sources = [_app(owner, queue) for queue in mine for owner in _MARKED]
        # A counter of the commits, below a gateway's first epoch: 2^32 are a century of one a second.
        marks = {app: (self._found.get(app) or 0) + 1 for app in gateways}
        if self._owner in _MARKED:
            marks |= {app: self._marked(app) for app in (_app(self._owner, queue) for queue in mine)}
        expected = {app: self._found.get(app) for app in (*gateways, *sources)}
        expected |= {floor_app(queue): self._floors.get(queue) for queue in mine}
        return expected, marks if self._log is not None else {}

    def _marked(self, app: str) -> int:
        """The topic's mark; where that is not known, the one that is there."""
        return (self._found.get(app) or ANY_TOPIC) if self._mark == ANY_TOPIC else self._mark

    def commits(self, queue: int) -> int:
        """How many commits each `land` together had made to a queue at the last check."""
        return self._found.get(_app(QueueOwner.GATEWAY, queue)) or 0

    def changed(self) -> bool:
        """True if since the last check a queue's owner or floor changed, or another `land` committed to it."""
        return self._look() != (self._found, self._floors)

    def _look(self) -> tuple[dict[str, int | None], dict[int, int]]:
        if self._log is None:
            self._log = log_of_half(self._tables)
        found = versions_of(self._log, self._queues)
        return found, {} if self._log is None or self._kind == "op" else floors_of(self._log, self._queues)


def versions_of(log: DeltaLog | None, queues: Iterable[int]) -> dict[str, int | None]:
    """The versions of all applications that may own one of the queues; empty without a log. Raises StorageError."""
    if log is None:
        return {}
    return log.versions([_app(owner, queue) for queue in queues for owner in _OWNERS])


def owners_of(versions: Mapping[str, int | None]) -> dict[int, QueueOwner]:
    """The owner of each queue that has one."""
    found: dict[int, QueueOwner] = {}
    for app, version in versions.items():
        name, _, queue = app.partition("/")
        if version is not None and (name != QueueOwner.GATEWAY.value or version >> _EPOCH > 0):
            found.setdefault(int(queue), QueueOwner(name))
    return found


def operators_queues(log: DeltaLog) -> set[int]:
    """The queues that hold resumed messages. Raises StorageError."""
    return set(_versions_by_queue(log, QueueOwner.OPERATOR))


def refuse_foreign(
    log: DeltaLog | None, queues: Iterable[int], mine: QueueOwner, key: str, mark: int = ANY_TOPIC
) -> None:
    """Raise SettingsError if a queue that the setting ``key`` assigns to ``mine`` is owned by another one.

    Also if it is owned by a Kafka topic, or an outbox table, with a different ``mark``. Raises StorageError.
    """
    versions = versions_of(log, queues)
    for queue, owner in sorted(owners_of(versions).items(), key=lambda owned: owned[0]):
        if owner is not mine:
            raise SettingsError(f"half queue {queue} is {owner.whose} already", key, "give each a queue of its own")
        found = versions[_app(owner, queue)]
        if owner in _MARKED and _differ(found, mark):
            which = "topic" if owner is QueueOwner.KAFKA else "outbox table"
            what = f"half queue {queue} holds messages of another {which}, or of this one before it was created again"
            raise SettingsError(what, key, f"choose queues that no {which} has had")


def refuse_elsewhere(log: DeltaLog | None, queues: Collection[int], mark: int, topic: str) -> None:
    """Raise SettingsError if messages of this Kafka topic have landed in other half queues than these.

    They would land, and be published, once more. Raises StorageError.
    """
    if log is None or mark == ANY_TOPIC:
        return
    owned = _versions_by_queue(log, QueueOwner.KAFKA)
    others = [queue for queue, found in owned.items() if found == mark and queue not in queues]
    if others:
        what = f"messages of {topic} have landed in half queue {min(others)}: they would land again, in other queues"
        raise SettingsError(what, "kafka.queue_base", "set it to what it was then")


def _versions_by_queue(log: DeltaLog, owner: QueueOwner) -> dict[int, int]:
    found = ((app.partition("/"), version) for app, version in log.applications().items())
    return {int(queue): version for (name, _, queue), version in found if name == owner.value and queue.isdecimal()}


def _differ(found: int | None, mark: int) -> bool:
    """True if a queue with the mark ``found``, if any, is that of another topic."""
    return found not in {None, ANY_TOPIC, mark} and mark != ANY_TOPIC


def log_of_half(tables: Tables) -> DeltaLog | None:
    """A separate instance of the log of `half`; None if Spark writes it or the table does not exist."""
    place = tables.location("half")
    return tables.open_log("half") if tables.by_files and DeltaLog.exists(place) else None


_OWNERS = (QueueOwner.GATEWAY, QueueOwner.OPERATOR, QueueOwner.KAFKA, QueueOwner.TABLE)
#: those whose version in `half` identifies the source, and how messages name a queue of another one
_OF_ANOTHER = {QueueOwner.KAFKA: "of another topic of Kafka", QueueOwner.TABLE: "of another outbox table"}
_MARKED = tuple(_OF_ANOTHER)


def _app(owner: QueueOwner, queue: int) -> str:
    return f"{owner.value}/{queue}"
