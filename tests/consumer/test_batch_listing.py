"""BatchListing read by one thread while another appends: the answer is that from before or that from after it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import batch_listing
from checkback.consumer.batch_listing import BatchListing, ListedBatch
from checkback.consumer.position import BatchKey, Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PAY = "topics/pay"


def batch(application: str, number: int, time: int, version: int) -> ListedBatch:
    return ListedBatch(BatchKey(application, number, time), time, frozenset([PAY]), ((PAY, version),))


#: of the same run; of a table that was made anew; of a rebuild, of which it is the first
APPENDED = [batch("a", 3, 40, 8), batch("a", 3, 25, 4), batch("b", 0, 15, 9)]


def listing() -> BatchListing:
    made = BatchListing()
    made.extend([batch("a", number, 10 * number + 10, 5 + number) for number in range(3)])
    return made


def answers(listed: BatchListing) -> list[Callable[[], object]]:
    """What other threads ask."""
    behind = [
        lambda version=version, made=made: listed.first_behind(PAY, version, made)
        for version in range(3, 10)
        for made in (0, 15, 35, 50)
    ]
    consumed = Position({"a": 2}, None, 30, {"a": 30})
    return [
        *behind,
        lambda: list(listed.runs()),
        lambda: listed.consumed_before(len(listed.batches)),
        lambda: listed.first_since(35),
        lambda: listed.first_unconsumed(consumed),
        lambda: listed.lacks(consumed),
    ]


def between(steps: Callable[[], object], meanwhile: Callable[[int], object]) -> Any:
    """The result of ``steps``; before each opcode of the listing's code in it ``meanwhile`` is called."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != batch_listing.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            meanwhile(count)
            count += 1
        return trace

    sys.settrace(trace)
    try:
        return steps()
    finally:
        sys.settrace(before)


def before_and_after(appended: ListedBatch) -> list[list[object]]:
    old, new = listing(), listing()
    new.append(appended)
    return [[old_(), new_()] for old_, new_ in zip(answers(old), answers(new), strict=True)]


@pytest.mark.parametrize("appended", APPENDED)
def test_asked_in_the_middle_of_an_append(appended: ListedBatch) -> None:
    right, listed, seen = before_and_after(appended), listing(), 0

    def ask(_: int) -> None:
        nonlocal seen
        seen += 1
        for answer, known in zip(answers(listed), right, strict=True):
            assert answer() in known

    between(lambda: listed.append(appended), ask)
    assert seen > 50


@pytest.mark.parametrize("appended", APPENDED)
def test_appended_to_in_the_middle_of_an_answer(appended: ListedBatch) -> None:
    for number, known in enumerate(before_and_after(appended)):
        place, reached = -1, True
        while reached:
            place, reached, listed = place + 1, False, listing()

            def append(at: int, listed: BatchListing = listed, place: int = place) -> None:
                nonlocal reached
                if at == place:
                    reached = True
                    listed.append(appended)

            assert between(answers(listed)[number], append) in known
