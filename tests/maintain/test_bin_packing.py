"""Which files become one: in order, never too much at once, and never again and again."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import given

from checkback.maintain.compaction import Candidate, groups, order_of

TARGET, MEMORY = 1000, 4000

SIZES = st.lists(st.integers(1, 1500), max_size=60)


def files(sizes: list[int]) -> list[Candidate]:
    """Files of one queue whose offsets go up, as they were appended."""
    return [
        Candidate(str(number), size, 3 * size, {"queue_id": (0, 0), "queue_offset": (number * 10, number * 10 + 9)})
        for number, size in enumerate(sizes)
    ]


def plan(found: list[Candidate], least: int) -> list[list[Candidate]]:
    return groups(found, ("queue_id", "queue_offset"), TARGET, least, MEMORY)


@given(SIZES, st.integers(2, 12), st.randoms())
def test_groups_are_small_files_in_order_and_fit(sizes: list[int], least: int, random: Random) -> None:
    found = files(sizes)
    given_in = found[:]
    random.shuffle(given_in)
    made = plan(given_in, least)
    paths = [file.path for group in made for file in group]
    assert len(paths) == len(set(paths))
    assert [int(path) for path in paths] == sorted(map(int, paths))
    for group in made:
        assert len(group) > 1
        assert all(file.size < TARGET for file in group)
        assert sum(file.size for file in group) <= TARGET
        assert sum(file.memory for file in group) <= MEMORY
        # What is written again is worth it: no file is larger than all others together.
        assert max(file.size for file in group) <= sum(file.size for file in group) / 2
    if sum(size < TARGET for size in sizes) < least:
        assert made == []


@given(SIZES)
def test_run_after_run_comes_to_an_end(sizes: list[int]) -> None:
    """Each run leaves fewer files, until there is nothing to do; then few small ones are left."""
    found = files(sizes)
    while made := plan(found, 2):
        gone = {file.path for group in made for file in group}
        new = [
            Candidate(
                group[0].path,
                sum(file.size for file in group),
                sum(file.memory for file in group),
                {"queue_id": (0, 0), "queue_offset": (group[0].spans["queue_offset"][0], 0)},
            )
            for group in made
        ]
        assert len(new) < len(gone)
        found = [file for file in found if file.path not in gone] + new
    small = [file.size for file in found if file.size < TARGET]
    # Of neighbours that fit into one file each is larger than all smaller ones together: at most ten.
    assert len(small) <= 11 * (1 + 2 * sum(small) // TARGET)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=300))
def test_a_row_is_written_again_a_few_times_only(appended: list[int]) -> None:
    """With a run after every append, the bytes written are those appended, times the doublings up to the target."""
    found: list[Candidate] = []
    written = 0
    for number, size in enumerate(appended):
        found += [Candidate(str(number), size, 0, {"queue_id": (0, 0), "queue_offset": (number, number)})]
        for group in plan(found, 2):
            gone = {file.path for file in group}
            total = sum(file.size for file in group)
            written += total
            first = group[0]
            found = [file for file in found if file.path not in gone]
            found.append(Candidate(first.path, total, 0, first.spans))
    assert written <= sum(appended) * 11


def test_a_file_that_says_nothing_comes_first() -> None:
    unknown = Candidate("x", 5, 5, {})
    assert plan([*files([5, 5]), unknown], 2) == [[unknown, *files([5, 5])]]


def test_order_is_that_of_the_offsets_or_of_the_time() -> None:
    assert order_of("half") == ("queue_id", "queue_offset")
    assert order_of("op") == ("queue_id", "queue_offset")
    assert order_of("topics/orders") == ("published_at",)
    assert order_of("rejected") == ("rejected_at",)
