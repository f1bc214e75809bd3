"""Spans by OpenTelemetry's own SDK: one trace from the producer to the consumer's listener, and nothing without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from check.servers import Server, always, reply, says
from checkback import tracing
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.wire import CheckRequest
from checkback.check.wire import Message as HalfMessage
from checkback.consumer.message import ConsumeResult, MessageExt
from checkback.consumer.push_consumer import PushConsumer
from checkback.producer import (
    CheckServer,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    check_app,
)
from checkback.push.pushed_group import PushedGroup
from checkback.settings import Settings, Storage
from checkback.storage.tables import Tables
from consumer.heard import Heard, until
from consumer.published import Published
from gateway.process import PATIENCE_S, Gateway, rows
from gateway.rocketmq.test_whole_way import reconciling
from support.otlp_collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

#: without its flags, which an SDK adds to
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
_EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(tracing, "loaded", lambda: True)
    if not isinstance(trace.get_tracer_provider(), TracerProvider):  # a process has one
        provider = TracerProvider(resource=Resource.create({"service.name": "service"}))
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        trace.set_tracer_provider(provider)
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()


def of_name(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def context_in(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}"


class Listener(TransactionListener):
    """Its local transaction is a span of the application, and ends as ``arg`` says."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:  # noqa: ARG002 - as RocketMQ's
        with trace.get_tracer("application").start_as_current_span("local transaction"):
            return LocalTransactionState.COMMIT if arg is None else LocalTransactionState(arg)

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState:  # noqa: ARG002 - as RocketMQ's
        return LocalTransactionState.COMMIT


@pytest.mark.processes
def test_message_carries_the_producers_span_and_its_local_transaction_is_below(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    with (
        Gateway(tmp_path, "gateway.acknowledge=table") as gateway,
        TransactionProducer("orders", gateway.url, Listener()) as producer,
    ):
        producer.send_in_transaction(Message("payments", b"1", transaction_id="t-1")).raise_for_status()
        producer.send_batch(
            [Message("payments", b"2"), Message("payments", b"3", properties={"traceparent": f"{PARENT}-01"})]
        )
    sent, batch = of_name(spans, "send payments")
    ops, halves, messages = (of_name(spans, f"POST /v1/{name}") for name in ("ops", "halves", "messages"))
    assert [parent_of(each) for each in (*ops, *halves, *messages)] == [*[context_in(sent)] * 2, context_in(batch)]
    assert [row["remark"][:-3] for row in rows(tmp_path, "op")] == [f"traceparent {context_in(ops[0])}"]
    (local,) = of_name(spans, "local transaction")
    assert (sent.kind, parent_of(local)) == (trace.SpanKind.PRODUCER, context_in(sent))
    assert dict(sent.attributes or {}) == {
        "messaging.system": "checkback",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "payments",
        "messaging.message.id": "t-1",
    }
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
    found = {row["body"]: dict(row["properties"])["traceparent"][:-3] for row in rows(tmp_path, "half")}
    assert found == {b"1": context_in(sent), b"2": context_in(batch), b"3": PARENT}


def test_check_is_a_span_below_the_messages_and_its_header_names_it(spans: InMemorySpanExporter) -> None:
    message = HalfMessage(b"", properties={"traceparent": f"{PARENT}-01"})
    with (
        Server(always(reply(says("COMMIT")))) as server,
        CheckClient({"orders": CheckedGroup((server.url,), include_body=True)}, 5) as client,
    ):
        client.ask(CheckRequest(0, 7, "t-7", "orders", "payments", 1, None, message))
    (asked,) = of_name(spans, "check orders")
    assert (asked.kind, parent_of(asked)) == (trace.SpanKind.CLIENT, PARENT)
    assert (asked.attributes or {})["checkback.outcome"]
    headers = {name.lower(): value for name, value in server.received[0].headers.items()}
    assert headers["traceparent"][:-3] == context_in(asked)


def consumed(number: int, **properties: str) -> MessageExt:
    return MessageExt("payments", 0, f"t-{number}", "orders", None, None, properties, b"", 0, 0, number, 0, 0)


def test_listener_is_called_in_the_messages_trace(spans: InMemorySpanExporter) -> None:
    current: list[Any] = []

    def listener(_: object) -> ConsumeResult:
        current.append(trace.get_current_span().get_span_context())
        return ConsumeResult.SUCCESS

    call = tracing.processed(listener, "billing")
    assert call(consumed(1, traceparent=f"{PARENT}-01")) is ConsumeResult.SUCCESS
    assert call([consumed(1, traceparent=f"{PARENT}-01"), consumed(2)]) is ConsumeResult.SUCCESS
    one, batch = of_name(spans, "process payments")
    assert current == [one.context, batch.context]
    assert (parent_of(one), parent_of(batch), len(batch.links)) == (PARENT, None, 1)
    assert (one.attributes or {})["messaging.consumer.group.name"] == "billing"
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2


def test_what_a_listener_raises_is_the_calls(spans: InMemorySpanExporter) -> None:
    def listener(_: object) -> ConsumeResult:
        raise ValueError("Mrs. Secret")

    with pytest.raises(ValueError, match="Secret"):
        tracing.processed(listener, "billing")(consumed(1))
    (span,) = of_name(spans, "process payments")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert "Secret" not in span.to_json()


@pytest.mark.parametrize("orderly", [False, True])
def test_a_posted_message_is_a_span_that_the_receiver_is_told(
    tmp_path: Path, spans: InMemorySpanExporter, orderly: bool
) -> None:
    """One for each try, side by side or in order; the message's own context stays in its extension."""
    lake = Published(Tables.of(Storage(root=str(tmp_path), sync=False)))
    lake.publish({"payments": [lake.messages(3, properties=[("traceparent", f"{PARENT}-01")])]})
    with Server(always(reply(b"", "204 No Content"))) as server:
        mail = {"topic": "payments", "url": server.url, "orderly": orderly}
        about = {"storage": {"root": str(tmp_path)}, "push": {"mail": mail}}
        group = PushedGroup("mail", Settings.model_validate(about))
        group.start()
        until(lambda: group.consumer.consumed == 3)
        group.close()
    posted = of_name(spans, "process payments")
    assert {each.headers["traceparent"][:-3] for each in server.received} == set(map(context_in, posted))
    assert {each.headers["ce-traceparent"] for each in server.received} == {f"{PARENT}-01"}
    assert [parent_of(each) for each in posted] == [PARENT] * 3
    if not orderly:
        assert {(each.attributes or {})["checkback.outcome"] for each in posted} == {"SUCCESS"}


def test_request_with_calls_of_several_spans_has_links_to_them(spans: InMemorySpanExporter) -> None:
    contexts = [{"traceparent": f"{PARENT[:-1]}{number}-01"} for number in (1, 2, 1)]
    with tracing.requesting("/v1/ops", [{}, *contexts]) as context:
        pass
    with tracing.requesting("/v1/ops", [{}]) as none:
        pass
    (span,) = of_name(spans, "POST /v1/ops")
    assert (span.kind, parent_of(span), context["traceparent"][:-3]) == (trace.SpanKind.CLIENT, None, context_in(span))
    assert [f"{link.context.span_id:016x}"[-1] for link in span.links] == ["1", "2"]
    assert none == {}


@pytest.mark.processes
def test_transaction_is_one_trace_for_a_collector(
    tmp_path: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five processes or more, by OTLP: one transaction that its producer ends, and one that a check ends."""
    folder, heard = tmp_path / "modules", Heard()
    folder.mkdir()
    with Collector() as collector, CheckServer(check_app({"orders": Listener()}, secret=None)) as asked:
        for name, value in collector.environ(folder, "reconcile").items():
            monkeypatch.setenv(name, value)
        told = {"orders": {"endpoints": [asked.url], "include_body": True}}
        settings = f"producers={json.dumps(told)}", "transaction.timeout=1s"
        with (
            Gateway(tmp_path, environ=collector.environ(folder, "gateway")) as gateway,
            reconciling(tmp_path, *settings),
            TransactionProducer("orders", gateway.url, Listener()) as producer,
            PushConsumer("billing", str(tmp_path), heard).subscribe("payments"),
        ):
            producer.send_in_transaction(Message("payments", b"1", transaction_id="ended")).raise_for_status()
            producer.send_in_transaction(Message("payments", b"2", transaction_id="checked"), "UNKNOWN")
            heard.wait_for_count(2, 4 * PATIENCE_S)  # Spark starts first
        OTLPSpanExporter(collector.url).export(spans.get_finished_spans())
    common = [("service", name) for name in ("local transaction", "process payments", "send payments")]
    common += [(service, "POST /v1/halves") for service in ("gateway", "service")]
    more = {
        "ended": [("gateway", "POST /v1/ops"), ("service", "POST /v1/ops")],
        "checked": [("reconcile", "check orders"), ("service", "check orders")],
    }
    linked = {trace_id for each in collector.spans if each.name == "reconcile" for trace_id in each.links}
    sent = of_name(spans, "send payments")
    for span in sent:
        assert span.context is not None
        trace_id = span.context.trace_id.to_bytes(16, "big")
        found = [each for each in collector.spans if each.trace_id == trace_id]
        name = str((span.attributes or {})["messaging.message.id"])
        assert sorted((each.service, each.name) for each in found) == sorted([*common, *more[name]])
        assert {each.parent for each in found} <= {each.span_id for each in found} | {b""}
        assert trace_id in linked
    assert len(sent) == 2


@pytest.mark.processes
def test_without_it_nothing_is_imported() -> None:
    program = "import sys, checkback.producer, checkback.consumer, checkback.gateway.service; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1] / "lib")
    assert "checkback.tracing" in run.stdout.split()
    assert not [name for name in run.stdout.split() if name.startswith("opentelemetry")]
