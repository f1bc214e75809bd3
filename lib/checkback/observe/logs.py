"""Log formats: text lines for people, or JSON lines for machines, with the event's name and flat keys."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any, Literal, TextIO

from checkback.errors import printable
from checkback.messages.trace_context import LOGGED
from checkback.spark.stderr import json_head, json_line

#: the logger of events, a child of the package's
EVENTS = logging.getLogger("checkback.events")
_FIELDS = "checkback_fields"


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. Values are numbers, fixed names, or configured names: no bodies, no secrets."""
    if EVENTS.isEnabledFor(level):
        EVENTS.log(level, name, extra={_FIELDS: fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, event, the event's own keys; logger for other records.

    ``error`` is the last line of an exception; tracebacks are never included. ``trace_id`` is that of a message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line: dict[str, Any] = json_head(record.levelname.lower(), record.created)
        fields = getattr(record, _FIELDS, None)
        if fields is None:
            line |= {"event": "message", "logger": record.name, "message": record.getMessage(), **_trace_of(record)}
        else:
            line |= {"event": record.getMessage()} | fields
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}".splitlines()[-1]
        return json.dumps(line, default=str)


def _trace_of(record: logging.LogRecord) -> dict[str, str]:
    """The trace's id of a record about a message (`in_trace`), if it has one."""
    trace_id = getattr(record, LOGGED, None)
    return {} if trace_id is None else {"trace_id": str(trace_id)}


class TextFormatter(logging.Formatter):
    """``checkback: message``; for an event its name, and key=value; of a message in a trace its trace_id, too."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with the traceback if it has one."""
        fields = getattr(record, _FIELDS, None) or _trace_of(record)
        told = " ".join([record.getMessage(), *(f"{key}={value}" for key, value in fields.items())])
        lines = [f"checkback: {printable(told)}"]
        if record.exc_info:
            lines += map(printable, self.formatException(record.exc_info).splitlines())
        return "\n".join(lines)


class JsonStderr(io.TextIOBase):
    """In place of sys.stderr: each line that anybody prints there is a JSON object on ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        """Print the lines that ``text`` ends."""
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            if line.strip():
                self.stream.write(f"{json_line(line, 'stderr')}\n")
        return len(text)

    def flush(self) -> None:
        """As the stream's; a line without an end ends here."""
        if self._begun:
            self.write("\n")
        self.stream.flush()

    def fileno(self) -> int:
        """As the stream's."""
        return self.stream.fileno()


def started(form: Literal["text", "json"], server: str, url: str, **fields: Any) -> None:
    """Say that a server listens at ``url``: a line on stdout, in JSON the event SERVER_started, with the ``fields``."""
    if form == "json":
        event(f"{server}_started", url=url, **fields)
        return
    listed = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    more = "".join(f", {name} {', '.join(map(str, values))}" for name, values in listed.items())
    print(f"checkback {server}: {url}{more}", flush=True)


def failed(message: str, code: int) -> bool:
    """Log the error that ends the command as the event `failed`; False: the log is not JSON."""
    if isinstance(sys.stderr, JsonStderr):
        event("failed", logging.ERROR, error=message, exit_code=code)
    return isinstance(sys.stderr, JsonStderr)


def set_up(form: Literal["text", "json"], level: str | None, debug: bool) -> None:
    """Log to stderr, from ``level`` on; by default from warning as text, from info as JSON.

    In JSON everything else on stderr is JSON, too. ``debug`` (--debug) enables debug output of Checkback's own loggers.
    """
    stream = sys.stderr.stream if isinstance(sys.stderr, JsonStderr) else sys.stderr
    sys.stderr = JsonStderr(stream) if form == "json" else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    own = logging.DEBUG if debug else (level or ("info" if form == "json" else "warning")).upper()
    logging.getLogger("checkback").setLevel(own)
