"""Runs of batches as one row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.storage import batch_runs
from checkback.storage.batch_runs import runs_of
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import time_of

_SCHEMA = arrow_schema("batches")
_START = 1_700_000_000_000


def row(number: int, at: int = 0, application: str | None = "a", **more: Any) -> dict[str, Any]:
    """A batch ``at`` seconds after the start, which published a message and wrote its topic's version ``number``."""
    known = {"committed": 1, "rolled_back": 0, "discarded": 0, "checks": 0, "rejected": 0, "unpublished": 0}
    end = time_of(_START + at * 1000 + 500)
    return {
        "application": application,
        "batch_id": number,
        "batch_time": time_of(_START + at * 1000),
        "finished_at": end,
        "check_max": 15,
        "table_versions": [("topics/t", number)],
        **known,
        **more,
    }


def runs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `runs_of` makes of them."""
    found: list[dict[str, Any]] = runs_of(pa.Table.from_pylist(rows, _SCHEMA)).to_pylist()
    return found


def ids(found: list[dict[str, Any]]) -> list[tuple[int | None, int]]:
    """First and last batch of each."""
    return [(each["first_batch_id"], each["batch_id"]) for each in found]


def reads(first: int, last: int) -> dict[str, int]:
    return {"from_version": first, "from_index": 0, "to_version": last, "to_index": 1}


def test_run_has_its_last_batch_and_the_sums() -> None:
    found = runs(
        [
            row(4, 2, delivered=2, table_versions=[("op", 1), ("topics/t", 7)], read_ranges=[("half", reads(1, 2))]),
            row(5, 3, committed=5, table_versions=[("topics/t", -1), ("topics/u", -1)], read_ranges=None),
            row(6, 3, table_versions=[("op", 3)], read_ranges=[("half", reads(3, 4)), ("op", reads(8, 9))]),
        ]
    )
    assert len(found) == 1
    assert (
        found[0]
        | {
            "application": "a",
            "batch_id": 6,
            "batch_time": time_of(_START + 3000),
            "finished_at": time_of(_START + 3500),
            "committed": 7,
            "delivered": 2,
            "scheduled": None,
            "check_max": 15,
            "timeout_ms": None,
            "table_versions": [("op", 3), ("topics/t", 7), ("topics/u", -1)],
            "read_ranges": [("half", reads(1, 4)), ("op", reads(8, 9))],
            "first_batch_id": 4,
            "first_batch_time": time_of(_START + 2000),
        }
        == found[0]
    )


def test_what_ends_a_run() -> None:
    back: dict[str, Any] = {"finished_at": time_of(_START)}
    assert ids(runs([row(1, 1), row(2, 2), row(4, 3), row(5, 4)])) == [(1, 2), (4, 5)]
    assert ids(runs([row(1, 1), row(2, 2), row(3, 1), row(4, 2)])) == [(1, 2), (3, 4)]
    assert ids(runs([row(1, 1), row(2, 2), row(3, 2, **back), row(4, 2)])) == [(1, 2), (3, 4)]
    assert ids(runs([row(1, 1), row(2, 2), row(3, 3, check_max=9), row(4, 4, check_max=9)])) == [(1, 2), (3, 4)]
    assert ids(runs([row(1, 1), row(2, 2, committed=None), row(3, 3), row(4, 4)])) == [(None, 1), (None, 2), (3, 4)]
    assert ids(runs([row(1, 1), row(2, 2, table_versions=None)])) == [(None, 1), (None, 2)]
    assert ids(runs([row(1, 1, None), row(2, 2, None)])) == [(None, 1), (None, 2)]
    assert ids(runs([row(1, 1), row(1, 2), row(2, 3), row(3, 4)])) == [(None, 1), (None, 1), (2, 3)]
    restored: dict[str, Any] = {"restored_at": [("half", 3)]}
    assert ids(runs([row(1, 1), row(2, 2), row(3, 3, **restored), row(4, 4)])) == [(1, 2), (3, 4)]
    assert runs([row(3, 3, **restored), row(4, 4)])[0]["restored_at"] == [("half", 3)]


def test_run_is_not_too_large() -> None:
    half = batch_runs.MOST_MESSAGES // 2
    many = [row(number, number, committed=half) for number in range(5)]
    assert ids(runs(many)) == [(0, 1), (2, 3), (None, 4)]
    assert ids(runs([row(0, committed=3 * half), row(1, 1), row(2, 2)])) == [(None, 0), (1, 2)]
    hours = [row(number, number * 43_200) for number in range(4)]
    assert ids(runs(hours)) == [(0, 2), (None, 3)]


def test_another_applications_batch_between_keeps_batches_apart() -> None:
    mine, other = [row(number, number) for number in range(4)], [row(2, 1, "b"), row(3, 5, "b"), row(4, 6, "b")]
    assert ids(runs([*mine, *other])) == [*((None, number) for number in range(4)), (None, 2), (None, 3), (None, 4)]
    assert ids(runs([*mine, row(2, 4, "b"), row(3, 5, "b")])) == [(0, 3), (2, 3)]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 9), st.integers(0, 40_000)),
        max_size=24,
        unique_by=lambda one: one[:2],
    ),
    st.integers(0, 24),
)
def test_runs_have_their_batches_and_no_other(drawn: list[tuple[str, int, int, int]], first: int) -> None:
    """Also if runs are made of some first, and of these and the others later."""
    batches = [row(number, time * 3600, name, committed=many) for name, number, time, many in drawn]
    found = runs([*runs(batches[:first]), *batches[first:]] if first % 2 else batches)
    of: dict[int, list[int]] = {}
    for place, (name, number, time, _) in enumerate(drawn):
        at = time_of(_START + time * 3_600_000)
        for index, run in enumerate(found):
            first_id, first_time = run["first_batch_id"], run["first_batch_time"]
            low, begin = (run["batch_id"], run["batch_time"]) if first_id is None else (first_id, first_time)
            if low <= number <= run["batch_id"] and begin <= at <= run["batch_time"]:
                of.setdefault(place, []).append(index)
                assert first % 2 or run["application"] == name or first_id is None
    for place, (name, *_) in enumerate(drawn):
        assert [found[at]["application"] for at in of[place]].count(name) == 1
    assert sum(run["committed"] for run in found) == sum(many for *_, many in drawn)
    for run in found:
        if run["first_batch_id"] is not None:
            assert run["committed"] <= batch_runs.MOST_MESSAGES
            assert run["batch_time"] - run["first_batch_time"] <= timedelta(days=1)


def test_no_rows() -> None:
    assert runs([]) == []
