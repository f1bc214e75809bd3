"""Retention: removes the rows of transactions that ended long ago, published messages, and what was given up.

`half` comes first; rows of the other tables follow their half messages (`ended_transactions`). Files that hold nothing
else go whole, by a commit without a rewrite; mixed ones are rewritten once half of their rows are to go. Each commit is
complete in itself, so a run that breaks off is continued by the next one. Memory: the keys of some million rows.

Bodies of what is left in `half` are emptied in place, as by an erasure: their topics have them. Of a file at least half
of the bodies that it has go at once: it is rewritten once, or each time half as much.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.errors import StorageError, of_machine
from checkback.maintain.compaction import rewritten, rows_of, write_rows
from checkback.maintain.erasure_selection import BATCH, emptied, in_whole_batches
from checkback.maintain.missed_messages import MissedMessages
from checkback.messages.half import RESUMED_FROM, parse_place
from checkback.messages.limits import MS_MAX
from checkback.reconcile.ended_transactions import KEY, WHOSE, ended, expired_halves, last_of_queues, orphans, repeated
from checkback.reconcile.publish.published_notes import waits
from checkback.storage.batch_runs import runs_of
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.horizon import BODIES, HORIZON, never_back, versions_of, with_missed
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.queue_owners import operators_queues, owners_of
from checkback.storage.queue_owners import versions_of as owner_versions
from checkback.storage.rejected_ops import PLACE
from checkback.storage.schemas import ROW_TIMES, TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import EPOCH, ms_of, time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from checkback.reconcile.ended_transactions import Mask
    from checkback.settings import Settings
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.parquet.parquet_files import ParquetFile
    from checkback.storage.tables import Tables

    Ranges: TypeAlias = Mapping[int, tuple[int, int]]

#: Tables whose rows follow their half messages, in this order: without its delivery a decision would seem to wait.
_FOLLOWING = ("op", "check_requests", "check_answers", "rejected", "decisions", "deliveries", "unpublished")
#: Of these, rows without a half message may be of an op that waits for it: since it was read (rule 3).
_OF_OPS = ("op", "rejected")
_GIVEN_UP = ("discarded", "dead_letters", "operations")
#: What became of transactions. Of one that was altered not even its files' rows are known: some may be deleted.
_ENDS = ("half", "decisions", "deliveries", "unpublished", "discarded", "batches")
#: rows that are looked at together
_TOGETHER = 2_000_000
#: Bodies that are a smaller part of their file stay: of transactions that are not over yet, or none at all.
_WORTH = 1 / 20


@dataclass
class Removed:
    """What retention has removed from a table, or would: rows, and bytes (of mixed files by their share).

    ``bodies``, ``of_bodies``: the bodies that it has emptied, and their bytes. ``kept``: why rows stay.
    """

    rows: int = 0
    bytes: int = 0
    bodies: int = 0
    of_bodies: int = 0
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Files of a table, the rows of each, and all of these: KEY (null = not about a half message), and their time."""

    files: Sequence[DataFile]
    sizes: Sequence[int]
    rows: pa.Table


@dataclass(frozen=True)
class RowRetention:
    """A run over the tables ``names``. ``now``: ms. ``dry_run``: only count.

    ``altered``: tables whose files can't be rewritten (`DeltaLog.maintainable`), from which nothing is removed.
    ``going``: in a dry run the files of `half` that would be removed or rewritten.
    """

    tables: Tables
    settings: Settings
    names: Sequence[str]
    now: int
    dry_run: bool
    altered: Collection[str] = ()
    removed: dict[str, Removed] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)

    def run(self) -> dict[str, Removed]:
        """Remove what the settings no longer keep; by table what that is. Raises StorageError."""
        horizon, given_up = self._history_horizon(), self._before(self.settings.retention.given_up)
        altered = [name for name in _ENDS if name in self.altered]
        if altered:
            why = f"nothing of the history is removed, because {altered[0]} was altered (docs/tables.md)"
            self.removed["half"] = Removed(kept=(why,))
        elif horizon is not None:
            outstanding = pa.concat_tables([self._not_published_before(horizon), self._resumable()])
            self._remove_halves(horizon, outstanding)
            for name in self._those(_FOLLOWING):
                self._remove_following(name, horizon, outstanding)
            self._remove_older("ticks", horizon)
            self._make_runs(horizon)
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
                self.removed[name] = Removed(kept=(f"no message is removed, because {error}",))
        return self.removed

    @cached_property
    def _missed(self) -> MissedMessages:
        return MissedMessages(self.tables)

    def _those(self, names: Iterable[str]) -> list[str]:
        """Those that there are, and may be changed. What rejected ops say is needed as long as the ops are there."""
        left = {*self.altered, *(["rejected"] if "op" in self.altered else [])}
        return [name for name in names if name in self.names and name not in left]

    @cached_property
    def _last_batch(self) -> int | None:
        """Time of the last complete batch (ms); None = there is none. The rows of one under way are later."""
        times = [file.spans["batch_time"][1] for file in self._files("batches") if "batch_time" in file.spans]
        return ms_of(max(times)) if times else None

    @cached_property
    def _batches(self) -> pa.Table:
        return self._rows("batches", self._files("batches"), ("application", *BATCH))

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

        What the tables say may be later: the history was shorter, or the clock ahead (`never_back`).
        """
        if lasting is None or self._last_batch is None or not {"half", "decisions"} <= set(self.names):
            return None
        return min(self.now, self._last_batch) - lasting // timedelta(milliseconds=1)

    def _read_by(self, horizon: int) -> int:
        """Time of the last batch up to the horizon (ms; 0 = none): what landed before was read, and waits no more."""
        files = self.tables.log("batches").data_files({"batch_time": (EPOCH, time_of(horizon))})
        times = self._rows("batches", files, ("batch_time",)).column("batch_time")
        last = pc.max(times.filter(pc.less_equal(times, _time(horizon)))).as_py()
        return 0 if last is None else ms_of(last)

    def _remove_halves(self, horizon: int, outstanding: pa.Table) -> None:
        log = self.tables.open_log("half")
        self.removed["half"] = Removed()
        for group in self._groups("half", log.data_files(_until("half", horizon))):
            self._remove("half", log, group, self._ended(group.rows, horizon, outstanding), horizon)

    def _ended(self, halves: pa.Table, horizon: int, outstanding: pa.Table) -> Mask:
        """Mask of the half messages that may go. ``outstanding``: KEY of those that stay."""
        ranges = _ranges(halves)

        def there(name: str, *columns: str) -> pa.Table:
            return self._rows(name, _within(self._files(name), ranges), (*KEY, *columns))

        decisions = there("decisions", *WHOSE, "state", "decided_at", "deliver_at", "batch_id")
        decisions = self._whole(decisions, "decided_at")
        deliveries = self._whole(there("deliveries", "delivered_at", "batch_id"), "delivered_at")
        over = ended(decisions, deliveries, outstanding, _time(horizon))
        gone = expired_halves(halves, decisions, over, self._repeated, _time(horizon))
        return gone & ~self._too_high(halves, gone, horizon)

    def _too_high(self, halves: pa.Table, gone: Mask, horizon: int) -> Mask:
        """Mask of the half messages above an offset at which another one has landed since the horizon.

        Somebody took a wrong offset once, and goes on below it: were it removed, all below would count as removed. Only
        in queues of files, where any offset lands.
        """
        log, last = self.tables.log("half"), last_of_queues(halves, gone)
        owned = owners_of(owner_versions(log, last))
        ranges = {queue: (0, offset) for queue, offset in last.items() if queue not in owned}
        if not ranges:
            return np.zeros(len(halves), bool)
        files = _within(log.data_files({"store_timestamp": (time_of(horizon), time_of(MS_MAX))}), ranges)
        later = self._rows("half", files, (*KEY, "store_timestamp"))
        later = later.filter(pc.greater_equal(later.column("store_timestamp"), _time(horizon)))
        least = later.group_by("queue_id").aggregate([("queue_offset", "min")])
        of_queue = dict(zip(*(least.column(name).to_pylist() for name in least.column_names), strict=True))
        wanted = pc.is_in(halves.column("queue_id"), pa.array([*ranges], pa.int32()))
        places = pc.index_in(halves.column("queue_id"), pa.array([*of_queue], pa.int32()))
        first = pa.array([*of_queue.values()], pa.int64()).take(places.combine_chunks())
        return np.array(pc.fill_null(pc.and_(wanted, pc.greater(halves.column("queue_offset"), first)), False))

    def _empty_bodies(self) -> None:
        """Empty the bodies that no one needs: of what was published they are in its topic, or else in `discarded`."""
        before = self._horizon_of(self.settings.bodies())
        if before is None:
            return
        log, done = self.tables.open_log("half"), self.removed.setdefault("half", Removed())
        outstanding = self._not_published_before(before)
        files = [file for file in log.data_files(_until("half", before)) if file.path not in self.going]
        sizes = zip(files, concurrently(self.tables.root, _size_of_bodies, files), strict=True)
        bodies = {file.path: taken for file, taken in sizes if taken > _WORTH * file.size}
        place = f"{self.tables.location('half')}/"
        for group in self._groups("half", [file for file in files if file.path in bodies]):
            over = self._ended(group.rows, before, outstanding)
            old: list[str] = []
            new: list[ParquetFile] = []
            count = size = 0
            for file, mask in zip(group.files, np.split(over, np.cumsum(group.sizes)[:-1]), strict=True):
                if not mask.any():
                    continue
                rows = rows_of(file.path, "half")
                there = rows.column("body").is_valid().to_numpy()
                number, left = int((there & mask).sum()), int(there.sum())
                if 2 * number < max(1, left):
                    continue
                count, size = count + number, size + bodies[file.path] * number // left
                if not self.dry_run:
                    old.append(file.path.removeprefix(place))
                    new += write_rows("half", self.tables.root, emptied(rows, "body", mask))
            if not old or log.remove(old, new, never_back(log, {BODIES: before}), changes=False):
                done.bodies, done.of_bodies = done.bodies + count, done.of_bodies + size

    @cached_property
    def _repeated(self) -> pa.Table:
        """KEY of the half messages that `rejected` has, as a second one at an offset; with nulls."""
        return repeated(self._rows("rejected", self._files("rejected"), ("source", "reason")))

    def _remove_following(self, name: str, horizon: int, outstanding: pa.Table) -> None:
        log, before = self.tables.open_log(name), self._read_by(horizon) if name in _OF_OPS else horizon
        for group in self._groups(name, log.data_files(_until(name, before))):
            there = self._halves_left(_ranges(group.rows), horizon, outstanding)
            gone = orphans(group.rows, there, ROW_TIMES[name], _time(before))
            if name in ("decisions", "deliveries", "rejected") and not self.dry_run:
                gone &= self._answers_none(name, group.rows, horizon)
            self._remove(name, log, group, gone, horizon)

    def _halves_left(self, ranges: Ranges, horizon: int, outstanding: pa.Table) -> pa.Table:
        """The half messages in these ranges, in a dry run without those that would be gone by then."""
        files, columns = _within(self._files("half"), ranges), (*KEY, *WHOSE, ROW_TIMES["half"])
        left = self._rows("half", [file for file in files if file.path not in self.going], columns)
        going = self._rows("half", [file for file in files if file.path in self.going], columns)
        return pa.concat_tables([left, going.filter(pa.array(~self._ended(going, horizon, outstanding)))])

    def _answers_none(self, name: str, rows: pa.Table, horizon: int) -> Mask:
        """Mask of the rows that end no COMMIT or op that is left: it would seem to be scheduled, or to decide.

        It may lie in a mixed file, which stays. Rows of `deliveries` and `rejected`, and CANCELs, go after it.
        """
        of, columns = ("op", KEY) if name == "rejected" else ("decisions", (*KEY, "state", "deliver_at"))
        left = self._rows(of, _within(self._files(of), _ranges(rows)), columns)
        if of == "decisions":
            left = left.filter(pc.and_(pc.equal(left.column("state"), "COMMIT"), left.column("deliver_at").is_valid()))
        free = orphans(rows, left, ROW_TIMES[name], _time(horizon))
        if name == "decisions":
            free |= pc.fill_null(pc.not_equal(rows.column("state"), "CANCEL"), True).to_numpy()
        return free

    def _remove_older(self, name: str, horizon: int | None) -> None:
        if horizon is None or not self._those([name]):
            return
        log = self.tables.open_log(name)
        for group in self._groups(name, log.data_files(_until(name, horizon))):
            old = pc.fill_null(pc.less(group.rows.column(_time_of(name)), _time(horizon)), False).to_numpy()
            if "batch_id" in group.rows.column_names:
                old &= ~self._under_way(group.rows, _time_of(name))
            self._remove(name, log, group, old, horizon)

    def _make_runs(self, horizon: int) -> None:
        """Of the batches finished before the horizon `batches` keeps runs: by them readers know which rows are whole.

        A run is complete when its last batch is: with one under way at the horizon none of it was there as of then.
        """
        name, log = "batches", self.tables.open_log("batches")
        done = self.removed.setdefault(name, Removed())
        for file in log.data_files(_until(name, horizon)):
            rows = rows_of(file.path, name)
            begun, finished = (pc.less(rows.column(each), _time(horizon)) for each in ("batch_time", "finished_at"))
            old = pc.fill_null(pc.and_(begun, finished), False)
            left = pa.concat_tables([runs_of(rows.filter(old)), rows.filter(pc.invert(old))])
            number = len(rows) - len(left)
            if 2 * number < len(rows):
                continue
            if not self.dry_run:
                path = file.path.removeprefix(f"{self.tables.location(name)}/")
                new = write_rows(name, self.tables.root, left)
                self._say(horizon)
                if not log.remove([path], new, never_back(log, versions_of(horizon, {})), changes=False):
                    continue
            done.rows, done.bytes = done.rows + number, done.bytes + file.size * number // len(rows)

    def _remove(self, name: str, log: DeltaLog, group: _Group, gone: Mask, horizon: int) -> None:
        """Remove the rows of a group that the mask names, from each file where that is worth a rewrite."""
        place, done = self.tables.location(name), self.removed.setdefault(name, Removed())
        files: list[DataFile] = []
        left: dict[str, pa.Array] = {}
        rows = size = 0
        for file, mask in zip(group.files, np.split(gone, np.cumsum(group.sizes)[:-1]), strict=True):
            number = int(mask.sum())
            if 2 * number < max(1, len(mask)):
                mask[:] = False
                continue
            files.append(file)
            if number < len(mask):
                left[file.path.removeprefix(f"{place}/")] = pa.array(~mask)
            rows, size = rows + number, size + file.size * number // len(mask)
        if self.dry_run:
            done.rows, done.bytes = done.rows + rows, done.bytes + size
            if name == "half":
                self.going.update(file.path for file in files)
        if not files or self.dry_run:
            return
        old = [file.path.removeprefix(f"{place}/") for file in files]
        new = [file for path, mask in left.items() for file in rewritten(name, self.tables.root, [path], {path: mask})]
        last = last_of_queues(group.rows, gone) if name == "half" else {}
        versions = never_back(log, versions_of(horizon, {queue: offset + 1 for queue, offset in last.items()}))
        if name in (*_FOLLOWING, "ticks"):
            self._say(horizon)
        topic = name.removeprefix(TOPIC_PREFIX)
        if topic != name:
            versions |= with_missed(log, self._missed.of(topic, files, horizon))
        if log.remove(old, new, versions, changes=topic != name):
            done.rows, done.bytes = done.rows + rows, done.bytes + size

    def _say(self, horizon: int) -> None:
        """Have `half` say the horizon, by which the other tables are read, though it may have lost no row itself."""
        log = self.tables.open_log("half")
        said = log.versions([HORIZON])
        if (said[HORIZON] or 0) < horizon:
            log.commit_after([], said, {HORIZON: horizon})

    def _not_published_before(self, horizon: int) -> pa.Table:
        """KEY of the messages in `unpublished` that wait there, or were published since the horizon."""
        columns = ("half_queue_id", "half_queue_offset", "real_topic", "application", "batch_id")
        rows = self._rows("unpublished", self._files("unpublished"), columns)
        found = [rows.select(list(columns[:2])).slice(0, 0)]
        topics = rows.column("real_topic").fill_null("")  # which no topic is
        for topic in topics.unique().to_pylist():
            of_topic = rows.filter(pc.equal(topics, topic))
            mine = of_topic.select(list(columns[:2]))
            outstanding = [mine]
            with _unless_damaged():
                left = mine.filter(waits(self.tables, of_topic))
                outstanding = [left, self._published_since(f"{TOPIC_PREFIX}{topic}", horizon, mine)]
            found += outstanding
        return pa.concat_tables(found).rename_columns(list(KEY))

    def _published_since(self, name: str, horizon: int, messages: pa.Table) -> pa.Table:
        """Those of the messages that a topic's table has as published since the horizon."""
        if name not in self.names:
            return messages.slice(0, 0)
        key = messages.column_names
        offsets = pc.min_max(messages.column("half_queue_offset")).as_py()
        within = {"published_at": (time_of(horizon), time_of(MS_MAX))}
        if offsets["min"] is not None:
            within["half_queue_offset"] = offsets["min"], offsets["max"]
        files = self.tables.log(name).data_files(within)
        found = (self._rows(name, [file], key).join(messages, key, join_type="left semi") for file in files)
        return pa.concat_tables([messages.slice(0, 0), *found])

    def _resumable(self) -> pa.Table:
        """KEY of the messages in `discarded`, which may be resumed, and of those made of them, so that it is once."""
        discarded = self._rows("discarded", self._files("discarded"), KEY)
        places = set(zip(*(discarded.column(name).to_pylist() for name in KEY), strict=True))
        if not places:
            return discarded
        log = self.tables.log("half")
        queues = sorted({self.settings.operator.queue} | operators_queues(log))
        files = log.data_files({"queue_id": (queues[0], queues[-1])})
        halves = self._rows("half", files, (*KEY, "properties"))
        halves = halves.filter(pc.is_in(halves.column("queue_id"), pa.array(queues, pa.int32())))
        made_of = [
            parse_place(dict(each or ()).get(RESUMED_FROM) or "") for each in halves.column("properties").to_pylist()
        ]
        made = halves.filter(pa.array([place in places for place in made_of], pa.bool_()))
        return pa.concat_tables([discarded, made.select(list(KEY))])

    def _files(self, name: str) -> list[DataFile]:
        return self.tables.log(name).data_files() if DeltaLog.exists(self.tables.location(name)) else []

    def _groups(self, name: str, those: Iterable[DataFile]) -> Iterator[_Group]:
        """These files, the oldest first, some million rows together."""
        time = _time_of(name)
        files: list[DataFile] = []
        rows = 0
        for file in sorted(those, key=lambda file: file.spans.get(time, ())):
            if files and rows + (file.rows or _TOGETHER) > _TOGETHER:
                yield self._group(name, files, time)
                files, rows = [], 0
            files.append(file)
            rows += file.rows or _TOGETHER
        if files:
            yield self._group(name, files, time)

    def _group(self, name: str, files: Sequence[DataFile], time: str) -> _Group:
        # One by one: of `rejected`, whose rows may have megabytes each, only the KEY stays.
        parts = [_keyed(name, rows_of(file.path, name, _columns(name, time)), time) for file in files]
        return _Group(files, [part.num_rows for part in parts], pa.concat_tables(parts))

    def _rows(self, name: str, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([arrow_schema(name).field(column) for column in columns])
        return pa.concat_tables([schema.empty_table(), *(rows_of(file.path, name, columns) for file in files)])


def _time_of(name: str) -> str:
    return ROW_TIMES.get(name, "published_at")


def _until(name: str, horizon: int) -> dict[str, tuple[datetime, datetime]]:
    """The span of a table's rows from before the horizon."""
    return {_time_of(name): (EPOCH, time_of(horizon))}


def _size_of_bodies(file: DataFile) -> int:
    """Bytes of a file of `half` that are bodies, by its footer."""
    with reading(file.path):
        metadata = pq.read_metadata(table_files.source(file.path))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema == "body")


@contextmanager
def _unless_damaged() -> Iterator[None]:
    """Leave a topic's table alone that cannot be read; whoever maintains it says so."""
    try:
        yield
    except StorageError as error:
        if of_machine(error):
            raise


def place_of(name: str) -> tuple[str, ...]:
    """The columns of KEY in a table, where its rows are about half messages."""
    there = arrow_schema(name).names
    of_half = tuple(f"half_{column}" for column in KEY)
    return next((columns for columns in (of_half, KEY) if set(columns) <= set(there)), ())


def _columns(name: str, time: str) -> tuple[str, ...]:
    return ("source", "file", "raw", "reason", time) if name == "rejected" else (*place_of(name), *_also(name), time)


def _also(name: str) -> tuple[str, ...]:
    of_batch = name == "discarded" or name.startswith(TOPIC_PREFIX)
    return ("batch_id",) if of_batch else {"half": WHOSE, "decisions": ("state",)}.get(name, ())


def _keyed(name: str, rows: pa.Table, time: str) -> pa.Table:
    """The rows with KEY and their time: those of a rejected op are in its text, which `reconcile` has written."""
    if name == "rejected":
        of_op = pc.and_(pc.equal(rows.column("source"), "op"), pc.is_null(rows.column("file")))
        place = pc.extract_regex(pc.if_else(of_op, rows.column("raw"), None), PLACE)
        again = repeated(rows)
        parts = [
            pc.coalesce(pc.struct_field(place, each).cast(arrow_schema("half").field(each).type), again.column(each))
            for each in KEY
        ]
    else:
        parts = [rows.column(each) for each in place_of(name)]
    more = {column: rows.column(column) for column in (*_also(name), time)}
    return pa.table([*parts, *more.values()], names=[*KEY[: len(parts)], *more])


def _within(files: Iterable[DataFile], ranges: Ranges) -> list[DataFile]:
    """Those files that, by their statistics, may have rows in these ranges of offsets, by queue."""

    def may(file: DataFile) -> bool:
        queues, offsets = file.spans.get("queue_id"), file.spans.get("queue_offset")
        return (
            queues is None
            or offsets is None
            or any(
                queues[0] <= queue <= queues[1] and first <= offsets[1] and offsets[0] <= last
                for queue, (first, last) in ranges.items()
            )
        )

    return [file for file in files if may(file)]


def _ranges(rows: pa.Table) -> Ranges:
    found = rows.select(list(KEY)).drop_null().group_by("queue_id").aggregate([("queue_offset", "min_max")])
    spans = found.column("queue_offset_min_max").to_pylist()
    return {
        queue: (span["min"], span["max"])
        for queue, span in zip(found.column("queue_id").to_pylist(), spans, strict=True)
    }


def _time(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1000, arrow_schema("half").field("store_timestamp").type)
