"""Which rows retention removes. Pure: Arrow tables in, masks out; no I/O, no clock.

A half message goes when its transaction ended before the horizon. All other rows go by it: a row that is older than the
horizon, and whose half message is gone, is an orphan. So `half` is first, a run that breaks off goes on with the next
table, and whatever keeps a half message (it is pending, scheduled, unpublished, or in a file that stays) keeps all that
was recorded of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask: TypeAlias = NDArray[np.bool_]

KEY = ("queue_id", "queue_offset")
#: the reason of `rejected` that names the offset of a half message
REPEATED = r"^repeated .queue_id, queue_offset. (?P<queue_id>[0-9]{1,9})/(?P<queue_offset>[0-9]{1,18})$"
WHOSE = ("transaction_id", "producer_group")


def ended(decisions: pa.Table, deliveries: pa.Table, outstanding: pa.Table, horizon: pa.Scalar) -> pa.Table:
    """The offsets where a transaction ended before the horizon: KEY, and ``until``, when the last one did.

    ``decisions``: KEY, state, decided_at, deliver_at. ``deliveries``: KEY, delivered_at. ``outstanding``: KEY of
    messages that wait in `unpublished`, or were published late, after the horizon. A scheduled message has not ended
    before it was delivered or cancelled.
    """
    old = decisions.filter(pc.less(decisions.column("decided_at"), horizon))
    state = old.column("state")
    scheduled = pc.and_(pc.equal(state, "COMMIT"), pc.is_valid(old.column("deliver_at")))
    counted = pa.table(
        {
            **{name: old.column(name) for name in KEY},
            "until": old.column("decided_at"),
            "due": pc.fill_null(scheduled, False).cast(pa.int64()),
            "cancelled": pc.fill_null(pc.equal(state, "CANCEL"), False).cast(pa.int64()),
        }
    )
    found = counted.group_by(list(KEY)).aggregate([("until", "max"), ("due", "sum"), ("cancelled", "sum")])
    done = deliveries.filter(pc.less(deliveries.column("delivered_at"), horizon))
    number = done.group_by(list(KEY)).aggregate([("delivered_at", "count")])
    found = found.join(number, list(KEY), join_type="left outer")
    over = pc.add(pc.fill_null(found.column("delivered_at_count"), 0), found.column("cancelled_sum"))
    found = found.filter(pc.greater_equal(over, found.column("due_sum")))
    found = found.select([*KEY, "until_max"]).rename_columns([*KEY, "until"])
    return found.join(outstanding.select(list(KEY)), list(KEY), join_type="left anti")


def repeated(rejected: pa.Table) -> pa.Table:
    """KEY of the half messages that were rejected because there was one at their offset, of rows: source, reason.

    A row of another source, or rejected for another reason, has nulls.
    """
    of_half = pc.if_else(pc.equal(rejected.column("source"), "half"), rejected.column("reason"), None)
    place = pc.extract_regex(of_half, REPEATED)
    types = (pa.int32(), pa.int64())
    return pa.table({name: pc.struct_field(place, name).cast(type_) for name, type_ in zip(KEY, types, strict=True)})


def expired_halves(halves: pa.Table, decisions: pa.Table, over: pa.Table, again: pa.Table, horizon: pa.Scalar) -> Mask:
    """Mask of the half messages that go. ``halves``: KEY, WHOSE, store_timestamp; ``over``: see `ended`.

    ``decisions``: KEY, WHOSE, decided_at; ``again``: KEY, see `repeated`. A half message that landed after ``until`` is
    another, to which the offset was assigned again, unless it was rejected, or a decision is its own: the gateway's
    clock may be ahead of the one that decides.
    """
    numbered = halves.append_column("row", pa.array(np.arange(halves.num_rows)))
    old = numbered.filter(pc.less(numbered.column("store_timestamp"), horizon))
    found = old.select([*KEY, "store_timestamp", "row"]).join(over, list(KEY), join_type="inner")
    later = pc.greater(found.column("store_timestamp"), found.column("until"))
    mask = _mask(halves.num_rows, found.filter(pc.invert(later)))
    if pc.any(later).as_py():
        doubtful = numbered.take(found.filter(later).column("row"))
        decided = decisions.filter(pc.less(decisions.column("decided_at"), horizon)).select([*KEY, *WHOSE])
        mask |= _mask(halves.num_rows, doubtful.join(decided, [*KEY, *WHOSE], join_type="left semi"))
        mask |= _mask(halves.num_rows, doubtful.join(again.select(list(KEY)), list(KEY), join_type="left semi"))
    return mask


def orphans(rows: pa.Table, halves: pa.Table, time: str, horizon: pa.Scalar) -> Mask:
    """Mask of the rows that are older than the horizon by the column ``time``, and whose half message is gone.

    ``rows``: KEY, and ``time``; ``halves``: KEY of those that there are. A row without a time stays.
    """
    numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    old = numbered.filter(pc.less(numbered.column(time), horizon))
    return _mask(rows.num_rows, old.join(halves.select(list(KEY)), list(KEY), join_type="left anti"))


def _mask(number: int, rows: pa.Table) -> Mask:
    found = np.zeros(number, bool)
    found[rows.column("row").to_numpy()] = True
    return found


def last_of_queues(halves: pa.Table, gone: Mask) -> dict[int, int]:
    """The greatest offset that goes, by half queue."""
    found = halves.filter(pa.array(gone)).group_by("queue_id").aggregate([("queue_offset", "max")])
    pairs = zip(*(found.column(name).to_pylist() for name in ("queue_id", "queue_offset_max")), strict=True)
    return dict(pairs)
