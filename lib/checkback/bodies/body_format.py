"""The format of a topic's bodies by the settings, as a value that processes exchange, and its decoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from checkback.bodies.avro_body import AvroBody
from checkback.bodies.decoder import ERROR, VALUE, Decoder, Text, decode_pieces
from checkback.bodies.json_body import JsonBody, JsonText
from checkback.bodies.protobuf_body import SERIALIZED, ProtobufBody, files_of
from checkback.bodies.registry import Registered, Registry, split_header
from checkback.errors import SettingsError, StorageError, missing_module

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.settings import Settings
    from checkback.settings.model import TopicBody


@dataclass(frozen=True)
class BodyFormat:
    """How bodies are decoded.

    ``schema``: the reader's: text of JSON Schema or Avro, or a FileDescriptorSet; ``where``: its setting or URL, for
    errors; ``latest``: it is the registry's.
    """

    body: str
    where: str
    schema: bytes | Registered | None = None
    message: str | None = None
    registry: Registry | None = None
    latest: bool = False

    @property
    def decoder(self) -> Decoder:
        """The decoder; made once in a process. Raises SettingsError."""
        return _decoder(self)


def format_of(settings: Settings, topic: str) -> BodyFormat | None:
    """The format of a topic's bodies; None: binary.

    Without a schema the registry is asked for the latest one, so that all processes of a query have the same. Raises
    SettingsError if the schema's file cannot be read, StorageError if the registry does not answer.
    """
    found = settings.topics.get(topic)
    if found is None or found.body == "binary":
        return None
    registry = _registry(found)
    key = f"topics.{topic}.{'schema_file' if found.schema_file is not None else 'schema'}"
    schema: bytes | Registered | None = _own_schema(found, key)
    if schema is None and registry is not None:
        schema = _latest(found, registry, found.subject or f"{topic}-value")
        return BodyFormat(found.body, registry.url, schema, found.message, registry, latest=True)
    return BodyFormat(found.body, key, schema, found.message, registry)


def with_values(rows: pa.Table, body: BodyFormat) -> pa.Table:
    """The rows with `VALUE` and `ERROR` of their column body. Raises SettingsError, StorageError."""
    import pyarrow as pa

    decoder = body.decoder
    chunks = [piece for chunk in rows["body"].chunks for piece in decode_pieces(decoder, chunk)]
    rows = rows.append_column(VALUE, pa.chunked_array([values for values, _ in chunks], decoder.type))
    return rows.append_column(ERROR, pa.chunked_array([errors for _, errors in chunks], pa.string()))


def _registry(body: TopicBody) -> Registry | None:
    if body.schema_registry is None:
        return None
    password, token = (None if each is None else each.get_secret_value() for each in (body.password, body.token))
    return Registry(body.schema_registry, body.user, password, token)


def _own_schema(body: TopicBody, where: str) -> bytes | None:
    if body.schema_file is not None:
        try:
            with open(body.schema_file, "rb") as file:
                return file.read()
        except OSError as error:
            what = f"{body.schema_file} cannot be read: {error.strerror}"
            raise SettingsError(what, where, "check the path and its permissions") from None
    if body.schema_ is None:
        return None
    return (body.schema_ if isinstance(body.schema_, str) else json.dumps(body.schema_)).encode()


def _latest(body: TopicBody, registry: Registry, subject: str) -> bytes | Registered:
    found = registry.latest(subject, SERIALIZED if body.body == "protobuf" else "")
    if found.kind != body.body.upper():
        what = f"the schema of {subject} is of type {found.kind}"
        raise StorageError(what, registry.url, f"set body: {found.kind.lower()}, or another subject")
    if body.body == "protobuf":
        try:
            return files_of(found, registry.url)
        except ImportError as error:
            raise missing_module(error, "protobuf", registry.url) from error
    return found


@lru_cache(64)
def _decoder(body: BodyFormat) -> Decoder:
    schema = body.schema
    if body.body == "text":
        return Text()
    if body.body == "protobuf" and isinstance(schema, bytes):
        return ProtobufBody(schema, body.message, body.where, body.registry, latest=body.latest)
    if isinstance(schema, bytes):
        schema = Registered(_utf8(schema, body.where))
    if body.body == "avro" and schema is not None:
        return AvroBody(schema, body.where, body.registry)
    decoder = JsonText() if schema is None else JsonBody(_document(schema.text, body.where), body.where)
    return decoder if body.registry is None else _Headed(decoder)


class _Headed:
    """Decodes what follows the id of a schema, for formats in which the writer's schema does not matter."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.type = decoder, decoder.type

    def value(self, body: bytes) -> Any:
        return self._decoder.value(split_header(body)[1])


def _utf8(schema: bytes, where: str) -> str:
    try:
        return schema.decode()
    except UnicodeDecodeError:
        raise SettingsError("is not UTF-8 text", where, "save it as UTF-8") from None


def _document(schema: str, where: str) -> Any:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise SettingsError("is not JSON", where, "correct the schema") from None
