"""Bodies decoded to Arrow: a column of values, and one of reasons why a body has none."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: columns that a typed topic has beside its table's
VALUE, ERROR = "value", "value_error"
#: a body whose parts are nested deeper is refused: beyond it parsers differ, and recursion may end the process
MAX_DEPTH = 128
TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
NOT_UTF8 = "is not UTF-8"
#: of the items of one body's lists and maps, null ones included: two bytes may be an item of a hundred columns. More
#: than the bytes of a message of 4 MiB, of which each may be an item
MAX_VALUES = 5_000_000
TOO_MANY = f"has more than {MAX_VALUES} values"
_PIECE_ROWS = 10_000
_PIECE_BYTES = 1 << 20


class BodyError(Exception):
    """Why a body has no value. The text never quotes the body, which may hold personal data."""


class Decoder(Protocol):
    """Decodes the bodies of one topic."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values. Not an extension type within a struct."""

    def value(self, body: bytes) -> Any:
        """The body's value, as `pyarrow.array` takes it for `type`; exact.

        Raises BodyError if it has none. Any other exception also means that, except CheckbackError: the fault is not
        the body's. Calls `take` for lists and maps.
        """


class _Room(local):
    """Values that the body in hand may still become."""

    left = MAX_VALUES


_room = _Room()


def take(values: int) -> None:
    """Count values of a body's lists and maps. Raises BodyError beyond `MAX_VALUES`."""
    _room.left -= values
    if _room.left < 0:
        raise BodyError(TOO_MANY)


def width(kind: pa.DataType) -> int:
    """For how many values Arrow has places in each item of a type."""
    return 1 + sum(width(field.type) for field in kind) if pa.types.is_struct(kind) else 1


def decode(decoder: Decoder, bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values of bodies (binary), and why they have none (string, null where there is a value or no body)."""
    pieces = list(decode_pieces(decoder, bodies))
    if len(pieces) == 1:
        return pieces[0]
    values, errors = (pa.concat_arrays([piece[column] for piece in pieces]) for column in (0, 1))
    return values, errors


def decode_pieces(decoder: Decoder, bodies: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """As `decode`, in pieces, in order: only a piece's values are Python objects at a time."""
    if len(bodies) > 1 and (len(bodies) > _PIECE_ROWS or bodies.nbytes > _PIECE_BYTES):
        middle = len(bodies) // 2
        yield from decode_pieces(decoder, bodies.slice(0, middle))
        yield from decode_pieces(decoder, bodies.slice(middle))
    else:
        yield _piece(decoder, bodies)


def _piece(decoder: Decoder, bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    decoded = [_decoded(decoder, body) for body in bodies.to_pylist()]
    values = [value for value, _ in decoded]
    errors = [error for _, error in decoded]
    try:
        array = _array(values, decoder.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # one of them does not fit, which is a fault here
        for place, value in enumerate(values):
            try:
                _array([value], decoder.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):  # noqa: PERF203
                values[place], errors[place] = None, "does not fit the type of its schema"
        array = _array(values, decoder.type)
    return array, pa.array(errors, pa.string())


def _decoded(decoder: Decoder, body: bytes | None) -> tuple[Any, str | None]:
    if body is None:
        return None, None
    _room.left = MAX_VALUES
    try:
        return decoder.value(body), None
    except BodyError as error:
        return None, str(error)
    except CheckbackError:
        raise
    except RecursionError:
        return None, TOO_DEEP
    except Exception as error:  # noqa: BLE001 - libraries raise many kinds for bytes that they were not given before
        return None, f"cannot be decoded ({type(error).__name__})"


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


class Text:
    """Decodes UTF-8 text."""

    type = pa.string()

    def value(self, body: bytes) -> str:
        """The text. Raises BodyError."""
        return text_of(body)


def text_of(body: bytes) -> str:
    """The body as text. Raises BodyError if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BodyError(NOT_UTF8) from None
