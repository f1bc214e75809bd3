"""Lookup of the half messages of a transaction id, with what the tables record of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.errors import SettingsError
from checkback.messages.half import RESUMED_BY, RESUMED_FROM
from checkback.operate.operations import RESUME
from checkback.operate.transaction import OPERATOR, Decision, Key, LandedOp, Place, Transaction
from checkback.storage import rejected_ops
from checkback.storage.first_op import is_own, misfit, turn
from checkback.storage.rejected_ops import RejectedOps
from checkback.storage.timestamps import EPOCH
from checkback.storage.valid_texts import NOT_TRIED, OVERTAKEN, tried_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from checkback.operate.operations import Operation
    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.transaction import Asked

#: Most half messages of one transaction id that are looked up; if there are more, the place must be given.
MOST = 50
_PLACE = ("queue_id", "queue_offset")
_KEY = (*_PLACE, "transaction_id", "producer_group")
_HALF = (
    *_KEY,
    "real_topic",
    "properties",
    "born_timestamp",
    "store_timestamp",
    "check_immunity_s",
    "committed",
    "delay_ms",
    "deliver_at",
    "erased_at",
)
_LEDGER = (*_KEY, "action", "new_queue_id", "new_queue_offset")
Row = dict[str, Any]


class Found(NamedTuple):
    """Half messages, and the recorded actions on their transaction id in `operations`: `Operation.name`."""

    transactions: list[Transaction]
    recorded: set[tuple[str, Key, Place | None]]


class Resumed(NamedTuple):
    """What was resumed. ``newest``: by discarded message the place of the newest half message made of it.

    ``queues``: those of these half messages; ``recorded``: these half messages that the ledger has.
    """

    newest: dict[Key, Place]
    queues: set[int]
    recorded: set[Place | None]


def find(store: OperatorTables, asked: Asked, queue: int) -> Found:
    """The half messages with the transaction id, by place; of several at one place the first that landed.

    ``queue``: that of resumed messages. Repeated resumes of one message are linked to each other. Without a place, all
    of `half` is searched for the transaction id. Raises SettingsError if there are too many half messages.
    """
    ledger = store.rows("operations", {"transaction_id": [asked.transaction_id]}, _LEDGER).to_pylist()
    queues = _operators_queues(store, queue, ledger)
    halves = _first_of_each(rows_at(store, "half", _places(store, asked, queues), _HALF))
    queues |= store.operators_queues()  # of half messages that have landed since
    found = {
        place: _transaction(row, place.queue_id in queues)
        for place, row in halves.items()
        if row["transaction_id"] == asked.transaction_id
    }
    for transaction in list(found.values()):
        origin = transaction.resumed_from
        if origin in found and found[origin].producer_group == transaction.producer_group:
            found[origin] = replace(found[origin], resumed_as=transaction.place)
    recorded = {(row["action"], Key.of(row), _new_place(row)) for row in ledger}
    return Found(_with_outcomes(store, found), recorded)


def find_at(store: OperatorTables, wanted: Collection[Key], queue: int) -> list[Transaction]:
    """As `find`, these half messages."""
    resumed = resumed_messages(store, queue)
    halves = _first_of_each(rows_at(store, "half", {key.place for key in wanted}, _HALF))
    found = {
        place: replace(_transaction(row, place.queue_id in resumed.queues), resumed_as=resumed.newest.get(Key.of(row)))
        for place, row in halves.items()
        if Key.of(row) in wanted
    }
    return _with_outcomes(store, found)


def resumed_messages(store: OperatorTables, queue: int) -> Resumed:
    """Those of all groups. ``queue``: that of resumed messages."""
    ledger = store.rows("operations", {"action": [RESUME]}, _LEDGER).to_pylist()
    queues = _operators_queues(store, queue, ledger)
    halves = store.rows("half", {"queue_id": queues}, [*_KEY, "properties"]).to_pylist()
    newest = {}
    for row in sorted(halves, key=lambda row: row["queue_offset"]):
        own, origin = Key.of(row), _origin(row)
        if origin is not None:
            newest[own._replace(place=origin)] = own.place
    return Resumed(newest, queues, set(map(_new_place, ledger)))


def _operators_queues(store: OperatorTables, queue: int, ledger: Iterable[Row]) -> set[int]:
    """The queues of resumed messages: ``queue``, and those from before operator.queue was changed.

    Not by the ledger alone, which may lack the last action; it is all there is if only Spark reads the log of `half`.
    """
    recorded = {row["new_queue_id"] for row in ledger if row["new_queue_id"] is not None}
    return {queue} | recorded | store.operators_queues()


def is_recorded(store: OperatorTables, one: Operation) -> bool:
    """Whether the ledger has this very action: an earlier one of the same kind landed at another time."""
    equal: dict[str, Collection[Any]] = {
        "action": [one.action],
        "queue_id": [one.place.queue_id],
        "queue_offset": [one.place.queue_offset],
    }
    rows = store.rows("operations", equal, [*_LEDGER, "at"]).to_pylist()
    return any((Key.of(row), _new_place(row), row["at"]) == (one.key, one.new_place, one.at) for row in rows)


def _new_place(row: Row) -> Place | None:
    return None if row["new_queue_id"] is None else Place(row["new_queue_id"], row["new_queue_offset"])


def _origin(row: Row) -> Place | None:
    """The place of the message that this one was resumed from, if its queue is one of resumed messages."""
    return Place.parse(dict(row["properties"] or ()).get(RESUMED_FROM))


def _places(store: OperatorTables, asked: Asked, queues: Collection[int]) -> set[Place]:
    """Places of the half messages with the transaction id. Giving a place avoids the search.

    With a place that has more than MOST resumed messages of the id beside it, only those that were made of it.
    """
    equal: dict[str, Collection[Any]] = {"transaction_id": [asked.transaction_id]}
    if asked.group is not None:
        equal["producer_group"] = [asked.group]
    places = set() if asked.place is None else {asked.place}
    if asked.place is not None:
        equal["queue_id"] = queues
    rows = store.rows("half", equal, ["queue_id", "queue_offset", "properties"]).to_pylist()
    origins = {Place(row["queue_id"], row["queue_offset"]): _origin(row) for row in rows}
    if asked.place is not None and len(origins) >= MOST:
        origins = {place: origin for place, origin in origins.items() if origin == asked.place}
    places |= origins.keys()
    if asked.place is None and len(places) > MOST:
        raise SettingsError(
            f"{len(places)} half messages have this transaction id", "TX", "name one: --queue-id N --queue-offset N"
        )
    return places


def rows_at(
    store: OperatorTables,
    name: str,
    places: Iterable[Place],
    columns: Sequence[str] | None = None,
    at: tuple[str, str] = _PLACE,
) -> list[tuple[Place, Row]]:
    """The rows of a table at these places, one queue at a time, which allows file skipping.

    ``at``: the columns of the place.
    """
    queue, offset = at
    by_queue: dict[int, list[int]] = {}
    for place in places:
        by_queue.setdefault(place.queue_id, []).append(place.queue_offset)
    return [
        (Place(row[queue], row[offset]), row)
        for queue_id, offsets in by_queue.items()
        for row in store.rows(name, {queue: [queue_id], offset: offsets}, columns).to_pylist()
    ]


def own_rows_at(
    store: OperatorTables,
    name: str,
    found: Mapping[Place, Transaction],
    columns: Sequence[str] | None = None,
    at: tuple[str, str] = _PLACE,
) -> list[tuple[Place, Row]]:
    """The rows about these half messages; another may have had the offset before `half` was restored to older state."""
    return [
        (place, row)
        for place, row in rows_at(store, name, found, columns, at)
        if row["transaction_id"] in (None, found[place].transaction_id)
        and row["producer_group"] in (None, found[place].producer_group)
    ]


def _first_of_each(rows: Iterable[tuple[Place, Row]]) -> dict[Place, Row]:
    """By place the row that landed first, as in the segments."""
    first: dict[Place, Row] = {}
    for place, row in sorted(rows, key=lambda item: (item[0], _time(item[1]))):
        first.setdefault(place, row)
    return first


def _transaction(row: Row, resumable: bool) -> Transaction:
    """``resumable``: whether its queue holds resumed messages. In others a producer may have set the property."""
    properties = dict(row["properties"] or ()) if resumable else {}
    return Transaction(
        place=Place(row["queue_id"], row["queue_offset"]),
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        real_topic=row["real_topic"],
        born=row["born_timestamp"] or _time(row),
        stored=_time(row),
        check_immunity_s=row["check_immunity_s"],
        committed=bool(row["committed"]),
        delay_ms=row["delay_ms"],
        not_before=row["deliver_at"],
        erased=row["erased_at"] is not None,
        resumed_from=Place.parse(properties.get(RESUMED_FROM)),
        resumed_by=properties.get(RESUMED_BY),
    )


def _with_outcomes(store: OperatorTables, found: dict[Place, Transaction]) -> list[Transaction]:
    """The transactions with their ops, decisions and checks."""
    ops: dict[Place, list[Row]] = {}
    cancels: dict[Place, list[Row]] = {}
    in_vain: dict[Place, list[Row]] = {}
    landed = rows_at(store, "op", found)
    rejected = RejectedOps(_rejected(store, sorted({place.queue_offset for place, _ in landed})))
    for place, row in landed:
        whose = found[place].producer_group, found[place].transaction_id
        own = is_own(row, *whose)
        if not own and not (_is_cancel(row) and misfit(row["producer_group"], row["transaction_id"], *whose) is None):
            continue
        if row not in rejected:
            (ops if own else cancels).setdefault(place, []).append(row)
        elif row["source"] == OPERATOR:
            in_vain.setdefault(place, []).append(row)
    decided = own_rows_at(store, "decisions", found)
    decisions = {
        place: Decision(row["state"], row["source"], row["reason"], row[_TIMES] or 0, row["decided_at"] or EPOCH)
        for place, row in sorted(decided, key=lambda item: item[1]["state"] == "CANCEL")  # it comes after the COMMIT
    }
    due = {place: row["deliver_at"] for place, row in decided if row["deliver_at"] is not None}
    delivered = {place: row["delivered_at"] for place, row in own_rows_at(store, "deliveries", found)}
    came_due = {place: found[place] for place in delivered}
    columns = ("half_queue_id", "half_queue_offset", "transaction_id", "producer_group", "reason")
    rows = own_rows_at(store, "unpublished", came_due, columns, at=("half_queue_id", "half_queue_offset"))
    unpublished = {place: row["reason"] for place, row in rows}
    checks: dict[Place, int] = {}
    for place, row in own_rows_at(store, "check_requests", found, [*_KEY, _TIMES]):
        checks[place] = max(checks.get(place, 0), row[_TIMES] or 0)
    answers: dict[Place, Row] = {}
    for place, row in own_rows_at(store, "check_answers", found, _ANSWER):
        if row["error"] != OVERTAKEN and (place not in answers or _order(row) > _order(answers[place])):
            answers[place] = row
    return [
        replace(
            transaction,
            ops=tuple(_landed(row) for row in sorted(ops.get(place, ()), key=turn)),
            decision=decisions.get(place),
            check_times=decisions[place].check_times if place in decisions else checks.get(place, 0),
            last_outcome=answers.get(place, {}).get("outcome"),
            last_error=_error(answers[place]) if place in answers else None,
            deliver_at=due.get(place),
            delivered_at=delivered.get(place),
            unpublished=unpublished.get(place),
            cancels=tuple(_landed(row) for row in sorted(cancels.get(place, ()), key=turn)),
            in_vain=tuple(_landed(row) for row in sorted(in_vain.get(place, ()), key=turn)),
        )
        for place, transaction in sorted(found.items())
    ]


def _rejected(store: OperatorTables, offsets: Sequence[int]) -> list[Row]:
    """The rows of `rejected` about ops at these offsets."""
    if not offsets:
        return []
    rows = store.rows("rejected", {"source": ["op"]}, rejected_ops.COLUMNS)
    return [row for row in rejected_ops.about(rows, offsets) if row["file"] is None]


_TIMES = "check_times"
_ANSWER = (*_KEY, _TIMES, "answered_at", "outcome", "error", "failed_tries")


def _order(answer: Row) -> tuple[Any, ...]:
    """The newest last; before all others those that no endpoint was asked for, as a circuit breaker was open."""
    prevented = answer["outcome"] == "NO_ANSWER" and (_error(answer) or "").startswith(NOT_TRIED)
    return not prevented, answer[_TIMES], answer["answered_at"]


def _error(answer: Row) -> str | None:
    """Of the attempts that were made, if any was."""
    found = tried_error([answer["error"], *(one["error"] for one in answer["failed_tries"] or ())])
    return answer["error"] if found is None else found


def _is_cancel(row: Row) -> bool:
    return bool(row["state"] == "CANCEL" and row["source"] in (OPERATOR, "producer"))


def _landed(row: Row) -> LandedOp:
    return LandedOp(row["state"], row["source"], row["remark"], _time(row))


def _time(row: Row) -> datetime:
    """When it landed; may be null if the row was not written by Checkback."""
    return row["store_timestamp"] or EPOCH
