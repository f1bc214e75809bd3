"""Rows with text that is not UTF-8, as another writer may store them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from checkback.storage.log.compatibility import declared_schema
from checkback.storage.schemas import FORMAT, FORMAT_PROPERTY, arrow_schema

#: bytes that are no UTF-8, as long as "bad"; and what is shown in their place
BAD, REPLACED = b"\xff\xfed", "\ufffd\ufffdd"


def append_odd(root: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Append rows to a table, as another writer, with BAD wherever a text is "bad"."""
    configuration = {FORMAT_PROPERTY: FORMAT}
    place, schema = f"{root}/{name}", declared_schema(name)
    DeltaTable.create(place, schema, mode="ignore", configuration=configuration, raise_if_key_not_exists=False)
    write_deltalake(place, bad_texts(pa.Table.from_pylist(rows, arrow_schema(name))), mode="append")


def bad_texts(rows: pa.Table) -> pa.Table:
    """The rows with BAD wherever a text is "bad"."""
    columns = [pa.chunked_array([_bad(chunk) for chunk in column.chunks], column.type) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def _bad(values: Any) -> Any:
    """In copies of the buffers of the text, which holds "bad" only where it is to be replaced."""
    whole = pa.concat_arrays([values])  # so that the buffers are its own
    buffers = [
        None if buffer is None else pa.py_buffer(buffer.to_pybytes().replace(b"bad", BAD)) for buffer in whole.buffers()
    ]
    return _of_buffers(whole.type, len(whole), whole.offset, iter(buffers), whole)


def _of_buffers(kind: pa.DataType, length: int, offset: int, buffers: Any, values: Any) -> Any:
    if pa.types.is_struct(kind):
        own = [next(buffers)]
        children = [values.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        own = [next(buffers), next(buffers)]
        children = [pa.StructArray.from_arrays([values.keys, values.items], fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_list(kind):
        own, children = [next(buffers), next(buffers)], [values.values]
    else:
        own = [next(buffers) for _ in values.buffers()]
        children = []
    made = [_of_buffers(child.type, len(child), child.offset, buffers, child) for child in children]
    return pa.Array.from_buffers(kind, length, own, offset=offset, children=made)
