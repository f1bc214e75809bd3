"""Erasure: what identifies a person is taken out of messages; rows, ids and times stay.

The files that hold such messages are replaced by ones without, in one commit a table, `half` last: a run that breaks
off is continued by the same command, because what is left is still selected. Streams do not see the commits
(dataChange=false), as of a compaction. The files before them leave the disk as those of a compaction do, with
`maintain`, or at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import CheckbackError, FencedError, SettingsError
from checkback.maintain import table_folder
from checkback.maintain.compaction import rows_of, write_rows
from checkback.maintain.erasure_selection import BATCH, SELECTED_BY, WHO, erased, keyed, of_whole_batches, owed
from checkback.maintain.maintenance import LOCK, names
from checkback.maintain.retained_rows import place_of
from checkback.maintain.streams import needs_spark, readers, removal_hold
from checkback.reconcile.publish.published_notes import waits
from checkback.settings.values import SHORTEST_RETENTION
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.lock import exclusive_lock
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import ms_of
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from checkback.maintain.erasure_selection import Mask, Selection
    from checkback.maintain.file_retention import Reader
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables

_T = TypeVar("_T")
#: the application, of Delta's transaction identifiers, whose version is the time of the last erasure in a table (ms)
ERASURE = "erasure"
#: other tables than those of topics that hold messages
_HOLD = ("unpublished", "dead_letters", "discarded", "rejected", "half")


#: by table, the column with a message's topic
TOPIC_OF = {"dead_letters": "topic", "half": "real_topic", "discarded": "real_topic", "unpublished": "real_topic"}


@dataclass(frozen=True)
class Erasable:
    """What a selection finds: ``messages``: WHO and ``real_topic``, each once; by table the rows; who is still owed.

    ``found``: by table what `Erasure.empty` needs.
    """

    messages: pa.Table
    rows: Mapping[str, int]
    owed: Sequence[Mapping[str, Any]]
    found: Mapping[str, Sequence[Any]] = field(repr=False)

    def refusal(self) -> OwedError:
        """Why it is not erased as it is. Some must be ``owed``."""
        states = Counter(row["state"] for row in self.owed)
        one = self.owed[0]
        where = f"transaction {one['queue_id']}/{one['queue_offset']}"
        if states["unpublished"]:
            fix = "mend the topic's table: `checkback tx list --state unpublished` says why"
            return OwedError(f"waits in `unpublished` ({states['unpublished']} such messages)", where, fix)
        many = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        return OwedError(f"has not ended (in all {many})", where, "wait, or give --cancel to end them")


class OwedError(CheckbackError):
    """Messages that have not ended cannot be erased: what became of them could not be told any more."""


@dataclass(frozen=True)
class Erasure:
    """An erasure of the messages of a selection, by files (`SqlErasure`: by SQL). Raises StorageError."""

    tables: Tables
    selection: Selection

    def __post_init__(self) -> None:
        """Raises SettingsError for a table that somebody has altered."""
        for name in self.names():
            if not self.tables.log(name).maintainable():
                raise SettingsError(
                    "somebody has clustered, partitioned or altered the table", name, "undo it (docs/tables.md)"
                )

        topics = f"{self.tables.root}/{TOPIC_PREFIX}"
        for topic in table_files.folders(topics):
            place = topics + topic
            if not DeltaLog.exists(place) and table_folder.data_files(place):
                what = "has files but no log: what they hold could not be erased"
                raise SettingsError(what, TOPIC_PREFIX + topic, "put its log back, or remove the folder")

    def lock(self) -> AbstractContextManager[object]:
        """Neither `maintain` nor another erasure may run meanwhile. Raises FencedError."""
        return exclusive_lock(self.tables, LOCK)

    def find(self) -> Erasable:
        """What there is to erase now."""
        schema = arrow_schema("half")
        empty = pa.schema([schema.field(each) for each in (*WHO, "real_topic")]).empty_table()
        names = self.names()
        parts = [part.cast(empty.schema) for name in names if name != "rejected" for part in self.selected(name)]
        messages = pa.concat_tables([empty, *parts]).group_by([*WHO, "real_topic"]).aggregate([])
        messages = messages.group_by(list(WHO)).aggregate([("real_topic", "min")]).rename_columns([*WHO, "real_topic"])
        halves = list(self.rows("half", messages)) if "half" in names else []
        owing = self._owed(self.who(halves))  # before the others are read: all that was written of it is there then
        names = self.names()  # again: a batch may have created its topic's table meanwhile
        found = {name: halves if name == "half" else list(self.rows(name, messages)) for name in names}
        rows = {name: self.count(those) for name, those in found.items() if those}
        return Erasable(messages, rows, owing, found)

    def erase(self, found: Erasable, at: datetime) -> None:
        """Erase it, within `lock`. Raises OwedError if some of it has not ended."""
        if found.owed:
            raise found.refusal()
        for name, those in found.found.items():
            if those:
                self.empty(name, those, at)

    def empty(self, name: str, files: Sequence[tuple[DataFile, Mask]], at: datetime) -> None:
        """Erase these rows of a table, see `rows`. Raises FencedError."""
        time = pa.scalar(at, arrow_schema("half").field("erased_at").type)
        place = f"{self.tables.location(name)}/"
        new = [
            written
            for file, mask in files
            for written in write_rows(name, self.tables.root, erased(rows_of(file.path, name), mask, time))
        ]
        old = [file.path.removeprefix(place) for file, _ in files]
        if not self.tables.open_log(name).remove(old, new, {ERASURE: ms_of(at)}, changes=False):
            raise FencedError("another process has rewritten files of the table", name, "run it again")

    def remove_files(self, now: int) -> list[str]:
        """Remove the files that are not current, of all tables that hold messages: retention may have replaced some.

        Except those that a stream of ours has yet to read, and those younger than an hour that no commit has removed:
        they may be of one still to come. ``now``: ms. Returns why files had to stay, a line each.
        """
        if needs_spark(self.tables):
            return ["where streams stand is in a checkpoint that Spark reads: `checkback maintain` removes the files"]
        held = removal_hold(self.tables, None)
        if held is not None:
            return [held]
        mine = readers(self.tables, None)
        return [
            why
            for name in self.names()
            for why in self._remove_files(name, [one for _, one in mine.get(name, ())], now)
        ]

    def _remove_files(self, name: str, mine: Sequence[Reader], now: int) -> Iterator[str]:
        place, log = self.tables.location(name), self.tables.open_log(name)
        entries = table_folder.read_log(place)
        lying = table_folder.data_files(place)
        old = lying.keys() - log.paths()
        before = now - SHORTEST_RETENTION // timedelta(milliseconds=1)
        since = min((version for version, at in entries.commits.items() if at >= before), default=log.version() + 1)
        young = {path for path in old if lying[path].written >= before}
        uncommitted = young - table_folder.removed_since(place, entries, since)
        old -= uncommitted
        needed = set[str]().union(
            *(log.paths(max(one.snapshot, entries.readable())) for one in mine if one.snapshot is not None)
        )
        unread = min((one.unread for one in mine), default=log.version() + 1)
        needed |= table_folder.added_since(place, entries, unread)
        log.flush()
        table_folder.remove_data(place, sorted(old - needed))
        if old & needed:
            yield f"{name}: {len(old & needed)} files stay until `reconcile` has read them"
        if uncommitted:
            yield f"{name}: {len(uncommitted)} files of the last hour stay, which no commit names: a process was killed"

    def names(self) -> list[str]:
        """The tables that hold messages, `half` last."""
        return that_hold(names(self.tables.root))

    def selected(self, name: str) -> Iterator[pa.Table]:
        """WHO and real_topic of the rows that the selection itself finds in a table, by file."""
        place = place_of(name)
        columns = [*place, *SELECTED_BY, *([TOPIC_OF[name]] if name in TOPIC_OF else [])]

        def found(file: DataFile) -> pa.Table:
            rows = valid_texts(rows_of(file.path, name, columns))
            rows = rows.filter(pa.array(self.selection.mask(rows)))
            topics = rows.column(TOPIC_OF[name]) if name in TOPIC_OF else [name.removeprefix(TOPIC_PREFIX)] * len(rows)
            return pa.table([*(rows.column(each) for each in (*place, *WHO[2:])), topics], [*WHO, "real_topic"])

        return self._each(name, found)

    def rows(self, name: str, messages: pa.Table) -> Iterator[Any]:
        """The rows of a table to erase: by files, these and a mask of each."""
        if name == "rejected":
            columns: Sequence[str] = ("source", "file", "raw", "reason", "erased_at")
        else:
            columns = (*place_of(name), *WHO[2:], "erased_at")

        def mask(file: DataFile) -> tuple[DataFile, Mask]:
            rows = valid_texts(rows_of(file.path, name, columns))
            if name == "rejected":
                return file, self.selection.mask_rejected(rows, messages)
            return file, keyed(rows.rename_columns([*WHO, "erased_at"]), messages)

        within = None if name == "rejected" else {columns[1]: span_of(messages)}
        if name == "rejected" or len(messages):
            yield from ((file, found) for file, found in self._each(name, mask, within) if found.any())

    def count(self, files: Sequence[tuple[DataFile, Mask]]) -> int:
        """The number of such rows."""
        return sum(int(mask.sum()) for _, mask in files)

    def who(self, files: Sequence[tuple[DataFile, Mask]]) -> pa.Table:
        """WHO of such rows of `half`."""
        parts = [valid_texts(rows_of(file.path, "half", WHO)).filter(pa.array(mask)) for file, mask in files]
        return pa.concat_tables([_empty("half", WHO), *parts])

    def of_offsets(self, name: str, columns: Sequence[str], messages: pa.Table) -> pa.Table:
        """The rows of a table at the offsets of these messages, and maybe more."""
        offsets = messages.column("queue_offset")

        def read(file: DataFile) -> pa.Table:  # of each file at once: there may be millions of others in between
            rows = rows_of(file.path, name, columns)
            return valid_texts(rows.filter(pc.is_in(rows.column("queue_offset"), value_set=offsets)))

        return pa.concat_tables([_empty(name, columns), *self._each(name, read, {"queue_offset": span_of(messages)})])

    def all_of(self, name: str, columns: Sequence[str]) -> pa.Table:
        """All rows of a table."""
        read = self._each(name, lambda file: valid_texts(rows_of(file.path, name, columns)))
        return pa.concat_tables([_empty(name, columns), *read])

    def waits(self, rows: pa.Table) -> pa.Array:
        """See `published_notes.waits`."""
        return waits(None, self.tables, rows)

    def _owed(self, messages: pa.Table) -> list[dict[str, Any]]:
        if not len(messages):
            return []
        # Of a batch under way some of the rest may not be there yet.
        batches = self.all_of("batches", BATCH)
        decisions = self.of_offsets("decisions", (*WHO, "state", "deliver_at", "decided_at", "batch_id"), messages)
        decided = of_whole_batches(decisions, "decided_at", batches)
        deliveries = self.of_offsets("deliveries", (*WHO, "delivered_at", "batch_id"), messages)
        delivered = of_whole_batches(deliveries, "delivered_at", batches)
        return owed(messages, decided, delivered, self._waiting())

    def _waiting(self) -> pa.Table:
        """WHO of the messages that wait in `unpublished`."""
        columns = (*place_of("unpublished"), *WHO[2:], "real_topic", "application", "batch_id")
        rows = self.all_of("unpublished", columns)
        return rows.filter(self.waits(rows)).select(list(columns[:4])).rename_columns(list(WHO))

    def _files(self, name: str, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
        return self.tables.log(name).data_files(within) if DeltaLog.exists(self.tables.location(name)) else []

    def _each(
        self, name: str, read: Callable[[DataFile], _T], within: Mapping[str, tuple[Any, Any]] | None = None
    ) -> Iterator[_T]:
        yield from concurrently(self.tables.root, read, self._files(name, within))


def that_hold(there: Collection[str]) -> list[str]:
    """Of these tables those that hold messages, `half` last."""
    return [*(name for name in there if name.startswith(TOPIC_PREFIX)), *(name for name in _HOLD if name in there)]


def span_of(messages: pa.Table) -> tuple[int, int]:
    """The first and the last offset."""
    found = pc.min_max(messages.column("queue_offset")).as_py()
    return found["min"] or 0, found["max"] or 0


def _empty(name: str, columns: Sequence[str]) -> pa.Table:
    return pa.schema([arrow_schema(name).field(column) for column in columns]).empty_table()
