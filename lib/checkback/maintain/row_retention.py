"""Retention: removes the rows of transactions that ended long ago, published messages, and what was given up.

`half` comes first; rows of the other tables follow their half messages (`ended_transactions`). How the tables are read
and rows removed is `retained_rows`. Bodies of what is left in `half` are emptied in place: their topics have them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import StorageError, of_machine
from checkback.maintain.erasure_selection import BATCH, in_whole_batches
from checkback.maintain.retained_rows import FOLLOWING, Removed, at, ranges_of, time_column
from checkback.maintain.rows_in_files import RowsInFiles
from checkback.messages.half import RESUMED_FROM, parse_place
from checkback.reconcile.ended_transactions import KEY, WHOSE, ended, expired_halves, last_of_queues, orphans, repeated
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from checkback.maintain.retained_rows import Ranges, RetainedRows
    from checkback.reconcile.ended_transactions import Mask
    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: Of FOLLOWING, rows without a half message may be of an op that waits for it: since it was read (rule 3).
_OF_OPS = ("op", "rejected")
_GIVEN_UP = ("discarded", "dead_letters", "operations")
#: What became of transactions. Of one that was altered not even its files' rows are known: some may be deleted.
_ENDS = ("half", "decisions", "deliveries", "unpublished", "discarded", "batches")


@dataclass(frozen=True)
class RowRetention:
    """A run over the tables ``names``. ``now``: ms. ``dry_run``: only count.

    ``altered``: tables whose files can't be rewritten (`DeltaLog.maintainable`), from which nothing is removed.
    """

    own: RetainedRows[Any]
    settings: Settings
    names: Sequence[str]
    now: int
    dry_run: bool
    altered: Collection[str] = ()

    @classmethod
    def by_files(
        cls,
        tables: Tables,
        settings: Settings,
        names: Sequence[str],
        now: int,
        dry_run: bool,
        altered: Collection[str] = (),
    ) -> RowRetention:
        """A run over tables in folders and object stores."""
        return cls(RowsInFiles(tables, dry_run), settings, names, now, dry_run, altered)

    def run(self) -> dict[str, Removed]:
        """Remove what the settings no longer keep; by table what that is. Raises StorageError."""
        horizon, given_up = self._history_horizon(), self._before(self.settings.retention.given_up)
        altered = [name for name in _ENDS if name in self.altered]
        if altered:
            why = f"nothing of the history is removed, because {altered[0]} was altered (docs/tables.md)"
            self.own.removed["half"] = Removed(kept=(why,))
        elif horizon is not None:
            outstanding = pa.concat_tables([self._not_published_before(horizon), self._resumable()])
            self.own.removed["half"] = Removed()
            for group in self.own.groups("half", horizon):
                self.own.remove("half", group, self._ended(group.rows, horizon, outstanding), horizon)
            for name in self._those(FOLLOWING):
                self._remove_following(name, horizon, outstanding)
            self._remove_older("ticks", horizon)
            self.own.make_runs(horizon)
        if not altered:
            self._empty_bodies()
        for name in self._those(_GIVEN_UP):
            self._remove_older(name, given_up)
        for name in (name for name in self.names if name.startswith(TOPIC_PREFIX)):
            before = self._before(self.settings.retention.of_topic(name.removeprefix(TOPIC_PREFIX)))
            try:
                self._remove_older(name, before)
            except StorageError as error:
                if of_machine(error):
                    raise
                self.own.removed[name] = Removed(kept=(f"no message is removed, because {error}",))
        return self.own.removed

    def _those(self, names: Iterable[str]) -> list[str]:
        """Those that there are, and may be changed. What rejected ops say is needed as long as the ops are there."""
        left = {*self.altered, *(["rejected"] if "op" in self.altered else [])}
        return [name for name in names if name in self.names and name not in left]

    @cached_property
    def _last_batch(self) -> int | None:
        """Time of the last complete batch (ms); None = there is none. The rows of one under way are later."""
        return self.own.last_batch()

    @cached_property
    def _batches(self) -> pa.Table:
        return self.own.rows("batches", ("application", *BATCH))

    def _under_way(self, rows: pa.Table, time: str) -> Mask:
        """Mask of the rows of a batch that is not complete: it may have published only some of its messages.

        It follows the last one of its application, or is the first. Its time says nothing if the clock was ahead.
        ``rows``: batch_id and ``time``, their batch's.
        """
        last = self._batches.group_by("application").aggregate([("batch_id", "max")]).column("batch_id_max")
        following = pa.array({0, *(number + 1 for number in last.to_pylist() if number is not None)}, pa.int64())
        mask: Mask = np.array(pc.is_in(rows.column("batch_id"), following))
        if mask.any():
            runs = pc.is_valid(self._batches.column("first_batch_id"))
            batches = self._batches.filter(pc.or_(runs, pc.is_in(self._batches.column("batch_id"), following)))
            mask[mask] = ~in_whole_batches(rows.filter(pa.array(mask)), time, batches)
        return mask

    def _whole(self, rows: pa.Table, time: str) -> pa.Table:
        """The rows of complete batches."""
        return rows.filter(pa.array(~self._under_way(rows, time)))

    def _before(self, lasting: timedelta | None) -> int | None:
        """The time before which rows have lasted so long (ms): at most the last batch's; None = none have."""
        if lasting is None or self._last_batch is None:
            return None
        return min(self.now - lasting // timedelta(milliseconds=1), self._last_batch)

    def _history_horizon(self) -> int | None:
        """Before it, transactions that ended are removed (ms); None = none are."""
        return self._horizon_of(self.settings.history())

    def _horizon_of(self, lasting: timedelta | None) -> int | None:
        """Measured from the last batch: what `reconcile` has not read stays, however long it is stopped.

        What the tables say may be later: the history was shorter, or the clock ahead.
        """
        if lasting is None or self._last_batch is None or not {"half", "decisions"} <= set(self.names):
            return None
        return min(self.now, self._last_batch) - lasting // timedelta(milliseconds=1)

    def _read_by(self, horizon: int) -> int:
        """Time of the last batch up to the horizon (ms; 0 = none): what landed before was read, and waits no more."""
        return self.own.last_batch(horizon) or 0

    def _ended(self, halves: pa.Table, horizon: int, outstanding: pa.Table) -> Mask:
        """Mask of the half messages that may go. ``outstanding``: KEY of those that stay."""
        ranges = ranges_of(halves)
        decisions = self.own.rows("decisions", (*KEY, *WHOSE, "state", "decided_at", "deliver_at", "batch_id"), ranges)
        decisions = self._whole(decisions, "decided_at")
        deliveries = self._whole(
            self.own.rows("deliveries", (*KEY, "delivered_at", "batch_id"), ranges), "delivered_at"
        )
        over = ended(decisions, deliveries, outstanding, at(horizon))
        gone = expired_halves(halves, decisions, over, self._repeated, at(horizon))
        return gone & ~self._too_high(halves, gone, horizon)

    def _too_high(self, halves: pa.Table, gone: Mask, horizon: int) -> Mask:
        """Mask of the half messages above an offset at which another one has landed since the horizon.

        Somebody took a wrong offset once, and goes on below it: were it removed, all below would count as removed.
        """
        ranges = {queue: (0, offset) for queue, offset in last_of_queues(halves, gone).items()}
        least = self.own.least_since(horizon, ranges) if ranges else {}
        places = pc.index_in(halves.column("queue_id"), pa.array([*least], pa.int32()))
        first = pa.array([*least.values()], pa.int64()).take(places.combine_chunks())
        return np.array(pc.fill_null(pc.greater(halves.column("queue_offset"), first), False))

    def _empty_bodies(self) -> None:
        """Empty the bodies that no one needs: of what was published they are in its topic, or else in `discarded`."""
        before = self._horizon_of(self.settings.bodies())
        if before is not None:
            outstanding = self._not_published_before(before)
            self.own.empty_bodies(before, lambda halves: self._ended(halves, before, outstanding))

    @cached_property
    def _repeated(self) -> pa.Table:
        """KEY of the half messages that `rejected` has, as a second one at an offset; with nulls."""
        return repeated(self.own.rows("rejected", ("source", "reason")))

    def _remove_following(self, name: str, horizon: int, outstanding: pa.Table) -> None:
        before = self._read_by(horizon) if name in _OF_OPS else horizon
        for group in self.own.groups(name, before):
            there = self._halves_left(ranges_of(group.rows), horizon, outstanding)
            gone = orphans(group.rows, there, time_column(name), at(before))
            if name in ("decisions", "deliveries", "rejected") and not self.dry_run:
                gone &= self._answers_none(name, group.rows, horizon)
            self.own.remove(name, group, gone, horizon)

    def _halves_left(self, ranges: Ranges, horizon: int, outstanding: pa.Table) -> pa.Table:
        """The half messages in these ranges, in a dry run without those that would be gone by then."""
        left, going = self.own.halves(ranges, (*KEY, *WHOSE, time_column("half")))
        return pa.concat_tables([left, going.filter(pa.array(~self._ended(going, horizon, outstanding)))])

    def _answers_none(self, name: str, rows: pa.Table, horizon: int) -> Mask:
        """Mask of the rows that end no COMMIT or op that is left: it would seem to be scheduled, or to decide.

        It may lie in a mixed file, which stays. Rows of `deliveries` and `rejected`, and CANCELs, go after it.
        """
        of, columns = ("op", KEY) if name == "rejected" else ("decisions", (*KEY, "state", "deliver_at"))
        left = self.own.rows(of, columns, ranges_of(rows))
        if of == "decisions":
            left = left.filter(pc.and_(pc.equal(left.column("state"), "COMMIT"), left.column("deliver_at").is_valid()))
        free = orphans(rows, left, time_column(name), at(horizon))
        if name == "decisions":
            free |= pc.fill_null(pc.not_equal(rows.column("state"), "CANCEL"), True).to_numpy()
        return free

    def _remove_older(self, name: str, horizon: int | None) -> None:
        if horizon is None or not self._those([name]):
            return
        time = time_column(name)
        for group in self.own.groups(name, horizon):
            old = pc.fill_null(pc.less(group.rows.column(time), at(horizon)), False).to_numpy()
            if "batch_id" in group.rows.column_names:
                old &= ~self._under_way(group.rows, time)
            self.own.remove(name, group, old, horizon)

    def _not_published_before(self, horizon: int) -> pa.Table:
        """KEY of the messages in `unpublished` that wait there, or were published since the horizon."""
        columns = ("half_queue_id", "half_queue_offset", "real_topic", "application", "batch_id")
        rows = self.own.rows("unpublished", columns)
        found = [rows.select(list(columns[:2])).slice(0, 0)]
        topics = rows.column("real_topic").fill_null("")  # which no topic is
        for topic in topics.unique().to_pylist():
            of_topic = rows.filter(pc.equal(topics, topic))
            mine = of_topic.select(list(columns[:2]))
            outstanding = [mine]
            with _unless_damaged():
                name, left = f"{TOPIC_PREFIX}{topic}", mine.filter(self.own.waits(of_topic))
                late = self.own.published_since(name, horizon, mine) if name in self.names else mine.slice(0, 0)
                outstanding = [left, late]
            found += outstanding
        return pa.concat_tables(found).rename_columns(list(KEY))

    def _resumable(self) -> pa.Table:
        """KEY of the messages in `discarded`, which may be resumed, and of those made of them, so that it is once."""
        discarded = self.own.rows("discarded", KEY)
        places = set(zip(*(discarded.column(name).to_pylist() for name in KEY), strict=True))
        if not places:
            return discarded
        halves = self.own.resumed(self.settings.operator.queue)
        made_of = [
            parse_place(dict(each or ()).get(RESUMED_FROM) or "") for each in halves.column("properties").to_pylist()
        ]
        made = halves.filter(pa.array([place in places for place in made_of], pa.bool_()))
        return pa.concat_tables([discarded, made.select(list(KEY))])


@contextmanager
def _unless_damaged() -> Iterator[None]:
    """Leave a topic's table alone that cannot be read; whoever maintains it says so."""
    try:
        yield
    except StorageError as error:
        if of_machine(error):
            raise
