"""The format of a topic's bodies by the settings, as a value that processes exchange, and its decoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from checkback.bodies.decoder import ERROR, VALUE, Decoder, Text, decode
from checkback.bodies.json_body import JsonBody, JsonText
from checkback.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.settings import Settings
    from checkback.settings.model import TopicBody


@dataclass(frozen=True)
class BodyFormat:
    """How bodies are decoded. ``schema``: the reader's, as its file has it; ``where``: its setting, for errors."""

    body: str
    where: str
    schema: bytes | None = None

    @property
    def decoder(self) -> Decoder:
        """The decoder; made once in a process. Raises SettingsError."""
        return _decoder(self)


def format_of(settings: Settings, topic: str) -> BodyFormat | None:
    """The format of a topic's bodies; None: binary. Raises SettingsError if the schema's file cannot be read."""
    found = settings.topics.get(topic)
    if found is None or found.body == "binary":
        return None
    key = f"topics.{topic}.{'schema_file' if found.schema_file is not None else 'schema'}"
    return BodyFormat(found.body, key, _schema(found, key))


def with_values(rows: pa.Table, body: BodyFormat) -> pa.Table:
    """The rows with `VALUE` and `ERROR` of their column body."""
    import pyarrow as pa

    decoder = body.decoder
    chunks = [decode(decoder, chunk) for chunk in rows["body"].chunks]
    rows = rows.append_column(VALUE, pa.chunked_array([values for values, _ in chunks], decoder.type))
    return rows.append_column(ERROR, pa.chunked_array([errors for _, errors in chunks], pa.string()))


def _schema(body: TopicBody, where: str) -> bytes | None:
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


@lru_cache(64)
def _decoder(body: BodyFormat) -> Decoder:
    if body.body == "text":
        return Text()
    if body.schema is None:
        return JsonText()
    return JsonBody(_document(body.schema, body.where), body.where)


def _document(schema: bytes, where: str) -> Any:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise SettingsError("is not JSON", where, "correct the schema") from None
