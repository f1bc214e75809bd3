"""Data files as other writers have them: the same values in other Arrow types."""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT, _BINARY, _TIME = pa.string(), pa.binary(), pa.timestamp("us", "UTC")


def _texts(other: dict[pa.DataType, pa.DataType]) -> Callable[[pa.DataType], pa.DataType]:
    return lambda kind: other.get(kind, kind)


def _large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field)
    return {_TEXT: pa.large_string(), _BINARY: pa.large_binary()}.get(kind, kind)


#: by name, what a writer has in the place of a type
KINDS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "view": _texts({_TEXT: pa.string_view(), _BINARY: pa.binary_view()}),
    "large": _large,
    "dictionary": _texts({kind: pa.dictionary(pa.int32(), kind) for kind in (_TEXT, _BINARY)}),
    "milliseconds": _texts({_TIME: pa.timestamp("ms", "UTC")}),
    "nanoseconds": _texts({_TIME: pa.timestamp("ns", "UTC")}),
    "another zone": _texts({_TIME: pa.timestamp("us", "America/New_York")}),
    "no zone": _texts({_TIME: pa.timestamp("us")}),
}


def other_schema(schema: pa.Schema, *kinds: str) -> pa.Schema:
    """The columns in the types of each of the kinds, also within maps and lists."""
    for kind in kinds:
        schema = pa.schema([(field.name, _other(field.type, KINDS[kind])) for field in schema])
    return schema


def _other(kind: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(_other(kind.key_type, other), pa.field(item.name, _other(item.type, other), item.nullable))
    if pa.types.is_list(kind):
        return other(pa.list_(kind.value_field.with_type(_other(kind.value_type, other))))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_other(field.type, other)) for field in kind])
    return other(kind)


def rewrite(place: str, *kinds: str) -> None:
    """Replace each of the table's files by one with the same rows in the types of these kinds, in one commit."""
    table = DeltaTable(place)
    actions: list[AddAction | RemoveAction] = []
    for file in pa.table(table.get_add_actions()).to_pylist():
        rows = pq.ParquetFile(f"{place}/{file['path']}").read()
        path = f"part-{uuid.uuid4()}.snappy.parquet"
        pq.write_table(pa.table(_converted(rows, kinds)), f"{place}/{path}", row_group_size=2)
        told = json.dumps({"numRecords": rows.num_rows})
        actions.append(RemoveAction(file["path"], False, 0))
        actions.append(AddAction(path, os.path.getsize(f"{place}/{path}"), {}, 0, False, told))
    table.create_write_transaction(actions, "append", table.schema())


def _converted(rows: pa.Table, kinds: tuple[str, ...]) -> Any:
    schema = other_schema(rows.schema, *kinds)
    return pa.Table.from_arrays([rows.column(each.name).cast(each.type, safe=False) for each in schema], schema=schema)
