"""Trace context is carried from a request's headers into the tables and on, and is no content of a message."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.listener_calls import outcome_of
from checkback.consumer.message import MessageExt
from checkback.gateway.deduplication.remembered_half import fingerprint, fingerprints
from checkback.messages.half import HalfMessage, half_of
from checkback.messages.trace_context import trace_id_of, trace_of, trace_of_headers, traced
from checkback.observe.logs import set_up
from checkback.producer.listener import failed
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, half, op, rows

if TYPE_CHECKING:
    from pathlib import Path

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


def test_context_of_headers() -> None:
    headers = [(b"host", b"localhost"), (b"traceparent", PARENT.encode()), (b"tracestate", b"congo=t61rcWkgMzE")]
    assert trace_of_headers(headers) == {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"}
    assert trace_of_headers([*headers, (b"tracestate", b"b=2")])["tracestate"] == "congo=t61rcWkgMzE,b=2"
    assert trace_of_headers([*headers, (b"traceparent", OTHER.encode())]) == {}
    assert trace_id_of({"traceparent": PARENT}) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "0",
        "ff" + PARENT[2:],
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT + "\r\nX-Injected: 1",
    ],
)
def test_what_is_no_traceparent_is_not_carried(invalid: str) -> None:
    assert trace_of({"traceparent": invalid, "tracestate": "a=b"}) == {}
    assert trace_id_of({"traceparent": invalid}) is None


def test_state_that_does_not_fit_is_left_out() -> None:
    for state in ("", "x" * 513, "a=b\r\nX-Injected: 1"):
        assert trace_of({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


def test_message_keeps_its_own_context() -> None:
    assert traced({"traceparent": OTHER}, {"traceparent": PARENT}) == {"traceparent": OTHER}
    assert traced({"a": "b"}, {"traceparent": PARENT}) == {"a": "b", "traceparent": PARENT}


@pytest.mark.processes
def test_headers_of_a_request_are_properties_of_a_message_and_an_ops_remark(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json", "traceparent": PARENT, "tracestate": "a=b"}
    with Gateway(tmp_path, TO_TABLE) as gateway:

        def post(path: str, sent: object) -> dict[str, Any]:
            answer = gateway.session.post(f"{gateway.url}{path}", json=sent, headers=headers, timeout=PATIENCE_S)
            found: dict[str, Any] = answer.json()
            return found

        first = post("/v1/half", half("t-1"))["queue_offset"]
        post("/v1/halves", {"messages": [half("t-2", properties={"traceparent": OTHER}), half("t-3")]})
        post("/v1/op", op(first, "t-1"))
        post("/v1/ops", {"ops": [op(first + 1, "t-2", remark="mine"), op(first + 2, "t-3")]})
    contexts = {row["transaction_id"]: dict(row["properties"]) for row in rows(tmp_path, "half")}
    told = {"traceparent": PARENT, "tracestate": "a=b"}
    assert contexts == {"t-1": told, "t-2": {"traceparent": OTHER}, "t-3": told}
    remarks = {row["transaction_id"]: row["remark"] for row in rows(tmp_path, "op")}
    assert remarks == {"t-1": f"traceparent {PARENT}", "t-2": "mine", "t-3": f"traceparent {PARENT}"}


def test_log_tells_the_trace_of_a_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In JSON as a key, in text behind the line; of another message there is none. Records may have a trace_id."""

    def record(*about: Any) -> logging.LogRecord:
        made = logging.LogRecord(*about)
        made.trace_id = "the application's"
        return made

    monkeypatch.setattr(logging, "_logRecordFactory", record)

    def fail(_: object) -> NoReturn:
        raise ValueError("Mrs. Secret")

    lines = []
    forms: tuple[Literal["json", "text"], ...] = ("json", "text")
    for form in forms:
        set_up(form, None, debug=False)
        for properties in ({"traceparent": PARENT}, {}):
            outcome_of(fail, MessageExt("t", 0, "t-1", None, None, None, properties, b"", 0, 0, 7, 0, 0))
        failed(ValueError("Mrs. Secret"), "t-1", "check_local_transaction", {"traceparent": PARENT})
        lines.append(capsys.readouterr().err.splitlines())
    trace_id = trace_id_of({"traceparent": PARENT})
    assert [json.loads(line).get("trace_id") for line in lines[0]] == [trace_id, None, trace_id]
    assert [line.endswith(f" trace_id={trace_id}") for line in lines[1]] == [True, False, True]


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate", "a", "b"]), st.sampled_from(["x", "y"])))
def test_context_is_no_content(properties: dict[str, str]) -> None:
    """Who sends a message again may do so in another span: it is the same message, also after a start."""

    def sent(properties: dict[str, str]) -> int:
        half = half_of(HalfMessage("t", "g", "t", b"", properties=properties), 0)
        row = {name: [getattr(half, name)] for name in ("body", "keys", "real_topic", "real_queue_id", "tags")}
        row |= {"check_immunity_s": [None], "delay_ms": [None], "deliver_at": [None], "committed": [None]}
        maps = pa.array([list(half.properties.items())], pa.map_(pa.string(), pa.string()))
        table = pa.table({**{name: pa.array(values) for name, values in row.items()}, "properties": maps})
        assert fingerprints(table).tolist() == [fingerprint(half)]
        return fingerprint(half)

    own = {name: text for name, text in properties.items() if name in ("a", "b")}
    assert sent(properties) == sent(own)
    assert sent(own | {"c": "z"}) != sent(own)
