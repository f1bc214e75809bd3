"""`checkback maintain`'s retention in a simulated world: the real RowRetention, on files made of the world's rows.

`Lake` are these files, for the erasure as well.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa

from checkback.maintain import row_retention
from checkback.settings import Settings
from checkback.settings.model import Gateway, Operator, Retention, Transaction
from checkback.storage import horizon as horizons
from checkback.storage.horizon import floors_of
from checkback.storage.log.snapshot_files import DataFile
from checkback.storage.schemas import CONTENT, TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import EPOCH, time_of
from simulator.reconcile import CrashError
from simulator.tables import NOTHING, Batch, Half, Op, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from simulator.tables import Tables

    Row = tuple[int, Any]

TOPIC = "topics/payments"
#: by table, the column of its rows' time, which is ``at`` there, or ``store`` (us)
_TIMES = {
    **dict.fromkeys(("half", "op"), "store_timestamp"),
    TOPIC: "published_at",
    "decisions": "decided_at",
    "deliveries": "delivered_at",
    "discarded": "discarded_at",
    "check_requests": "requested_at",
    "check_answers": "answered_at",
    "rejected": "rejected_at",
    "batches": "batch_time",
}


def settings_of(history: int, max_age: int, topics: int | None) -> Settings:
    """Times in ms; ``topics`` None: messages are kept for ever."""
    of_topics = None if topics is None else timedelta(milliseconds=topics)
    return Settings.model_construct(
        retention=Retention.model_construct(history=timedelta(milliseconds=history), topics=of_topics),
        transaction=Transaction.model_construct(max_age=timedelta(milliseconds=max_age)),
        operator=Operator(),
        gateway=Gateway.model_construct(dedup_window=timedelta(0)),
    )


def floor(tables: Tables, queue: int) -> int:
    """The lowest offset that a half queue still takes."""
    return floors_of(log_of(tables, "half"), [queue]).get(queue, 0)


def log_of(tables: Tables, name: str) -> Any:
    """A table's log."""
    return _Log(Lake(tables, 1, None), name)


def retain(
    tables: Tables,
    settings: Settings,
    now: int,
    size: int,
    crash: int | None,
    unread: Mapping[str, Callable[[Sequence[Any]], int]],
    rules: ModuleType = row_retention,
) -> str:
    """One run over files of ``size`` rows; what it removed. Raises CrashError before commit number ``crash``.

    ``unread``: by consumer group, how many of some messages it has not consumed. ``rules``: a test gives a broken
    row_retention.
    """
    lake: Any = Lake(tables, size, crash)
    there = SimpleNamespace(exists=lambda _: True)
    parts = {"rows_of": lake.rows_of, "rewritten": lake.rewritten, "write_rows": lake.write_rows, "DeltaLog": there}
    parts["MissedMessages"] = lambda lake: SimpleNamespace(of=partial(lake.missed, unread))
    with ExitStack() as stack:
        stack.enter_context(patch.dict(rules.RowsInFiles.groups.__globals__, parts))
        stack.enter_context(patch.object(horizons, "DeltaLog", there))
        found = rules.RowRetention.by_files(lake, settings, [*_TIMES], now, False).run()
    return ", ".join(f"{name} -{one.rows}" for name, one in found.items() if one.rows) or "nothing"


class Lake:
    """The tables as storage.tables.Tables; a table's location is its name."""

    readable, by_files, root = True, True, ""

    def __init__(self, tables: Tables, size: int, crash: int | None) -> None:
        self.tables = tables
        self._left = crash
        self._made = 0
        self._whole = ""
        self._files: dict[str, dict[str, list[Row]]] = {name: {} for name in (*_TIMES, "unpublished")}
        for name in _TIMES:
            rows = list(zip(tables.places[_own(name)], tables.rows[_own(name)], strict=True))
            for first in range(0, len(rows), size):
                self.add(name, rows[first : first + size])

    def location(self, name: str) -> str:
        return name

    def log(self, name: str) -> _Log:
        return _Log(self, name)

    open_log = log

    def files(self, name: str) -> list[DataFile]:
        """With statistics of the time, and the number of rows."""
        found = []
        for path, rows in self._files[name].items():
            times = [row.store // 1000 if hasattr(row, "store") else row.at for _, row in rows]
            spans = {_TIMES[name]: (time_of(min(times)), time_of(max(times)))}
            found.append(DataFile(path, len(rows), spans, len(rows)))
        return found

    def rows_of(self, path: str, name: str, columns: Sequence[str] = ()) -> pa.Table:
        """As compaction.rows_of."""
        schema = arrow_schema(name)
        self._whole = self._whole if columns else path
        schema = pa.schema([schema.field(column) for column in columns or schema.names])
        return pa.Table.from_pylist([_columns(name, row) for _, row in self._files[name][path]], schema)

    def rewritten(self, name: str, root: str, paths: Sequence[str], left: Mapping[str, pa.Array]) -> list[list[Row]]:  # noqa: ARG002 - as compaction.rewritten
        """The rows that stay."""
        rows = [row for path in paths for row in zip(self._files[name][f"{name}/{path}"], left[path], strict=True)]
        return [[row for row, stays in rows if stays.as_py()]]

    def write_rows(self, name: str, root: str, rows: pa.Table) -> list[list[Row]]:  # noqa: ARG002 - as compaction.write_rows
        """Rows of `batches`; of another table those of the file that was read last, emptied."""
        if name != "batches":
            there = zip(self._files[name][self._whole], rows.to_pylist(), strict=True)
            return [[_emptied(row, columns) for row, columns in there]]
        place = {row: place for file in self._files[name].values() for place, row in file}
        found = [_batch(row) for row in rows.to_pylist()]
        last = {(row.app, row.batch): at for row, at in place.items()}
        return [[(last[row.app, row.batch], row) for row in found]]

    def missed(
        self, unread: Mapping[str, Callable[[Sequence[Any]], int]], topic: str, files: Sequence[DataFile], horizon: int
    ) -> dict[str, int]:
        """As missed_messages.MissedMessages.of."""
        assert topic == TOPIC.removeprefix(TOPIC_PREFIX)
        rows = [row for file in files for _, row in self._files[TOPIC][file.path] if row.at < horizon]
        return {group: number for group, count in unread.items() if (number := count(rows))}

    def add(self, name: str, rows: list[Row]) -> None:
        """A file."""
        self._made += 1
        self._files[name][f"{name}/{self._made}"] = rows

    def commit(self, name: str, old: Iterable[str], new: Iterable[list[Row]], versions: Mapping[str, int]) -> None:
        """Replace these files."""
        if self._left == 0:
            raise CrashError(f"before a commit to {name}")
        self._left = None if self._left is None else self._left - 1
        for path in old:
            del self._files[name][f"{name}/{path}"]
        for rows in new:
            self.add(name, rows)
        kept = sorted(row for rows in self._files[name].values() for row in rows)
        self.tables.keep(_own(name), kept, versions)


class _Log:
    """As storage.log.delta_log.DeltaLog."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake, self._name = lake, name

    def maintainable(self) -> bool:
        return True

    def data_files(self, within: object = None) -> list[DataFile]:  # noqa: ARG002 - statistics may always be missing
        return self._lake.files(self._name)

    def versions(self, apps: Iterable[str]) -> dict[str, int | None]:
        return {app: self._lake.tables.last_version(_own(self._name), app) for app in apps}

    def applications(self) -> dict[str, int]:
        return {}  # no operator has resumed anything

    def remove(self, old: Iterable[str], left: Iterable[list[Row]], versions: Mapping[str, int], changes: bool) -> bool:  # noqa: ARG002
        self._lake.commit(self._name, old, left, versions)
        return True

    def commit_after(self, rows: object, found: object, versions: Mapping[str, int]) -> bool:  # noqa: ARG002
        self._lake.commit(self._name, [], [], versions)
        return True


def _own(name: str) -> str:
    return "topics" if name == TOPIC else name


def _columns(name: str, row: Any) -> dict[str, Any]:
    """A row by the columns that retention and an erasure read."""
    if name == "batches":
        return batch_columns(row)
    time = {_TIMES[name]: row.store if hasattr(row, "store") else row.at * 1000}
    if name == "rejected":
        of, more = row.row, "" if isinstance(row.row, Op) else f',"keys":"{key_of(row.row)}","tags":"{row.row.body}"'
        named = f'"transaction_id":"{name_of(of.transaction)}","producer_group":"{of.group}"{more}}}'
        raw = None if of[7:8] == (NOTHING,) else f'{{"queue_id":{of.queue},"queue_offset":{of.offset},{named}'
        erased = {"erased_at": None if raw else EPOCH}
        return {"source": "op" if isinstance(of, Op) else "half", "raw": raw, **time, **erased}
    half = "half_" if name == TOPIC else ""
    found = {f"{half}queue_id": row.queue, f"{half}queue_offset": row.offset, **time}
    if name == "decisions":
        found |= {"batch_id": row.batch, "state": row.state, "deliver_at": row.deliver_at * 1000 or None}
    if name in ("deliveries", "discarded", TOPIC):
        found |= {"batch_id": row.batch}
    found |= {"transaction_id": name_of(row.transaction), "producer_group": str(row.group)}
    return found | (_content(row) if hasattr(row, "body") else {})


def name_of(transaction: int) -> str:
    """A transaction id."""
    return f"tx-{transaction}"


def key_of(row: Any) -> str:
    """A message's key, which others have as well."""
    return f"customer-{row.transaction % 3}"


def _content(row: Any) -> dict[str, Any]:
    if row.body == NOTHING:
        return {"real_topic": "payments", "erased_at": EPOCH}
    text = str(row.body)
    named = {"keys": f"{key_of(row)} {text}", "tags": text, "properties": [("customer", key_of(row))]}
    return {"real_topic": "payments", "body": text.encode(), **named}


def _emptied(row: Row, columns: Mapping[str, Any]) -> Row:
    """A row as an erasure leaves it: ``columns``."""
    place, there = row
    left = [columns.get(name) for name in (*CONTENT, "raw") if columns.get(name) is not None]
    is_erased = columns["erased_at"] is not None
    assert is_erased != bool(left), f"{there} is erased in part: {columns}"
    if not is_erased:
        return row
    if isinstance(there, Rejected):
        assert isinstance(there.row, Half), f"{there} is not known any more, and a rebuild would take it"
        return place, there._replace(row=there.row._replace(body=NOTHING))
    return place, there._replace(body=NOTHING)


def batch_columns(row: Batch) -> dict[str, Any]:
    return {
        "application": row.app,
        "batch_id": row.batch,
        "batch_time": row.at * 1000,
        "finished_at": row.finished * 1000,
        "committed": row.committed,
        "scheduled": row.scheduled,
        "delivered": row.delivered,
        "table_versions": [],
        "first_batch_id": row.first,
        "first_batch_time": None if row.first_at is None else row.first_at * 1000,
    }


def _batch(row: Mapping[str, Any]) -> Batch:
    def ms(name: str) -> Any:
        return None if row[name] is None else round(row[name].timestamp() * 1000)

    counts = row["committed"], row["scheduled"], row["delivered"]
    named = row["application"], row["batch_id"], ms("batch_time"), ms("finished_at")
    return Batch(*named, *counts, row["first_batch_id"], ms("first_batch_time"))
