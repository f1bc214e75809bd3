"""Half messages and ops as packed events: a few binary rows per segment instead of a row per event.

Spark passes rows to transformWithStateInPandas one by one in Python (TransformWithStateInPandasSerializer.load_stream),
which costs more than all decisions together. The rows of each Arrow batch are therefore packed before the shuffle: one
row per segment, with its EVENT records as bytes. Shuffle, sort and Python's loop then process hundreds of rows instead
of hundreds of thousands.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.records.segment_records import EVENT, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

#: input columns: those of EVENT, and the half queue
EVENT_COLUMNS = ("queue_id", *(EVENT.names or ()))
PACKED_SCHEMA = "segment STRING, events BINARY"


def segment_key(queue_id: int, number: int) -> str:
    """The grouping key: half queue and segment number. One column, readable in the state store."""
    return f"{queue_id}/{number}"


def parse_key(key: str, size: int) -> tuple[int, int]:
    """Queue id and first offset of the segment with this key."""
    queue_id, number = key.split("/")
    return int(queue_id), int(number) * size


def pack(queue_id: np.ndarray, events: Records, size: int) -> Iterator[tuple[str, bytes]]:
    """(segment key, EVENT bytes) for each segment of the events."""
    if not len(events):
        return
    number = events["offset"] // size
    order = np.lexsort((number, queue_id))
    queue_id, number, events = queue_id[order], number[order], events[order]
    starts = np.flatnonzero((np.diff(queue_id) != 0) | (np.diff(number) != 0)) + 1
    bounds = [0, *starts.tolist(), len(events)]
    for begin, end in pairwise(bounds):
        yield segment_key(int(queue_id[begin]), int(number[begin])), events[begin:end].tobytes()


def unpack(blocks: list[bytes]) -> Records:
    """The EVENT records of one segment."""
    return np.frombuffer(b"".join(blocks), EVENT)


def packer(size: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: EVENT_COLUMNS, none of them null, to PACKED_SCHEMA."""

    def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            events = np.empty(batch.num_rows, EVENT)
            for name in EVENT.names or ():
                # zero_copy_only rejects nulls, which would convert the column to floats.
                events[name] = batch.column(name).to_numpy(zero_copy_only=True)
            packed = list(pack(batch.column("queue_id").to_numpy(zero_copy_only=True), events, size))
            keys = pa.array([key for key, _ in packed], pa.string())
            blocks = pa.array([block for _, block in packed], pa.binary())
            yield pa.RecordBatch.from_arrays([keys, blocks], ["segment", "events"])

    return pack_batches
