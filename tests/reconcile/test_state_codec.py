"""A segment as bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from checkback.errors import StateError
from checkback.reconcile.records.records import Action
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state.group_hash import GroupHash
from checkback.reconcile.state.state_codec import NO_TIMERS, Timers, decode, encode
from reconcile.segments import RULES, SIZE, commit, events, half

if TYPE_CHECKING:
    from checkback.reconcile.records.records import Records


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


_NUMBERS = [(name, "<i8") for name in ("offset", "born", "due", "store", "group", "transaction")]
_WITH_ASKED = [*_NUMBERS, ("check_times", "<i4"), ("asked", "<i4"), ("repeated", "u1")]
_DELAYED = [*_WITH_ASKED, ("delay", "<i8")]
#: the fields of PENDING in releases before, by version of the block
_BEFORE = {
    2: [*_NUMBERS, ("check_times", "<i4"), ("repeated", "u1")],
    3: _WITH_ASKED,
    4: _WITH_ASKED,
    5: _DELAYED,
    6: _DELAYED,
}


def _block_before(version: int, segment: Segment, timer: int) -> bytes:
    """The block as a release before wrote it, in its own words."""
    kind = np.dtype(_BEFORE[version])
    pending = np.zeros(len(segment.pending), kind)
    for name in kind.names or ():
        pending[name] = segment.pending[name]

    def turned(records: Records) -> bytes:
        return bytes(np.ascontiguousarray(records).view(np.uint8).reshape(-1, records.dtype.itemsize).T.tobytes())

    bits = np.packbits(segment.seen, bitorder="little").tobytes()
    raw = bits + turned(pending) + turned(segment.early)
    raw += turned(segment.scheduled) if version > 4 else b""
    packed = pa.compress(raw, "lz4_raw", asbytes=True)
    counts = len(pending), len(segment.early), len(packed)
    head = struct.pack("<2sHIqqIII", b"CB", version, len(segment.seen), timer, segment.seen_until, *counts)
    head += struct.pack("<qI", 79, len(segment.scheduled)) if version > 4 else b""
    return bytes(head + packed)


@pytest.mark.parametrize("version", _BEFORE)
def test_block_of_the_release_before_is_read_and_written_anew(version: int) -> None:
    """The checks that version 2 counted are those that it knows of; all else is as it was."""
    later = events(half(21, delay=500), commit(21)) if version > 4 else events()
    segment, actions = decide(_segment(), later, 60, RULES)
    assert actions[actions["action"] == Action.CHECK]["check_times"].tolist() == [1]
    found, timers = decode(_block_before(version, segment, 77), 16, SIZE)
    assert timers == (Timers(77, 79) if version > 4 else Timers(77))
    assert len(found.scheduled) == (version > 4)
    for name in ("seen", "pending", "early", "seen_until", "scheduled"):
        assert np.array_equal(getattr(found, name), getattr(segment, name)), name
    assert found.pending["asked"].tolist() == [1, 0]
    assert encode(found, timers) == encode(segment, timers)
    hashed_by = GroupHash.SHA1 if version in (4, 6) else GroupHash.XXHASH64
    decode(_block_before(version, segment, 77), 16, SIZE, hashed_by)


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
