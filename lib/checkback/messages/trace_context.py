"""Trace context (W3C Trace Context): two properties of a message that are carried and never interpreted. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
#: attribute of log records; the application's own may have a `trace_id`, which logging refuses to overwrite
LOGGED = "checkback_trace_id"
NO_CONTEXT: Mapping[str, str] = {}
#: They are no content: who sends a message again may do so in another span.
PROPERTIES = frozenset({TRACEPARENT, TRACESTATE})
#: the header of version 00, and of later ones, which begin alike
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
#: of a traceparent of version 00
_LENGTH = 55
_TRACESTATE = re.compile(r"[ -~\t]{1,512}")
_HEADERS = {name.encode(): name for name in (TRACEPARENT, TRACESTATE)}


def trace_of(stated: Mapping[str, str]) -> dict[str, str]:
    """The context that properties or headers state; empty without a valid traceparent, as the standard has it."""
    traceparent = stated.get(TRACEPARENT)
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent):
        return {}
    tracestate = stated.get(TRACESTATE)
    if tracestate is None or not _TRACESTATE.fullmatch(tracestate):
        return {TRACEPARENT: traceparent}
    return {TRACEPARENT: traceparent, TRACESTATE: tracestate}


def trace_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The context of a request's headers, whose names are in lower case."""
    stated: dict[str, str] = {}
    for name, value in headers:
        if name in _HEADERS:  # lines of one name are one list; of two traceparents none is valid
            before = stated.get(_HEADERS[name])
            stated[_HEADERS[name]] = (
                value.decode("latin-1") if before is None else f"{before},{value.decode('latin-1')}"
            )
    return trace_of(stated) if stated else stated


def traced(properties: dict[str, str], context: Mapping[str, str]) -> dict[str, str]:
    """The properties with this context, unless they have their own."""
    return properties if not context or TRACEPARENT in properties else {**properties, **context}


def remark_of(context: Mapping[str, str]) -> str | None:
    """What an op whose request has this context is remarked with; None without one."""
    return f"{TRACEPARENT} {context[TRACEPARENT][:_LENGTH]}" if context else None


def trace_id_of(properties: Mapping[str, str]) -> str | None:
    """The trace's id, in 32 hexadecimal digits."""
    found = _TRACEPARENT.fullmatch(properties.get(TRACEPARENT, ""))
    return found and found["trace_id"]


def in_trace(properties: Mapping[str, str]) -> dict[str, str]:
    """What a log record about a message has as ``extra``: the trace's id, if it has one."""
    trace_id = trace_id_of(properties)
    return {} if trace_id is None else {LOGGED: trace_id}
