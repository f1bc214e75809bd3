"""Bodies decoded to Arrow: a column of values, and one of reasons why a body has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: columns that a typed topic has beside its table's
VALUE, ERROR = "value", "value_error"
#: a body whose parts are nested deeper is refused: beyond it parsers differ, and recursion may end the process
MAX_DEPTH = 128
TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
NOT_UTF8 = "is not UTF-8"


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
        the body's.
        """


def decode(decoder: Decoder, bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values of bodies (binary), and why they have none (string, null where there is a value or no body)."""
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
