"""A segment as bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from checkback.errors import StateError
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state_codec import NO_TIMER, decode, encode
from reconcile.segments import RULES, SIZE, commit, events, half

if TYPE_CHECKING:
    from checkback.reconcile.records import Records


def _segment() -> Segment:
    rows = events(half(17), half(18, 53), half(20, immunity=100), commit(17), commit(25), commit(25, tx=9))
    segment, _ = decide(Segment.empty(16, SIZE), rows, 50, RULES)
    return segment


def test_segment_survives_its_bytes() -> None:
    """What goes in comes out, and the timer with it."""
    segment = _segment()
    found, timer = decode(encode(segment, 77), 16, SIZE)
    assert timer == 77
    assert found.base == 16
    assert found.seen_until == segment.seen_until
    for name in ("seen", "pending", "early"):
        assert np.array_equal(getattr(found, name), getattr(segment, name)), name


def test_empty_segment_survives_its_bytes() -> None:
    """Also of a size that is no multiple of eight."""
    found, timer = decode(encode(Segment.empty(0, 13)), 0, 13)
    assert timer == NO_TIMER
    assert found.seen.tolist() == [False] * 13


def _version_2(segment: Segment, timer: int) -> bytes:
    """The block as the release before wrote it, in its own words."""
    kind = np.dtype(
        {
            "names": ["offset", "born", "due", "store", "group", "transaction", "check_times", "repeated"],
            "formats": ["<i8"] * 6 + ["<i4", "u1"],
        }
    )
    pending = np.zeros(len(segment.pending), kind)
    for name in kind.names or ():
        pending[name] = segment.pending[name]

    def turned(records: Records) -> bytes:
        return bytes(np.ascontiguousarray(records).view(np.uint8).reshape(-1, records.dtype.itemsize).T.tobytes())

    bits = np.packbits(segment.seen, bitorder="little").tobytes()
    packed = pa.compress(bits + turned(pending) + turned(segment.early), "lz4_raw", asbytes=True)
    counts = len(pending), len(segment.early), len(packed)
    head = struct.pack("<2sHIqqIII", b"CB", 2, len(segment.seen), timer, segment.seen_until, *counts)
    return bytes(head + packed)


def test_block_of_the_release_before_is_read_and_written_anew() -> None:
    """The checks that it counted are those that it knows of; all else is as it was."""
    segment, actions = decide(_segment(), events(), 60, RULES)
    assert actions["check_times"].tolist() == [1]
    found, timer = decode(_version_2(segment, 77), 16, SIZE)
    assert timer == 77
    for name in ("seen", "pending", "early", "seen_until"):
        assert np.array_equal(getattr(found, name), getattr(segment, name)), name
    assert found.pending["asked"].tolist() == [1, 0]
    assert encode(found, 77) == encode(segment, 77)


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
