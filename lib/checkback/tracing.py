"""Spans by OpenTelemetry's messaging conventions, where the process has loaded OpenTelemetry; else nothing is done.

An application loads it to configure its exporter; for a command ``opentelemetry-instrument`` does.
The names: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from checkback.messages.trace_context import NO_CONTEXT, TRACEPARENT, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: of a span: its SDK keeps so many
LINKS_MAX = 128


class Traced(Protocol):
    """A message of a topic. ``transaction_id``: may be empty."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def transaction_id(self) -> str | None: ...  # noqa: D102
    @property
    def properties(self) -> Mapping[str, str]: ...  # noqa: D102


def loaded() -> bool:
    """Has the process loaded OpenTelemetry? The functions below must be called only if it has."""
    return "opentelemetry.trace" in sys.modules


@contextmanager
def sending(messages: Sequence[Traced]) -> Iterator[dict[str, str]]:
    """The span of a producer that sends these messages; yields its context, which they carry."""
    about = _about("send", "send", messages)
    with _span(f"send {about['messaging.destination.name']}", "PRODUCER", about) as span:
        yield _context_of(span)


def current() -> dict[str, str]:
    """The context of the current span; empty if there is none."""
    from opentelemetry import trace

    return _context_of(trace.get_current_span())


@contextmanager
def requesting(path: str, contexts: Iterable[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """The span of a producer's request; yields its context, for headers. ``contexts``: of the calls in it.

    Of calls in one span it is a child, else it has links. Without any context there is none.
    """
    found = list({context[TRACEPARENT]: context for context in contexts if context}.values())
    if not found:
        yield NO_CONTEXT
        return
    parent, links = (NO_CONTEXT, found) if len(found) > 1 else (found[0], [])
    about = {"http.request.method": "POST", "url.path": path}
    with _span(f"POST {path}", "CLIENT", about, parent, links) as span:
        yield _context_of(span)


def processed(listener: Callable[..., Any], group: str) -> Callable[..., Any]:
    """The listener of a consumer group with a span of each call.

    Its parent is the message's context; a batch has links. What the listener raises or returns is the call's.
    """

    @functools.wraps(listener, updated=())
    def call(messages: Any, *more: Any) -> Any:
        one = not isinstance(messages, list)
        several: Sequence[Traced] = [messages] if one else messages
        about = _about("process", "process", several) | {"messaging.consumer.group.name": group}
        contexts = [trace_of(message.properties) for message in several]
        parent, links = (contexts[0], ()) if one else (NO_CONTEXT, contexts)
        with _span(f"process {about['messaging.destination.name']}", "CONSUMER", about, parent, links):
            return listener(messages, *more)

    return call


@contextmanager
def posting(message: Traced, group: str) -> Iterator[tuple[Any, Any]]:
    """The span of a message that is posted, and its context, for headers. It is not the current one: many overlap."""
    about = _about("process", "process", [message]) | {"messaging.consumer.group.name": group}
    with _span(f"process {message.topic}", "CONSUMER", about, trace_of(message.properties), current=False) as span:
        yield span, _context_of(span)


@contextmanager
def asking(group: str, topic: str, transaction_id: str, context: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """The span of a check that is sent, and its context, for headers. It is not the current one: many overlap."""
    about = {"messaging.operation.name": "check", "messaging.destination.name": topic} | _id_of(transaction_id)
    with _span(f"check {group}", "CLIENT", about, context, current=False) as span:
        yield span, _context_of(span)


def answering(listener: Callable[..., Any], group: str, context: Mapping[str, str]) -> Callable[..., Any]:
    """A transaction listener's method for checks, with a span of the call. ``context``: of the request."""

    @contextmanager
    def span_of(check: Any) -> Iterator[None]:
        about = {"messaging.operation.name": "check", "messaging.destination.name": check.real_topic}
        with _span(f"check {group}", "SERVER", about | _id_of(check.transaction_id), context):
            yield

    if inspect.iscoroutinefunction(listener):

        async def call_async(check: Any) -> Any:
            with span_of(check):
                return await listener(check)

        return call_async

    def call(check: Any) -> Any:
        with span_of(check):
            return listener(check)

    return call


@contextmanager
def receiving(path: str, context: Mapping[str, str]) -> Iterator[Any]:
    """The span of a request to the gateway; yields it."""
    with _span(f"POST {path}", "SERVER", {"http.request.method": "POST", "url.path": path}, context) as span:
        yield span


@contextmanager
def reconciling(batch_id: int) -> Iterator[Any]:
    """The span of a batch of `reconcile`."""
    about = {"messaging.operation.name": "reconcile", "checkback.batch_id": batch_id}
    with _span("reconcile", "INTERNAL", about) as span:
        yield span


def link(contexts: Iterable[Mapping[str, str]]) -> None:
    """Add links to the current span, each once, LINKS_MAX at most."""
    from opentelemetry import trace

    span = trace.get_current_span()
    for context in list({one[TRACEPARENT]: one for one in contexts if one}.values())[:LINKS_MAX]:
        span.add_link(trace.get_current_span(_read(context)).get_span_context())


def _about(operation: str, kind: str, messages: Sequence[Traced]) -> dict[str, Any]:
    topics = {str(message.topic) for message in messages}
    about: dict[str, Any] = {
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topics.pop() if len(topics) == 1 else "(several)",
    }
    if len(messages) == 1:
        return about | _id_of(messages[0].transaction_id)
    return about | {"messaging.batch.message_count": len(messages)}


def _id_of(transaction_id: str | None) -> dict[str, str]:
    return {"messaging.message.id": str(transaction_id)} if transaction_id else {}


@contextmanager
def _span(
    name: str,
    kind: str,
    about: Mapping[str, Any],
    context: Mapping[str, str] = NO_CONTEXT,
    links: Iterable[Mapping[str, str]] = (),
    *,
    current: bool = True,
) -> Iterator[Any]:
    """A span. ``context``: its parent's; empty = the current span's."""
    from opentelemetry import trace

    linked = [trace.get_current_span(_read(one)).get_span_context() for one in links if one]
    begun = trace.get_tracer("checkback").start_span(
        name,
        context=_read(context) if context else None,
        kind=trace.SpanKind[kind],
        links=[trace.Link(one) for one in linked[:LINKS_MAX]],
        attributes={"messaging.system": "checkback", **about},
    )
    if current:
        # An error's text may quote bodies: it does not leave the process.
        with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield begun
            except BaseException as error:
                begun.set_attribute("error.type", type(error).__qualname__)
                begun.set_status(trace.StatusCode.ERROR)
                raise
        return
    try:
        yield begun
    finally:
        begun.end()


def _context_of(span: Any) -> dict[str, str]:
    from opentelemetry import trace

    carrier: dict[str, str] = {}
    _propagator().inject(carrier, trace.set_span_in_context(span))
    return trace_of(carrier)


def _read(context: Mapping[str, str]) -> Any:
    return _propagator().extract(context)


def _propagator() -> Any:
    """W3C's, whatever the process propagates besides."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
