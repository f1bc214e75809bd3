"""Who owns a queue: a journal that changes hands leaves room for what the other one has acknowledged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import StorageError
from checkback.gateway.ownership import (
    GAP,
    changed_hands,
    first_app,
    is_outdated,
    journal_app,
    next_start,
    owned_by_others,
)
from checkback.messages.limits import LONG_MAX


@pytest.mark.parametrize(
    ("owner", "journal", "drained", "expected"),
    [
        (None, 0, 0, {}),
        (None, 7, 0, {journal_app(0): 7}),
        (0, 7, 0, {journal_app(0): 7}),
        (7, 7, 7, {}),
        (7, 0, 7, {journal_app(0): 0}),
        (8, 7, 7, {journal_app(0): 7, first_app(0): 100 + GAP}),
        (8, 0, 0, {journal_app(0): 0, first_app(0): 100 + GAP}),
        (8, 0, 7, {journal_app(0): 0, first_app(0): 100 + GAP}),
    ],
)
def test_queue_of_another_journal_goes_on_beyond_its_offsets(
    owner: int | None, journal: int, drained: int, expected: dict[str, int]
) -> None:
    assert changed_hands({journal_app(0): owner}, [0], journal, drained, lambda _: 100) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=8))
def test_no_owner_assigns_what_another_may_have(owners: list[tuple[int, int]]) -> None:
    """Each owner assigns offsets from its first on, of which some reach the table; no two ranges overlap."""
    versions: dict[str, int | None] = {}
    in_table, assigned = 0, dict[int, int]()
    for journal, count in owners:
        mine = journal + 1
        new = changed_hands(versions, [0], mine, mine, lambda _, after=in_table: after)  # type: ignore[misc]
        versions |= new
        begin = max(in_table, versions.get(first_app(0)) or 0)
        for offset in range(begin, begin + count):
            assert assigned.setdefault(offset, mine) == mine
        in_table = begin + count // 2 if count > 1 else in_table


def test_too_few_offsets_are_refused() -> None:
    with pytest.raises(StorageError, match="too few offsets"):
        changed_hands({journal_app(0): 8}, [0], 7, 7, lambda _: LONG_MAX - 2 * GAP + 1)


def test_ones_own_and_free_queues_are_nobody_elses() -> None:
    versions = {journal_app(0): None, journal_app(1): 0, journal_app(2): 7, journal_app(3): 8}
    assert owned_by_others(versions, range(5), (7,)) == [3]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["killed", "claimed", "started"])), max_size=12), st.data()
)
def test_of_copies_only_the_last_one_started_goes_on(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    """Copies of a journal from the same moment: whichever is started first, the others are refused for ever."""
    table: int | None = None
    copies = [(0, 0)] * 3
    owner: int | None = None
    chances = iter(data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=12, max_size=12, unique=True)))
    for copy, fate in steps:
        last, following = copies[copy]
        assert is_outdated(table, last, following) == (owner not in (None, copy))
        if is_outdated(table, last, following):
            continue
        new = next_start(table, last, following, next(chances))
        copies[copy] = (following if following and table == following else last, new)
        if fate != "killed":
            table, owner = new, copy
        if fate == "started":
            copies[copy] = (new, new)
