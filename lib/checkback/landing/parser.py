"""Inputs -> rows of `half` or `op`, in Arrow batches; a rejected input keeps its text and the reason.

An input is a line of a file or a Kafka record: a Reader turns it into messages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from checkback.landing.chunked_reader import FAULT, plain_path
from checkback.messages.delay import too_late
from checkback.messages.fields import MessageRejectedError, is_blank
from checkback.messages.half import Half, parse_half
from checkback.messages.limits import RAW_MAX
from checkback.messages.op import Op, parse_ops
from checkback.storage.spark_schemas import HALF, OP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Batches = Iterator[pa.RecordBatch]
    Message = Half | Op

Kind = Literal["half", "op"]


class Reader(NamedTuple):
    """Parses inputs: ``read`` gets the input's ``columns``, and returns no messages for one to skip.

    ``read`` raises MessageRejectedError. It is pickled by reference for the workers. ``most_rejected``: of a file, see
    `_Surplus`.
    """

    columns: tuple[str, ...]
    read: Callable[..., Sequence[Message]]
    most_rejected: int | None = None


def _half_of_line(line: bytes, fault: str | None) -> Sequence[Half]:
    return () if _is_nothing(line, fault) else (parse_half(line),)


def _ops_of_line(line: bytes, fault: str | None) -> Sequence[Op]:
    return () if _is_nothing(line, fault) else parse_ops(line)


def _is_nothing(line: bytes, fault: str | None) -> bool:
    """Is the line blank? Raises MessageRejectedError if the row represents the fault of its file."""
    if fault is not None:
        raise MessageRejectedError(fault)
    return is_blank(line)


_OF_LINES = ("line", "fault")
#: Invalid lines of a file that a task keeps. A compressed file of a few KB can have a hundred million.
REJECTED_MAX = 10_000
#: Lines of files, and the files' faults. Blank lines are skipped.
LINES: Mapping[Kind, Reader] = {
    "half": Reader(_OF_LINES, _half_of_line, REJECTED_MAX),
    "op": Reader(_OF_LINES, _ops_of_line, REJECTED_MAX),
}
#: Characters of an input that its digest covers: `rejected` has RAW_MAX characters of a refused message, RAW_MAX bytes
#: of an invalid input.
DIGEST_OF = RAW_MAX // 4
#: Hexadecimal digits of the digest, the first ones of SHA-256.
DIGEST = 32
#: A line of ops may yield 10,000 rows: batches are split so that no column exceeds Arrow's 2 GiB.
_ROWS_MAX = 10_000

#: The position of an input, and the time of the batch that read it; copied to its rows.
PLACE = StructType(
    [
        StructField("file", StringType()),
        StructField("file_time", TimestampType()),
        StructField("file_block", LongType()),
        StructField("row", LongType()),
        StructField("store_timestamp", TimestampType()),
    ]
)
_VERDICT = [StructField(name, StringType()) for name in ("raw", "reason", "digest")]
_FIELDS: dict[Kind, tuple[str, ...]] = {"half": Half._fields, "op": Op._fields}
#: Parsed rows: a message, or ``raw`` and ``reason`` of a rejected input; the `digest` of the input; then PLACE.
SCHEMAS: dict[Kind, StructType] = {
    "half": StructType([*(HALF[name] for name in Half._fields), *_VERDICT, *PLACE]),
    "op": StructType([*(OP[name] for name in Op._fields), *_VERDICT, *PLACE]),
}

_TEXT, _TIME = pa.string(), pa.timestamp("us", tz="UTC")
_TYPES = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "real_queue_id": pa.int32(),
    "properties": pa.map_(_TEXT, _TEXT),
    "body": pa.binary(),
    "born_timestamp": _TIME,
    "check_immunity_s": pa.int32(),
    "delay_ms": pa.int64(),
    "deliver_at": _TIME,
    "committed": pa.bool_(),
}


def parser(kind: Kind, reader: Reader, max_delay: int) -> Callable[[Batches], Batches]:
    """For ``mapInArrow``: batches of (line BINARY, PLACE, the reader's columns) -> batches of SCHEMAS[kind].

    ``max_delay``: delay.max in ms, from the time of the batch. A rejected input has one row, one with several messages
    as many, a skipped one none.
    """
    return partial(_parse, kind, reader, max_delay)


def _parse(kind: Kind, reader: Reader, max_delay: int, batches: Batches) -> Batches:
    surplus = _Surplus(reader.most_rejected)
    for batch in batches:
        yield from _Rows(kind, reader, max_delay, batch, surplus).parsed()
    for place, reason in surplus.told():
        rows = _Rows(kind, reader, max_delay, place, surplus)
        rows.reject(0, None, reason)
        yield rows.batch()


class _Surplus:
    """Rejected inputs of a task that are counted but not kept: those of a file beyond the first ``most``.

    They have one row, at the first one's place, and are logged as the file's faults are.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._count: Counter[str] = Counter()
        self._first: dict[str, tuple[pa.RecordBatch, str]] = {}

    def takes(self, lines: pa.RecordBatch, place: int, file: str, reason: str) -> bool:
        """True if the input at the place is one of these, and counted."""
        self._count[file] += 1
        if self._most is None or self._count[file] <= self._most:
            return False
        if file not in self._first:
            # A copy: a slice would keep the whole batch.
            columns = {name: lines.column(name).take(pa.array([place])) for name in PLACE.names}
            self._first[file] = pa.RecordBatch.from_pydict(columns), reason
        return True

    def told(self) -> Iterator[tuple[pa.RecordBatch, str]]:
        """For each file that has some, the place of the first, as a batch of one row of PLACE, and what is told."""
        for file, (place, reason) in self._first.items():
            more = self._count[file] - (self._most or 0)
            yield place, f"{FAULT}{more} invalid lines after {self._most} others are not kept; the first: {reason}"


class _Rows:
    """Rows of one batch of inputs, in their order."""

    def __init__(self, kind: Kind, reader: Reader, max_delay: int, lines: pa.RecordBatch, surplus: _Surplus) -> None:
        self.kind, self.reader, self.max_delay, self.lines, self.surplus = kind, reader, max_delay, lines, surplus
        self.empty = (None,) * len(_FIELDS[kind])
        self.clear()

    def clear(self) -> None:
        self.messages: list[Sequence[Any]] = []
        self.raws: list[str | None] = []
        self.reasons: list[str | None] = []
        self.digests: list[str] = []
        self.places: list[int] = []

    def parsed(self) -> Batches:
        inputs = zip(*(self.lines.column(name).to_pylist() for name in self.reader.columns), strict=True)
        for place, given in enumerate(inputs):
            try:
                messages = self.reader.read(*given)
                self.refuse_late(messages, place)
            except MessageRejectedError as error:
                if given[0] is not None and self.surplus.takes(self.lines, place, self.files[place], error.reason):
                    continue
                self.reject(place, self.raw(place), error.reason)
            else:
                self.messages.extend(messages)
                self.places.extend([place] * len(messages))
                self.raws.extend([None] * len(messages))
                self.reasons.extend([None] * len(messages))
                if messages:
                    self.digests.extend([digest(given[0])] * len(messages))
            if len(self.places) >= _ROWS_MAX:
                yield self.batch()
                self.clear()
        if self.places:
            yield self.batch()

    def reject(self, place: int, raw: str | None, reason: str) -> None:
        """Add the row of a rejected input."""
        self.messages.append(self.empty)
        self.raws.append(raw)
        self.reasons.append(reason)
        self.digests.append(digest(raw))
        self.places.append(place)

    @cached_property
    def files(self) -> list[str]:
        """The inputs' files, as URIs."""
        found: list[str] = self.lines.column("file").to_pylist()
        return found

    def refuse_late(self, messages: Sequence[Message], place: int) -> None:
        """Raises MessageRejectedError if a half message's delay is too long."""
        for message in messages:
            if isinstance(message, Half) and (message.delay_ms or message.deliver_at):
                stored = self.lines.column("store_timestamp")[place].cast(pa.int64()).as_py() // 1000
                reason = too_late(message.delay_ms, message.deliver_at, stored, self.max_delay)
                if reason is not None:
                    raise MessageRejectedError(reason)

    def raw(self, place: int) -> str | None:
        line: bytes | None = self.lines.column("line")[place].as_py()
        return None if line is None else line[:RAW_MAX].decode("utf-8", "replace")

    def batch(self) -> pa.RecordBatch:
        fields = zip(_FIELDS[self.kind], zip(*self.messages, strict=True), strict=True)
        columns = {name: _array(name, cells) for name, cells in fields}
        columns |= {"raw": pa.array(self.raws, _TEXT), "reason": pa.array(self.reasons, _TEXT)}
        columns["digest"] = pa.array(self.digests, _TEXT)
        places = pa.array(self.places, pa.int32())
        columns |= {name: self.lines.column(name).take(places) for name in PLACE.names}
        columns["file"] = pa.array([_plain(uri) for uri in columns["file"].to_pylist()], _TEXT)
        return pa.RecordBatch.from_pydict(columns)


def digest(text: str | bytes | None) -> str:
    """Identifies an input by its text, in UTF-8 if it is bytes; `rejected` has the same."""
    if isinstance(text, bytes) and len(text) > DIGEST_OF:
        text = text.decode()
    if not isinstance(text, bytes):
        text = (text or "")[:DIGEST_OF].encode()
    return hashlib.sha256(text).hexdigest()[:DIGEST]


def _array(name: str, cells: Sequence[Any]) -> pa.Array:
    kind = _TYPES.get(name, _TEXT)
    if name == "properties":
        return pa.array([None if cell is None else list(cell.items()) for cell in cells], kind)
    if kind == _TIME:
        return pa.array(cells, pa.timestamp("ms", tz="UTC")).cast(kind)
    return pa.array(cells, kind)


_plain = lru_cache(maxsize=1024)(plain_path)
