"""Lines of a file -> rows of `half` or `op`, a batch of Arrow at a time; what is no message keeps its text and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa

from checkback.messages import Half, Op, Rejected, is_blank, parse_half, parse_ops

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Kind = Literal["half", "op"]
KINDS: tuple[Kind, ...] = ("half", "op")
#: What a line comes with, and what its rows keep: where it stood, and the time of its batch.
PLACE = ("file", "file_time", "file_block", "row", "store_timestamp")
#: Text of a rejected line is kept up to here.
RAW_MAX = 8 * 1024 * 1024
#: A line of ops may bring 100,000 rows: batches are cut so that no column outgrows Arrow's 2 GiB.
_ROWS_MAX = 10_000

_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "half_offset": pa.int64(),
    "real_queue_id": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "born_timestamp": _TIME,
    "check_immunity_s": pa.int32(),
    "file_time": _TIME,
    "file_block": pa.int64(),
    "row": pa.int64(),
    "store_timestamp": _TIME,
}
_FIELDS: dict[Kind, tuple[str, ...]] = {"half": Half._fields, "op": Op._fields}


def _columns(kind: Kind) -> tuple[str, ...]:
    return (*_FIELDS[kind], "raw", "reason", *PLACE)


def parsed_schema(kind: Kind) -> StructType:
    """Columns of the parsed rows: the message's, ``raw`` and ``reason`` (null = it is a message), and PLACE."""
    from pyspark.sql.types import StringType, StructField, StructType, TimestampType

    from checkback.tables import schema_of
    from pyspark.sql.types import LongType

    table = schema_of(kind)
    place = {"file_time": TimestampType(), "file_block": LongType(), "row": LongType()}
    return StructType(
        [
            StructField(name, table[name].dataType if name in table.names else place.get(name, StringType()))
            for name in _columns(kind)
        ]
    )
