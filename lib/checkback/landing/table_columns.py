"""What a row of a Delta table says, as the JSON object of its message: columns, and expressions of `--map`.

An outbox's columns are those of Debezium's outbox event router; half messages and ops have the fields of
docs/landing.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from checkback.errors import SettingsError, one_line
from checkback.messages import half, op
from checkback.messages.fields import unknown
from checkback.messages.limits import LINE_MAX, MS_MAX, ORDERING_KEY_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import Column, DataFrame

#: Debezium's columns (route.by.field, table.field.event.id, .key, .payload), by field
OUTBOX = {
    "transaction_id": "id",
    "real_topic": "aggregatetype",
    "keys": "aggregateid",
    "ordering_key": "aggregateid",
    "tags": "type",
    "body": "payload",
    "properties": "headers",
    "born_timestamp": "timestamp",
}
#: of an outbox's rows in a batch: not a field, but a number or time by which they get their offsets
ORDER = "order"
#: producer group of an outbox's messages
GROUP = "outbox"
_NEEDED = ("transaction_id", "real_topic", "body")
_NOT_OF_OUTBOX = {"queue_id", "queue_offset", "committed"}
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_INSTANTS = (T.TimestampType, T.TimestampNTZType, T.DateType)
_NESTED = (T.StructType, T.MapType, T.ArrayType, T.VariantType)
#: characters of `keys` and `tags` that a default takes: more could make the row no valid message
_LONGEST = 4096
_PAIR = re.compile(r"([A-Za-z_]+)=(.*)", re.DOTALL)


def mapping_of(pairs: Iterable[str]) -> dict[str, str]:
    """The expression by field of ``NAME=EXPRESSION`` each. Raises SettingsError."""
    found: dict[str, str] = {}
    for pair in pairs:
        match = _PAIR.fullmatch(pair)
        if match is None or not match[2].strip():
            raise SettingsError(f"{pair!r} is not NAME=EXPRESSION", "--map", "write real_topic=aggregatetype")
        name, expression = match.groups()
        if name in found:
            raise SettingsError(f"{name} is given twice", "--map", "give each field once")
        known = {*half.FIELDS, *op.FIELDS, ORDER}
        if name not in known:
            raise SettingsError(unknown(name, known), "--map", "name a field of docs/landing.md")
        found[name] = expression
    return found


@dataclass(frozen=True)
class Fields:
    """The expression of each field of a message in a table's rows; those that ``given`` names are from `--map`.

    ``outbox``: what a default makes of a row must not keep it from being a message.
    """

    expressions: Mapping[str, str]
    given: frozenset[str]
    outbox: bool

    @classmethod
    def of_outbox(cls, rows: DataFrame, given: Mapping[str, str]) -> Fields:
        """The fields of an outbox's rows. Raises SettingsError if a needed column is missing."""
        wrong = sorted(set(given) & _NOT_OF_OUTBOX | set(given) - half.FIELDS - {ORDER})
        if wrong:
            raise SettingsError(f"{wrong[0]} is not a field of an outbox's row", "--map", "leave it out")
        columns = {name.lower(): name for name in rows.columns}
        found = {field: _quoted(columns[name]) for field, name in OUTBOX.items() if name in columns}
        if "real_queue_id" in given:
            found.pop("ordering_key", None)
        if "timestamp" in columns and isinstance(rows.schema[columns["timestamp"]].dataType, T.StringType):
            found["born_timestamp"] = f"CAST({found['born_timestamp']} AS TIMESTAMP)"  # Debezium's ZonedTimestamp
        found = {"producer_group": f"'{GROUP}'"} | found | dict(given)
        if ORDER not in found and "timestamp" in columns:
            found[ORDER] = found["born_timestamp"]
        for field in _NEEDED:
            if field not in found:
                what = f"has no column {OUTBOX[field]}, and its columns are {', '.join(rows.columns)}"
                raise SettingsError(what, "--outbox", f"say what it is by --map {field}=COLUMN")
        return cls(found, frozenset(given), True)

    @classmethod
    def of_kind(cls, rows: DataFrame, known: frozenset[str], option: str, given: Mapping[str, str]) -> Fields:
        """The fields of rows whose columns have the fields' names.

        Raises SettingsError for an unknown column, unless an expression uses it.
        """
        own = {name: _quoted(name) for name in rows.columns if name in known}
        for name in rows.columns:
            others = rows.drop(name)
            if not (
                name in known or name.startswith("_") or any(not _resolves(others, each) for each in given.values())
            ):
                fix = "rename it, or name it in --map; columns that no message has begin with _"
                raise SettingsError(f"column {unknown(name, known)}", option, fix)
        return cls(own | dict(given), frozenset(given), False)

    def columns(self, rows: DataFrame) -> list[Column]:
        """The columns line BINARY (the message's JSON object; properties may be a text), order BIGINT, born BIGINT.

        ``born`` is the born_timestamp that the row states (ms since 1970), NULL if it has none.
        A row without a born_timestamp has the time of its commit, or else of the batch, which is the same in a replay.
        Raises SettingsError for an expression that Spark does not take, or of a type that the field cannot have.
        """
        typed = {name: self._typed(rows, name) for name in self.expressions}
        order = self._order(*typed.pop(ORDER, (F.lit(None), T.NullType())))
        fields = {name: self._field(name, *found) for name, found in typed.items()}
        born = fields.get("born_timestamp", F.lit(None)).cast("bigint")
        fields["born_timestamp"] = F.coalesce(
            born, F.unix_millis(F.coalesce("_checkback_commit_time", F.current_timestamp()))
        )
        line = F.to_json(F.struct(*(column.alias(name) for name, column in fields.items()))).cast("binary")
        # Oversized lines are truncated here; they will be rejected.
        line = F.when(F.octet_length(line) > LINE_MAX, F.substring(line, 1, LINE_MAX + 1)).otherwise(line)
        return [line.alias("line"), order.alias("order"), born.alias("born")]

    def _typed(self, rows: DataFrame, name: str) -> tuple[Column, T.DataType]:
        where = f"--map {name}" if name in self.given else name
        try:
            return _typed(rows, self.expressions[name])
        except (AnalysisException, ParseException) as error:
            columns = ", ".join(rows.columns)
            raise SettingsError(one_line(error), where, f"name one of the columns {columns}") from None

    def _field(self, name: str, column: Column, kind: T.DataType) -> Column:
        makers = _MAKERS | {"born_timestamp": _born} if self.outbox else _MAKERS
        made = F.lit(None) if isinstance(kind, T.NullType) else makers.get(name, _text)(column, kind)
        if made is None:
            what = f"is {kind.simpleString()}, which {name} cannot be"
            raise SettingsError(what, f"--map {name}", f"give an expression: --map {name}='CAST(... AS ...)'")
        fitted = _FITTED.get(name) if self.outbox and name not in self.given else None
        return made if fitted is None else fitted(made)

    def _order(self, column: Column, kind: T.DataType) -> Column:
        if isinstance(kind, T.NullType):
            return F.lit(0).cast("bigint")
        if isinstance(kind, _INSTANTS):
            return F.unix_micros(column.cast("timestamp"))
        if isinstance(kind, (*_WHOLE, T.DecimalType)):
            return column.cast("bigint")
        fix = "name a column by which rows of one ordering key ascend"
        raise SettingsError(f"is {kind.simpleString()}, neither a time nor a whole number", f"--map {ORDER}", fix)


def _typed(rows: DataFrame, expression: str) -> tuple[Column, T.DataType]:
    column = F.expr(expression)
    return column, rows.select(column).schema[0].dataType


def _resolves(rows: DataFrame, expression: str) -> bool:
    try:
        _typed(rows, expression)
    except (AnalysisException, ParseException):
        return False
    return True


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(column: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.BinaryType):
        return F.lower(F.hex(column))
    return None if isinstance(kind, _NESTED) else column.cast("string")


def _number(column: Column, kind: T.DataType) -> Column | None:
    return column.cast("bigint") if isinstance(kind, _WHOLE) else None


def _time(column: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, _INSTANTS):
        return F.unix_millis(column.cast("timestamp"))
    return _number(column, kind)


def _born(column: Column, kind: T.DataType) -> Column | None:
    """Of an outbox's row: a number is in s, ms, us or ns, by its size. None is better than a time that is refused."""
    found = _time(column, kind)
    if found is None:
        return None
    if isinstance(kind, _WHOLE):
        found = (
            F.when(found < 10**11, found * 1000)
            .when(found < 10**14, found)
            .when(found < 10**17, F.call_function("div", found, F.lit(10**3)))
            .otherwise(F.call_function("div", found, F.lit(10**6)))
        )
    return F.when(found.between(0, MS_MAX), found)


def _properties(column: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.StringType):
        return column
    if isinstance(kind, T.StructType):
        column = F.from_json(F.to_json(column), "map<string,string>")
    elif isinstance(kind, T.MapType) and not isinstance(kind.valueType, _NESTED):
        column = column.cast("map<string,string>")
    else:
        return None
    return F.map_filter(column, lambda _, value: value.isNotNull())


def _body(column: Column, kind: T.DataType) -> Column:
    if isinstance(kind, _NESTED):
        column = F.to_json(column, {"ignoreNullFields": "false"})
    text = F.base64(column if isinstance(kind, T.BinaryType) else column.cast("string").cast("binary"))
    return F.replace(text, F.lit("\r\n"))  # Spark breaks it into lines of 76 characters (MIME)


def _flag(column: Column, kind: T.DataType) -> Column | None:
    return column if isinstance(kind, T.BooleanType) else None


_MAKERS: dict[str, Callable[[Column, T.DataType], Column | None]] = {
    "body": _body,
    "properties": _properties,
    "committed": _flag,
    **dict.fromkeys(("born_timestamp", "deliver_at"), _time),
    **dict.fromkeys(("real_queue_id", "delay_level", "queue_id", "queue_offset"), _number),
}


def _key(text: Column) -> Column:
    """One that is too long has a digest, so that rows keep their order; an empty one is none."""
    fitted = F.when(F.length(text) > ORDERING_KEY_MAX, F.sha2(text, 256)).otherwise(text)
    return F.when(text != "", fitted)


def _short(text: Column) -> Column:
    return F.when(F.length(text) <= _LONGEST, text)


#: A default must not make a committed row no valid message.
_FITTED: Mapping[str, Callable[[Column], Column]] = {"ordering_key": _key, "keys": _short, "tags": _short}
