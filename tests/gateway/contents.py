"""What may come as a body: half messages and ops, fit and unfit, and any other JSON."""

from __future__ import annotations

import base64

from hypothesis import strategies as st

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HALF = st.fixed_dictionaries(
    {},
    optional={
        "transaction_id": st.text(max_size=5) | JUNK,
        "producer_group": st.sampled_from(["orders", "a b", ""]) | JUNK,
        "real_topic": st.sampled_from(["payments", "rmq_sys_x", "a%b", "_delta_log", "Aux"]) | JUNK,
        "real_queue_id": st.integers(-1, 2**31) | JUNK,
        "ordering_key": st.none() | st.text(max_size=3) | JUNK,
        "tags": st.text(max_size=3) | JUNK,
        "keys": st.text(max_size=3) | JUNK,
        "properties": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2) | JUNK,
        "body": st.binary(max_size=9).map(lambda body: base64.b64encode(body).decode()) | JUNK,
        "born_timestamp": st.integers(-1, 2**48) | JUNK,
        "check_immunity": st.sampled_from(["30s", "0s", "1500ms", "99999d", "30"]) | JUNK,
    },
)
OP = st.fixed_dictionaries(
    {},
    optional={
        "queue_id": st.integers(-1, 2) | JUNK,
        "queue_offset": st.integers(-1, 2**63) | JUNK,
        "transaction_id": st.text(max_size=5) | JUNK,
        "producer_group": st.sampled_from(["orders", "a b", ""]) | JUNK,
        "state": st.sampled_from(["COMMIT", "ROLLBACK", "UNKNOWN"]) | JUNK,
        "remark": st.text(max_size=3) | JUNK,
        "born_timestamp": st.integers(-1, 2**48) | JUNK,
    },
)
CONTENT = st.one_of(
    JUNK,
    HALF,
    OP,
    st.fixed_dictionaries({"messages": st.lists(HALF | JUNK, max_size=4) | JUNK}),
    st.fixed_dictionaries({"ops": st.lists(OP | JUNK, max_size=4) | JUNK}),
)
