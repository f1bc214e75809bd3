"""Whether a Delta table, which anybody may have altered, still takes and yields plain Parquet files.

PROTOCOL.md of delta-io/delta: reader and writer versions, table features, column metadata.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from deltalake import Schema
from deltalake.schema import PrimitiveType

from checkback.errors import StorageError
from checkback.storage.schemas import FORMAT, FORMAT_PROPERTY, delta_schema, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deltalake import DeltaTable, Metadata

#: what Spark's DROP FEATURE leaves of some features: binds who removes what is old from the log, not who appends to it
_PROTECTED_LOG = "checkpointProtection"
#: table features that allow plain file appends and need no further fields in the checksum
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", _PROTECTED_LOG})
#: those with which Delta's own transaction takes plain files: it adds to them what the feature wants
_DELTA_FEATURES = _PLAIN_FEATURES | {
    "changeDataFeed",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "rowTracking",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
#: features that say nothing while properties, or the columns' metadata (`_RULES`), do not turn them on
_SWITCHED = frozenset({"changeDataFeed", "checkConstraints", "generatedColumns"})
#: the writer versions that support these, and what `_PLAIN_FEATURES` has
_LEGACY = (3, 4)
#: the columns that identify a topic's messages
KEY = frozenset({"half_queue_id", "half_queue_offset"})
#: missing columns that are told by name
_NAMED = 3
#: prefixes of column metadata keys that constrain or generate the column's values
_RULES = ("delta.", "CURRENT_DEFAULT", "EXISTS_DEFAULT")


def is_plain(table: DeltaTable) -> bool:
    """True if the table's rows are exactly those of its Parquet files (reader version 1, not partitioned)."""
    return table.protocol().min_reader_version == 1 and not table.metadata().partition_columns


def allows_files(
    writer_version: int,
    features: Collection[str],
    configuration: Mapping[str, str | None],
    plain: frozenset[str] = _PLAIN_FEATURES,
) -> bool:
    """True if a table of this protocol can be appended to by adding plain files; ``plain``: features that allow it.

    ``configuration``: its properties. Features that it does not use do not matter: whoever has turned one off cannot
    always remove it from the protocol.
    """
    unused = _SWITCHED - _used(configuration)
    if writer_version in _LEGACY:
        return unused == _SWITCHED
    return writer_version <= 2 or (writer_version == 7 and plain.issuperset({*features} - unused))


def _used(configuration: Mapping[str, str | None]) -> set[str]:
    """Which of the features that properties turn on are used."""
    found = {key.lower(): value for key, value in configuration.items()}  # Delta compares them so
    on = found.get("delta.enablechangedatafeed", "false") != "false"
    constrained = any(key.startswith("delta.constraints.") for key in found)
    return {name for name, used in (("changeDataFeed", on), ("checkConstraints", constrained)) if used}


def takes_files(table: DeltaTable, name: str) -> bool:
    """True if files of the table ``name`` can be added unchanged: it was not clustered, partitioned or altered.

    Additional nullable columns are allowed: files without them are still valid.
    """
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    allowed = allows_files(protocol.min_writer_version, features, metadata.configuration)
    return allowed and not metadata.partition_columns and _fits(table.schema(), name)


def adds_plain_columns(table: DeltaTable, name: str) -> bool:
    """True if no column that the table has besides those of the table ``name`` is nested: these can be rewritten."""
    ours = _columns(declared_schema(name))
    return all(field.name in ours or isinstance(field.type, PrimitiveType) for field in table.schema().fields)


def keeps_log(table: DeltaTable) -> bool:
    """True if nothing may be removed from the table's log without Spark's checks."""
    return _PROTECTED_LOG in (table.protocol().writer_features or ())


def delta_takes_files(metadata: Mapping[str, Any], protocol: Mapping[str, Any], name: str) -> bool:
    """As `takes_files`, for Delta's own transaction in the JVM. ``metadata``, ``protocol``: as their actions."""
    features, configuration = protocol.get("writerFeatures") or (), metadata.get("configuration") or {}
    allowed = allows_files(protocol["minWriterVersion"], features, configuration, _DELTA_FEATURES)
    return allowed and not metadata["partitionColumns"] and _fits(Schema.from_json(metadata["schemaString"]), name)


def _fits(schema: Schema, name: str) -> bool:
    """True if files of the table ``name`` have the schema's columns, but for additional nullable ones."""
    ours, found = _columns(declared_schema(name)), _columns(schema)
    more = {column for column, (_, nullable) in found.items() if column not in ours and nullable}
    plain = not any(key.startswith(_RULES) for field in schema.fields for key in field.metadata)
    return plain and {column: about for column, about in found.items() if column not in more} == ours


def has_columns(table: DeltaTable, name: str) -> bool:
    """True if the table has all columns of the table ``name``."""
    return set(_columns(declared_schema(name))) <= set(_columns(table.schema()))


def refuse_format(found: str | None, place: str) -> None:
    """Raises StorageError if a table's FORMAT_PROPERTY is not FORMAT; ``found``: None = it has none."""
    if found != FORMAT:
        raise StorageError(
            f"its property {FORMAT_PROPERTY} is {found or 'missing'}, this release reads format {FORMAT}",
            place,
            "use the release that made the table; if it is a copy made with SQL: "
            f"ALTER TABLE ... SET TBLPROPERTIES ('{FORMAT_PROPERTY}' = '{FORMAT}')",
        )


def has_key(table: DeltaTable) -> bool:
    """True if the table has the columns that identify a topic's messages."""
    return set(_columns(table.schema())) >= KEY


def schema_mismatch(table: DeltaTable, name: str) -> str:
    """What the table lacks to be the table ``name``, in a few words; empty if it has all columns in their types."""
    ours, found = _columns(declared_schema(name)), _columns(table.schema())
    missing = [column for column in ours if column not in found]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"it has no column {', '.join(missing[:_NAMED])}{more}"
    other = [column for column, (kind, _) in ours.items() if found[column][0] != kind]
    return f"its column {other[0]} is {found[other[0]][0]}, not {ours[other[0]][0]}" if other else ""


def adds_columns(before: tuple[Metadata, Schema], after: tuple[Metadata, Schema]) -> bool:
    """True if a table was altered only by adding nullable columns: what was written for it before still fits."""
    old, new = before[1].fields, after[1].fields
    more = [field for field in new if field.name not in {one.name for one in old}]
    return (
        after[0].partition_columns == before[0].partition_columns
        and after[0].configuration == before[0].configuration
        and [field for field in new if field not in more] == old
        and not any(not field.nullable or any(key.startswith(_RULES) for key in field.metadata) for field in more)
    )


def declared_schema(name: str) -> Schema:
    """The schema with which the table ``name`` is created."""
    return _declared(kind_of(name))


@cache
def _declared(kind: str) -> Schema:
    return Schema.from_json(delta_schema(kind))


def _columns(schema: Schema) -> dict[str, tuple[str, bool]]:
    """(type, nullable) by column name. Nullability of nested parts is ignored: it depends on the table's creator."""
    return {field.name: (field.type.to_json().replace("false", "true"), field.nullable) for field in schema.fields}
