"""Trace context is carried from a request's headers into the tables and on, and is no content of a message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.deduplication.remembered_half import fingerprint, fingerprints
from checkback.messages.half import HalfMessage, half_of
from checkback.messages.trace_context import trace_id_of, trace_of, trace_of_headers, traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


def test_context_of_headers() -> None:
    headers = [(b"host", b"localhost"), (b"traceparent", PARENT.encode()), (b"tracestate", b"congo=t61rcWkgMzE")]
    assert trace_of_headers(headers) == {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"}
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
