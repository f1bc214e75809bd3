"""What the tasks of a batch run: functions for mapInArrow, Arrow in and Arrow out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.files import MOST_ROWS, FileWriter, file_rows
from checkback.reconcile import halves
from checkback.reconcile.rows import store_us, table_rows, whole_numbers
from checkback.reconcile.wanted import Found, Wanted
from checkback.schemas import HALF, arrow_schema

if TYPE_CHECKING:
    from checkback.reconcile.halves import Piece

Batches = Iterable[pa.RecordBatch]

SURVEY_SCHEMA = "name STRING, note BINARY"


def picker(wanted: Wanted, folder: str, sync: bool = True) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that writes the files of all tables: rows of `half` in, FILES_SCHEMA out."""

    def pick(batches: Batches) -> Iterator[pa.RecordBatch]:
        found = Found(wanted)
        with FileWriter(folder, most_rows=MOST_ROWS, sync=sync) as writer:
            for name, rows in _tables_of(batches, wanted, found):
                writer.write(name, rows)
            yield file_rows(writer.close(), found.note())

    return pick


def reader(
    lists: Sequence[Sequence[Piece]], wanted: Wanted, with_body: bool, folder: str, sync: bool = True
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """As `picker`, but its input are the numbers of the lists, whose pieces it reads itself."""
    pick = picker(wanted, folder, sync)

    def read(numbers: Batches) -> Iterator[pa.RecordBatch]:
        mine = [piece for batch in numbers for number in batch.column(0).to_pylist() for piece in lists[number]]
        yield from pick(batch for piece in mine for batch in halves.read(piece, wanted, with_body))

    return read


def surveyor(wanted: Wanted) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that only looks: name of each table that gets rows, and a note of what was found."""

    def survey(batches: Batches) -> Iterator[pa.RecordBatch]:
        found = Found(wanted)
        names = {name for name, _ in _tables_of(batches, wanted, found)}
        schema = pa.schema([("name", pa.string()), ("note", pa.binary())])
        rows = [{"name": name} for name in sorted(names)]
        yield pa.RecordBatch.from_pylist([*rows, {"note": found.note()}], schema)

    return survey


def selector(wanted: Wanted, table: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that makes the rows of one table."""

    def select(batches: Batches) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(table)
        for name, rows in _tables_of(batches, wanted, Found(wanted)):
            if name == table:
                yield rows.select(schema.names).cast(schema)

    return select


def _tables_of(batches: Batches, wanted: Wanted, found: Found) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        identity = None
        if wanted.identity is not None:
            identity = whole_numbers(batch.column("group_hash")), whole_numbers(batch.column("transaction_hash"))
        queue_id, offset = whole_numbers(batch.column("queue_id")), whole_numbers(batch.column("queue_offset"))
        rows, records = wanted.find(queue_id, offset, store_us(batch), identity)
        if len(rows):
            found.add(records)
            yield from table_rows(batch.select(HALF.names), rows, wanted.records[records], wanted)
