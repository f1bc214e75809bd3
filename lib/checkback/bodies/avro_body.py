"""Avro bodies: a reader's schema, the writers' schemas, and their values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from checkback.bodies.avro_resolution import Input, resolution
from checkback.bodies.avro_types import PRIMITIVE, InvalidError, part_of
from checkback.bodies.decoder import BodyError
from checkback.bodies.registry import Registered, Registry, split_header
from checkback.errors import SettingsError, missing_module

if TYPE_CHECKING:
    from checkback.bodies.avro_resolution import Read


class AvroBody:
    """One value of an Avro schema, without a container's header; with a registry, after the id of its schema."""

    def __init__(self, schema: Registered, where: str, registry: Registry | None = None) -> None:
        """``schema``: the reader's. Raises SettingsError if it is not valid, or fastavro is missing."""
        try:
            import fastavro  # noqa: F401 - it parses schemas
        except ImportError as error:
            raise missing_module(error, "avro", where) from error
        try:
            parsed, named = _parsed(schema)
            self._part = part_of(parsed, named, where)
            self._own = resolution(parsed, named, self._part)
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro lets pass some that are not valid
            what = str(error) if isinstance(error, InvalidError) else f"is not valid: {type(error).__name__}"
            raise SettingsError(f"the Avro schema {what}", where, "correct the schema") from None
        self.type = self._part.type
        self._text, self._registry = schema, registry
        self._writers: dict[int, Read | str] = {}

    def value(self, body: bytes) -> Any:
        """The value as the reader's schema has it. Raises BodyError, StorageError."""
        read = self._own
        if self._registry is not None:
            number, body = split_header(body)
            read = self._writer(number, self._registry)
        given = Input(body)
        try:
            value = read(given, 0)
        except IndexError:
            raise given.short() from None
        except UnicodeDecodeError:
            raise BodyError("has a string that is not UTF-8") from None
        if given.at != len(body):
            raise BodyError("goes on after its value")
        return value

    def _writer(self, number: int, registry: Registry) -> Read:
        if number not in self._writers:
            registered = registry.schema(number)
            try:
                self._writers[number] = (
                    self._own if registered == self._text else resolution(*_parsed(registered), self._part)
                )
            except InvalidError as error:
                self._writers[number] = f"names schema {number}, which as an Avro schema {error}"
            except Exception as error:  # noqa: BLE001 - likewise
                what = f"which as an Avro schema is not valid: {type(error).__name__}"
                self._writers[number] = f"names schema {number}, {what}"
        found = self._writers[number]
        if isinstance(found, str):
            raise BodyError(found)
        return found


def _parsed(schema: Registered) -> tuple[Any, dict[str, Any]]:
    """The schema with full names, and the types that they refer to. Raises InvalidError."""
    import fastavro

    if schema.kind != "AVRO":
        raise InvalidError(f"is of type {schema.kind}")
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            fastavro.parse_schema(_document(text), named_schemas=named)
        parsed = fastavro.parse_schema(_document(schema.text), named_schemas=named)
    except InvalidError:
        raise
    except Exception as error:  # noqa: BLE001 - what it raises for an invalid schema is not part of its API
        raise InvalidError(f"is not valid: {error}") from None
    return parsed, named


def _document(text: str) -> Any:
    if text in PRIMITIVE:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidError("is not JSON") from None
