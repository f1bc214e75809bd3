"""A segment as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from checkback.errors import StateError
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state.state_codec import NO_TIMERS, Timers, decode, encode
from reconcile.segments import RULES, SIZE, commit, events, half


def _segment() -> Segment:
    rows = events(half(17), half(18, 53), half(20, immunity=100), commit(17), commit(25), commit(25, tx=9))
    segment, _ = decide(Segment.empty(16, SIZE), rows, 50, RULES)
    return segment


def test_segment_survives_its_bytes() -> None:
    """What goes in comes out, and the timers with it."""
    scheduled = events(half(21, delay=500), commit(21), half(22, at=900), half(23, delay=7))
    segment, _ = decide(_segment(), scheduled, 51, RULES)
    assert segment.scheduled["due"].tolist() == [551]
    found, timers = decode(encode(segment, Timers(77, 79)), 16, SIZE)
    assert timers == Timers(77, 79)
    assert found.base == 16
    assert found.seen_until == segment.seen_until
    for name in ("seen", "pending", "early", "scheduled"):
        assert np.array_equal(getattr(found, name), getattr(segment, name)), name


def test_empty_segment_survives_its_bytes() -> None:
    """Also of a size that is no multiple of eight."""
    found, timers = decode(encode(Segment.empty(0, 13)), 0, 13)
    assert timers == NO_TIMERS
    assert found.seen.tolist() == [False] * 13


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda block: block[:0], "not Checkback's"),
        (lambda block: b"XX" + block[2:], "not Checkback's"),
        (lambda block: block[:-1], "cut off"),
        (lambda block: block + b"\0", "cut off"),
        (lambda block: block[:2] + b"\x63\0" + block[4:], "version 99"),
    ],
)
def test_damaged_block_is_refused(damage: object, says: str) -> None:
    """A block that this release cannot read stops the job: guessing would lose messages."""
    assert callable(damage)
    with pytest.raises(StateError, match=says):
        decode(damage(encode(_segment())), 16, SIZE)


def test_block_is_refused_wherever_it_is_cut_off() -> None:
    """Also where the compressed bytes could end."""
    block = encode(_segment())
    for end in range(len(block)):
        with pytest.raises(StateError):
            decode(block[:end], 16, SIZE)


def test_other_segment_size_is_refused() -> None:
    """segment_size is frozen with the checkpoint, and the error says to what."""
    with pytest.raises(StateError, match=r"reconcile.segment_size: .*set it to 16"):
        decode(encode(_segment()), 16, 32)


def test_pending_row_costs_at_most_16_bytes() -> None:
    """A million pending must fit, and travel. Random: the eight bytes of a transaction's hash."""
    hashes = np.random.default_rng(1).integers(1, 2**62, 4096).tolist()
    halves = [half(n, tx=tx, immunity=99) for n, tx in enumerate(hashes)]
    segment, _ = decide(Segment.empty(0, 4096), events(*halves), 50, RULES)
    assert len(segment.pending) == 4096
    assert len(encode(segment)) < 4096 * 16
