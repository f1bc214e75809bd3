"""`checkback tx resume`: a discarded message becomes a new half message, in the queue reserved for resumed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from checkback.operate.action import Action
from checkback.operate.lookup import own_rows_at
from checkback.operate.operations import RESUME, Operation, application_of, half_row
from checkback.operate.permissions import RefusedError, judge_resume
from checkback.operate.transaction import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.transaction import Transaction

#: where an offset that was used is known: table, column of the queue, column of the offset
_KNOWN = (
    *((name, "queue_id", "queue_offset") for name in ("half", "decisions", "check_requests")),
    ("operations", "new_queue_id", "new_queue_offset"),
)


def resuming(queue: int, signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends a half message to the queue.

    The queue is an application id of Delta's transaction identifiers, ``operator/<queue>``, the offset its version: of
    two concurrent operators, one finds the offset taken and retries with the next. The last version counts as well as
    the rows: those are gone from a table that was restored to an older version, and their offsets are not used again.
    Nor are those that other tables know: of a table that was put back from a backup the versions are gone, too.
    The message has an application of its own beside it: another operator may use another queue.
    """
    own: dict[str, int] = {}

    def next_offset(store: OperatorTables, refused: Transaction | None) -> int:
        if refused is not None:
            own.update(next_versions(store, [refused]))
        committed = store.last_version("half", f"operator/{queue}")
        known = [pc.max(store.rows(name, {at: [queue]}, [offset]).column(0)).as_py() for name, at, offset in _KNOWN]
        return max(-1 if one is None else int(one) for one in (committed, *known)) + 1

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        done = resume_at(store, [transaction], Place(queue, version), signed, clock(), own)
        return None if done is None else done[0]

    return Action(RESUME, judge_resume, next_offset, attempt)


def next_versions(store: OperatorTables, some: Iterable[Transaction]) -> dict[str, int]:
    """The next version of each message's application in `half`.

    It is read before the message is looked up once more: one that is taken may be that of a half message that is gone
    since `half` was restored to an older version.
    """
    last = {app: store.last_version("half", app) for app in map(_application, some)}
    return {app: 0 if version is None else version + 1 for app, version in last.items()}


def _application(one: Transaction) -> str:
    return application_of(RESUME, one.key)


def resume_at(
    store: OperatorTables,
    some: Sequence[Transaction],
    first: Place,
    signed: OperatorSignature,
    now: datetime,
    versions: Mapping[str, int],
) -> list[Operation] | None:
    """Append their messages as half messages, from the place ``first`` on. None if another operator was first.

    ``versions``: of the messages' applications, 0 where nothing is known (`next_versions`).
    Raises RefusedError if one of the messages is not in `discarded`, or erased.
    """
    messages = dict(own_rows_at(store, "discarded", {one.place: one for one in some}))
    places = [Place(first.queue_id, first.queue_offset + number) for number in range(len(some))]
    rows = []
    for one, place in zip(some, places, strict=True):
        if one.place not in messages:
            raise RefusedError(
                "its message is not in `discarded`",
                f"transaction {one.place}",
                "run `checkback reconcile`, which finishes its last batch; unless retention.given_up removed it",
            )
        if messages[one.place]["erased_at"] is not None:
            raise RefusedError("was erased", f"transaction {one.place}", "nothing of it is left to publish")
        rows.append(half_row(messages[one.place], place, signed, now, again=one.resumed_from is not None))
    each = {app: versions.get(app, 0) for app in map(_application, some)}
    if not store.append("half", pa.concat_tables(rows), f"operator/{first.queue_id}", first.queue_offset, each):
        return None
    return [Operation.on(one, now, RESUME, signed, place) for one, place in zip(some, places, strict=True)]
