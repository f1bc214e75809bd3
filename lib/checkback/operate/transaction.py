"""A half message's state in the tables, and the selection of the one an operator means. Pure: no tables, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.errors import SettingsError
from checkback.messages.durations import LONGEST
from checkback.messages.half import parse_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPERATOR = "operator"
_MS = timedelta(milliseconds=1)


class Place(NamedTuple):
    """(queue_id, queue_offset): the identity of a transaction; as a string ``0/12``."""

    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.queue_id}/{self.queue_offset}"

    @classmethod
    def parse(cls, text: str | None) -> Place | None:
        """The place in the string; None if it contains none."""
        place = parse_place(text or "")
        return None if place is None else cls(*place)


class Key(NamedTuple):
    """What names a half message: its offset may have been another's, before `half` was restored to an older state."""

    place: Place
    transaction_id: str
    producer_group: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Key:
        """That of a row of `half`, `discarded` or `operations`."""
        place = Place(row["queue_id"], row["queue_offset"])
        return cls(place, row["transaction_id"], row["producer_group"])

    def __str__(self) -> str:
        return f"{self.place}/{self.producer_group}/{self.transaction_id}"


@dataclass(frozen=True)
class LandedOp:
    """An op of the half message's own group and transaction id: ``reconcile`` obeys the first of them."""

    state: str
    source: str
    remark: str | None
    stored: datetime


@dataclass(frozen=True)
class Decision:
    """A row of `decisions`."""

    state: str
    source: str
    reason: str | None
    check_times: int
    decided_at: datetime


@dataclass(frozen=True)
class Transaction:
    """A half message and its outcome. ``ops`` are in the order in which the protocol considers them.

    ``resumed_from``, ``resumed_by``: of a resumed message, its discarded original, and "ACTOR: REASON". ``resumed_as``:
    of a discarded message that was resumed, the new half message. ``deliver_at``: of a COMMIT that has scheduled it;
    ``delivered_at``: when it was published then, or put into the table `unpublished`: why is in ``unpublished``.
    ``cancels``: ops CANCEL. ``in_vain``: operators' ops that `reconcile` has rejected. ``committed``: a
    message without a transaction. ``delay_ms``, ``not_before``: the half message's own delay_ms and deliver_at.
    ``erased``: nothing but ids and times is left of it.
    """

    place: Place
    transaction_id: str
    producer_group: str
    real_topic: str
    born: datetime
    stored: datetime
    check_immunity_s: int | None = None
    resumed_from: Place | None = None
    resumed_by: str | None = None
    resumed_as: Place | None = None
    ops: tuple[LandedOp, ...] = ()
    decision: Decision | None = None
    check_times: int = 0
    last_outcome: str | None = None
    last_error: str | None = None
    deliver_at: datetime | None = None
    delivered_at: datetime | None = None
    unpublished: str | None = None
    cancels: tuple[LandedOp, ...] = ()
    in_vain: tuple[LandedOp, ...] = ()
    committed: bool = False
    delay_ms: int | None = None
    not_before: datetime | None = None
    erased: bool = False

    @property
    def key(self) -> Key:
        """What names it."""
        return Key(self.place, self.transaction_id, self.producer_group)

    @property
    def operators_op(self) -> LandedOp | None:
        """The op that an operator has appended."""
        return next((op for op in self.ops if op.source == OPERATOR), None)

    def age_s(self, now: datetime) -> float:
        """Seconds since birth; a born_timestamp later than the store_timestamp counts as that (rule 4)."""
        return (now - min(self.born, self.stored)).total_seconds()

    @property
    def delay(self) -> timedelta | None:
        """From COMMIT to delivery; None: there is none, or the time of delivery is given."""
        if self.not_before is not None or not self.delay_ms or self.delay_ms < 0:
            return None
        return min(self.delay_ms, LONGEST // _MS) * _MS

    def due(self, committed: datetime) -> datetime | None:
        """When it is delivered if a COMMIT decides at that time (rule 10 of docs/protocol.md); None = at once."""
        at = self.not_before if self.delay is None else committed + self.delay
        return None if at is None or at <= committed else at

    def state(self) -> str:
        """Its state or decision, in words."""
        if self.decision is not None:
            why = f", {self.decision.reason}" if self.decision.reason else ""
            resumed = f"; resumed as {self.resumed_as}" if self.resumed_as else ""
            since = f"{self.decision.state} since {readable(self.decision.decided_at)} by {self.decision.source}"
            return f"{since}{why}{self._delivery()}{resumed}"
        if self.committed:
            return "a message without a transaction, which is its own COMMIT; not yet decided"
        if self.ops:
            op = self.ops[0]
            return f"pending; {op.state} by {op.source} landed at {readable(op.stored)}, not yet decided"
        return "pending"

    def _delivery(self) -> str:
        if self.deliver_at is None or self.decision is None or self.decision.state != "COMMIT":
            return ""
        if self.delivered_at is not None:
            unpublished = "" if self.unpublished is None else f", into `unpublished`: {self.unpublished}"
            return f"; delivered at {readable(self.delivered_at)}{unpublished}"
        return f"; scheduled for {readable(self.deliver_at)}"


def readable(time: datetime) -> str:
    """A time in a sentence: UTC, seconds."""
    return f"{time.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class Asked:
    """The operator's selection: a transaction id, and the group or place if several half messages have it."""

    transaction_id: str
    group: str | None = None
    place: Place | None = None


class AmbiguousError(SettingsError):
    """Several half messages have the transaction id: ``transactions``."""

    def __init__(self, what: str, where: str = "", fix: str = "", transactions: Sequence[Transaction] = ()) -> None:
        super().__init__(what, where, fix)
        self.transactions = tuple(transactions)


def chosen(family: Sequence[Transaction], asked: Asked) -> Transaction:
    """The selected half message; of a resumed message the newest, unless a place is given.

    Raises SettingsError if there is none, AmbiguousError if there are several.
    """
    named = [transaction for transaction in family if asked.group in (None, transaction.producer_group)]
    if asked.place is not None:
        named = [transaction for transaction in named if transaction.place == asked.place]
    else:
        named = [transaction for transaction in named if transaction.resumed_as is None]
    if not named:
        where = "" if asked.place is None else f" at {asked.place}"
        whose = "" if asked.group is None else f" of the group {asked.group}"
        raise SettingsError(
            f"no half message{where}{whose} has this transaction id",
            "TX",
            "`checkback tx list --state STATE` lists those there are",
        )
    if len(named) > 1:
        fix = "name one: --queue-id N --queue-offset N"
        if asked.group is None and len({one.producer_group for one in named}) == len(named):
            fix = "name one: --group G"
        raise AmbiguousError(f"{len(named)} half messages have this transaction id", "TX", fix, named)
    return named[0]
