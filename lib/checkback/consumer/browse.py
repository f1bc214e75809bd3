"""The messages of a topic's complete batches, in order, without joining a group: nothing is written."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.consume_from_where import start_position
from checkback.consumer.message import MessageExt, messages_of
from checkback.consumer.position import QUEUES, last_of
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import SettingsError
from checkback.messages.names import reserved
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.consumer.consume_from_where import StartFrom
    from checkback.filter import MessageSelector
    from checkback.storage.tables import Tables


#: batches that a run is chosen from, and messages that are made of rows at once
_BATCHES, _MESSAGES = 4096, 1024


def has_topic(tables: Tables, topic: str) -> bool:
    """Whether the topic has a table. Raises SettingsError if no topic can have this name, StorageError."""
    if not topic or "/" in topic or "\\" in topic or reserved(topic) is not None:
        raise SettingsError("is not the name of a topic", repr(topic)[:80], "name the folder in topics/")
    return DeltaLog.exists(tables.location(TOPIC_PREFIX + topic))


class Browser:
    """Reads a topic from a batch on. Not thread-safe."""

    def __init__(
        self,
        tables: Tables,
        topic: str,
        selector: MessageSelector | None = None,
        start_from: StartFrom = "first",
    ) -> None:
        """``selector``: None = all messages. ``start_from``: a time is that of a batch.

        Raises StorageError, SettingsError if there is no such batch.
        """
        self._topic = topic
        self._log = BatchLog(tables)
        self._reader = TopicReader(tables, topic, self._log, selector)
        self._log.refresh()
        #: behind the batches that were read
        self._position = start_position(self._log, start_from, "--from")
        #: messages behind it that were given out, before an error
        self._given = 0

    def read(self) -> Iterator[MessageExt]:
        """The messages of the batches that are complete now and were not read before.

        Raises StorageError; called again it goes on where that came.
        """
        self._log.refresh()
        while (at := self._log.listed.first_unconsumed(self._position)) < len(self._log):
            ahead = self._log.batches[at : at + _BATCHES]
            batches = ahead[: self._reader.run(ahead)]
            before = 0
            for rows in self._reader.read(batches, dict.fromkeys(range(QUEUES), self._position)):
                for first in range(max(0, self._given - before), len(rows), _MESSAGES):
                    for message in messages_of(self._topic, rows.rows.slice(first, _MESSAGES)):
                        self._given += 1
                        yield message
                before += len(rows)
            self._given = 0
            keys = [batch.key for batch in batches]
            self._position = self._position.after_batches(last_of(keys).values(), keys[-1].batch_time)


#: widths of the columns before the last
_WIDTHS = (24, 5, 12, 24, 9, 12, 16)
_BODY = "body as text or base64"
_COLUMNS = (
    "topic",
    "published_at",
    "batch_id",
    "queue_id",
    "half_queue_id",
    "half_queue_offset",
    "transaction_id",
    "producer_group",
    "tags",
    "keys",
    "properties",
    "born_timestamp",
    "body_size",
)


def header(bodies: bool = False) -> str:
    """The columns' names."""
    return _line("published_at", "queue", "half", "transaction", "body", "tags", "keys", _BODY if bodies else "")


def text_line(message: MessageExt, bodies: bool = False) -> str:
    """One line: when and where it was published, its transaction, size, tags and keys; the body only if asked for."""
    return _line(
        iso(message.published_at),
        str(message.queue_id),
        f"{message.half_queue_id}/{message.half_queue_offset}",
        message.transaction_id or "-",
        f"{len(message.body)} B",
        message.tags or "-",
        message.keys or "-",
        next(iter(_body(message.body).values())) if bodies else "",
    )


def names(bodies: bool = False) -> list[str]:
    """The columns of `as_json`; those of a body that is text, and of one that is not, too."""
    return [*_COLUMNS, *(("body", "body_base64") if bodies else ())]


def as_json(message: MessageExt, bodies: bool = False) -> dict[str, Any]:
    """The message's columns. With ``bodies`` also ``body`` if that is UTF-8, else ``body_base64``."""
    found: dict[str, Any] = {name: getattr(message, name) for name in _COLUMNS[:-1]}
    times = {name: iso(found[name]) for name in ("published_at", "born_timestamp")}
    return found | times | {"body_size": len(message.body)} | (_body(message.body) if bodies else {})


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _line(*cells: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, (*_WIDTHS, 0), strict=True))
    return "  ".join(padded).rstrip()
