"""Times as Python has them: years 1 to 9999. Delta, Spark and Arrow go on to the year 294247, before and after."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages import MS_MAX

#: us: 0001-01-01 and the last millisecond of the year 9999, which is also the last that a producer may state
LEAST, MOST = -62_135_596_800_000_000, MS_MAX * 1000


def python_times(rows: pa.Table) -> pa.Table:
    """The rows with times beyond, which other writers' rows may have, at the nearest end of what Python has.

    For what is read as Python objects: `to_pylist` fails for the others.
    """
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "us":
            times = rows.column(place).cast(pa.int64())
            span = pc.min_max(times)
            if pc.less(span["min"], LEAST).as_py() or pc.greater(span["max"], MOST).as_py():
                times = pc.max_element_wise(times, LEAST, skip_nulls=False)
                times = pc.min_element_wise(times, MOST, skip_nulls=False)
                rows = rows.set_column(place, field, times.cast(field.type))
    return rows
