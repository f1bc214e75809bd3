"""A message as a line: for people, or as JSON. Pure. Control characters are escaped by who prints it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from checkback.consumer.message import MessageExt

#: widths of the columns before the last
_WIDTHS = (24, 5, 12, 24, 9, 12, 16)
_BODY = "body as text or base64"
_COLUMNS = (
    "topic",
    "committed_at",
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
    return _line("committed_at", "queue", "half", "transaction", "body", "tags", "keys", _BODY if bodies else "")


def text_line(message: MessageExt, bodies: bool = False) -> str:
    """One line: when and where it was published, its transaction, size, tags and keys; the body only if asked for."""
    return _line(
        iso(message.committed_at),
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
    times = {name: iso(found[name]) for name in ("committed_at", "born_timestamp")}
    return found | times | {"body_size": len(message.body)} | (_body(message.body) if bodies else {})


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _line(*cells: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, (*_WIDTHS, 0), strict=True))
    return "  ".join(padded).rstrip()
