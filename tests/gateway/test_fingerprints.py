"""Fingerprints of rows, which a start reads, are those of the messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.appender import half_rows
from checkback.gateway.deduplication.remembered_half import fingerprint, fingerprints
from checkback.messages.half import Half

_FEW = st.sampled_from([None, 0, 1, 7])
_TEXT = st.none() | st.text(max_size=2)
_HALVES = st.builds(
    lambda *fields: Half(0, 0, "t-1", "orders", *fields),
    st.sampled_from(["payments", "refunds"]),
    st.integers(0, 2),
    _TEXT,
    _TEXT,
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=3),
    st.binary(max_size=2),
    st.just(1_795_227_064_579),
    _FEW,
    _FEW,
    _FEW,
    st.sampled_from([None, True]),
)


@given(st.lists(_HALVES, min_size=1, max_size=6), st.integers(0, 5))
def test_of_rows_as_of_messages(halves: list[Half], first: int) -> None:
    rows = half_rows(halves, 0, 0, 1)
    assert fingerprints(rows).tolist() == [fingerprint(half) for half in halves]
    assert fingerprints(rows.slice(first)).tolist() == [fingerprint(half) for half in halves[first:]]
