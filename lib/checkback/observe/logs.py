"""Log formats: text lines for people, or JSON lines for machines, with the event's name and flat keys."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, Literal

from checkback.errors import printable

#: the logger of events, a child of the package's
EVENTS = logging.getLogger("checkback.events")
_FIELDS = "checkback_fields"


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Values are numbers, fixed names, or configured names: no bodies, no secrets."""
    if EVENTS.isEnabledFor(level):
        EVENTS.log(level, name, extra={_FIELDS: fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, event, the event's own keys; logger for other records.

    ``error`` is the last line of an exception; tracebacks are never included.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": at.replace("+00:00", "Z"), "level": record.levelname.lower()}
        fields = getattr(record, _FIELDS, None)
        if fields is None:
            line |= {"event": "message", "logger": record.name, "message": record.getMessage()}
        else:
            line |= {"event": record.getMessage()} | fields
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}".splitlines()[-1]
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """``checkback: message``; for an event its name, and key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with the traceback if it has one."""
        fields = getattr(record, _FIELDS, None) or {}
        told = " ".join([record.getMessage(), *(f"{key}={value}" for key, value in fields.items())])
        lines = [f"checkback: {printable(told)}"]
        if record.exc_info:
            lines += map(printable, self.formatException(record.exc_info).splitlines())
        return "\n".join(lines)


def set_up(form: Literal["text", "json"], level: str | None, debug: bool) -> None:
    """Log to stderr, from ``level`` on; by default from warning as text, from info as JSON.

    ``debug`` (--debug) enables debug output of Checkback's own loggers.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    own = logging.DEBUG if debug else (level or ("info" if form == "json" else "warning")).upper()
    logging.getLogger("checkback").setLevel(own)
