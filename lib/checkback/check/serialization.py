"""Requests and answers of a batch's tasks, serialised as Arrow IPC bytes.

As Spark rows, converted to Arrow for Python and back, they would cost as much as the check itself: 50 us each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.check.worker import RETURNED
from checkback.storage.arrow_streams import of_stream, to_stream
from checkback.storage.spark_schemas import CHECK_REQUESTS

if TYPE_CHECKING:
    from checkback.check.worker import CheckWorker

Ask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: what a task returns: RETURNED, in any number of pieces
ANSWERS_SCHEMA = "answers BINARY"
_ANSWERS = pa.schema([("answers", pa.binary())])


def partition_requests(requests: pa.Table, tasks: int) -> list[bytes]:
    """``requests`` (CHECK_REQUESTS) partitioned over tasks as the input of CheckWorker, without messages."""
    names = CHECK_REQUESTS.names[:6]
    born = pc.floor_temporal(requests.column("born_timestamp"), unit="millisecond")
    asked = requests.select(names).append_column("born_ms", born.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    asked = asked.append_column("message", pa.nulls(requests.num_rows))
    # Round-robin: the requests of a group are adjacent, and go to all tasks.
    shares = [asked.take(np.arange(task, asked.num_rows, tasks)) for task in range(min(tasks, asked.num_rows))]
    return [to_stream(share).to_pybytes() for share in shares]


def check_partitions(worker: CheckWorker, shares: Sequence[bytes]) -> Ask:
    """The function for mapInArrow from the numbers of the shares to ANSWERS_SCHEMA."""

    def ask(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [shares[number] for batch in numbers for number in batch.column(0).to_pylist()]
        yield from check_rows(worker)(batch for share in mine for batch in of_stream(share).to_batches())

    return ask


def check_rows(worker: CheckWorker) -> Ask:
    """The function for mapInArrow from the input of CheckWorker to ANSWERS_SCHEMA."""

    def ask(requests: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answers in worker.ask(requests):
            block = to_stream(pa.Table.from_batches([answers])).to_pybytes()
            yield pa.RecordBatch.from_pydict({"answers": [block]}, schema=_ANSWERS)

    return ask


def answers_of(rows: pa.Table) -> pa.Table:
    """Deserialise ANSWERS_SCHEMA to RETURNED."""
    return pa.concat_tables([RETURNED.empty_table(), *map(of_stream, rows.column("answers").to_pylist())])
