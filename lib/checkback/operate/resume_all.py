"""`checkback tx resume --all`: the discarded messages of a group, or of all, each resumed as by `tx resume TX`.

After an outage of a producer's endpoints thousands may be in `discarded`. They are resumed some at a time: their half
messages in one commit, then their rows of `operations` in another. Each is an action of its own all the same, and what
was interrupted goes on where it stopped when it is given again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import CheckbackError, FencedError, SettingsError
from checkback.operate.action import TRIES, Outcome, act, record
from checkback.operate.lookup import find_at, resumed_messages
from checkback.operate.operations import operation_row
from checkback.operate.permissions import RefusedError
from checkback.operate.resume import next_versions, resume_at, resuming
from checkback.operate.transaction import Asked, Key, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from checkback.operate.action import Action
    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.transaction import Transaction

#: a cancelled message was ended on purpose: it is resumed by its id only
_ON_PURPOSE = "CANCELLED"
_ABOUT = ("real_topic", "reason", "discarded_at")
_DISCARDED = ("queue_id", "queue_offset", "transaction_id", "producer_group", *_ABOUT)


class Discarded(NamedTuple):
    """A message in `discarded` that is to be resumed. ``unrecorded``: it is, but the ledger lacks the action."""

    key: Key
    real_topic: str
    reason: str
    discarded_at: datetime
    unrecorded: bool


@dataclass(frozen=True)
class RequestForAll:
    """The options of the command. ``group``: None = all; ``since``: discarded then or later, None = ever."""

    group: str | None
    since: datetime | None
    signed: OperatorSignature


def resumable(
    store: OperatorTables, queue: int, group: str | None = None, since: datetime | None = None
) -> list[Discarded]:
    """Those of `discarded` that are not resumed and recorded yet, cancelled or erased; by the time of the discard.

    Rows of other writers that lack something are left out.
    ``queue``: that of resumed messages. Raises StorageError.
    """
    mine = {} if group is None else {"producer_group": [group]}
    found = store.rows("discarded", mine, [*_DISCARDED, "erased_at"])
    rows = found.filter(pc.is_null(found.column("erased_at"))).select(list(_DISCARDED)).to_pylist()
    resumed = resumed_messages(store, queue)
    chosen = {}
    for row in (row for row in rows if None not in row.values()):
        key = Key.of(row)
        one = Discarded._make([key, *(row[name] for name in _ABOUT), key in resumed.newest])
        done = one.unrecorded and resumed.newest[key] in resumed.recorded
        if one.reason != _ON_PURPOSE and not done and (since is None or one.discarded_at >= since):
            chosen[key] = one
    return sorted(chosen.values(), key=lambda one: (one.discarded_at, one.key))


def resume_some(
    store: OperatorTables,
    some: Sequence[Discarded],
    queue: int,
    signed: OperatorSignature,
    clock: Callable[[], datetime],
) -> list[Outcome | CheckbackError]:
    """Resume messages, at most ``store.at_once``. Of each what was done, or why it is refused.

    As `act`: the next offset is read before all else, so that the commit fails if another operator resumes meanwhile.
    Raises FencedError if that happens again and again, StorageError.
    """
    action = resuming(queue, signed, clock)
    late = {one.key: _alone(store, one.key, queue, action) for one in some if one.unrecorded}
    wanted = [one.key for one in some if not one.unrecorded]
    versions: dict[str, int] = {}
    for _ in range(TRIES):
        offset = action.version(store, None)
        found = {one.key: one for one in find_at(store, wanted, queue)}
        refused = {key: why for key in wanted if (why := _refused(found.get(key), key.place, action)) is not None}
        ready = [found[key] for key in wanted if key not in refused]
        done = resume_at(store, ready, Place(queue, offset), signed, clock(), versions) if ready else []
        if done is None:
            versions = next_versions(store, ready)
            continue
        apps = [one.application for one in done]
        if done and not store.append_each("operations", pa.concat_tables(map(operation_row, done)), apps):
            record(store, done)  # somebody has completed the ledger meanwhile
        outcomes: dict[Key, Outcome | CheckbackError] = {**late, **refused}
        for one, operation in zip(ready, done, strict=True):
            outcomes[one.key] = Outcome(one, operation, repeated=False)
        return [outcomes[one.key] for one in some]
    raise FencedError("too many concurrent operator ops", f"queue {queue}", "run it again")


def _alone(store: OperatorTables, key: Key, queue: int, action: Action) -> Outcome | CheckbackError:
    try:
        return act(store, Asked(key.transaction_id, key.producer_group, key.place), queue, action)
    except (RefusedError, SettingsError) as error:
        return error


def _refused(transaction: Transaction | None, place: Place, action: Action) -> RefusedError | None:
    if transaction is None:
        return RefusedError("its half message is gone", f"transaction {place}")
    try:
        action.judge(transaction)
    except RefusedError as error:
        return error
    return None
