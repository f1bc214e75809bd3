"""Which requests were overtaken, against a model of plain loops; and answers told apart that bear one number."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.check.query import op_rows
from checkback.check.recorded_answers import answers_to, deduplicate_requests
from checkback.check.superseded import DECIDED, NEWER, not_sent, possibly_superseded, superseded_by
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

T0 = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def at(seconds: int) -> datetime:
    return T0 + timedelta(seconds=seconds)


def table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=arrow_schema(name))


def check(offset: int, times: int, seconds: int, queue: int = 0) -> dict[str, Any]:
    row = {"queue_id": queue, "queue_offset": offset, "transaction_id": f"t{offset}", "producer_group": "orders"}
    return row | {"real_topic": "orders", "check_times": times, "requested_at": at(seconds), "batch_id": 1}


places = st.tuples(st.integers(0, 1), st.integers(0, 3))
asked = st.lists(st.tuples(places, st.integers(1, 4), st.integers(0, 9)), max_size=8, unique=True)
decided = st.lists(st.tuples(places, st.integers(0, 9), st.sampled_from(["COMMIT", "DISCARD"])), max_size=4)


@given(asked, asked, decided)
def test_overtaken_is_what_has_a_newer_request_or_a_decision(
    mine: list[Any], others: list[Any], decisions: list[Any]
) -> None:
    """And says by what: the decision, else the newest request."""
    requests = table("check_requests", [check(place[1], times, when, place[0]) for place, times, when in mine])
    newer = table("check_requests", [check(place[1], times, when, place[0]) for place, times, when in others])
    ends = [
        {"queue_id": place[0], "queue_offset": place[1], "decided_at": at(when), "state": state}
        for place, when, state in decisions
    ]
    found = superseded_by(
        requests, newer.select(NEWER.column_names), pa.Table.from_pylist(ends, schema=DECIDED.schema)
    ).to_pylist()
    assert len(found) == len(mine)
    for (place, _, when), said in zip(mine, found, strict=True):
        states = {state for other, at_, state in decisions if other == place and at_ >= when}
        newest = max((at_ for other, _, at_ in mine + others if other == place), default=0)
        numbers = {times for other, times, at_ in mine + others if other == place and at_ == newest}
        latest = max((at_ for other, at_, _ in decisions if other == place), default=-1)
        if latest >= when:
            assert said in {f"overtaken by the decision {state}" for state in states}
        elif newest > when:
            assert said in {f"overtaken by check {number}" for number in numbers}
        else:
            assert said is None


def test_pile_for_one_half_leaves_the_newest() -> None:
    """Also where the pile alone tells, without a look into the tables; after a rebuild the newest is no. 1 again."""
    pile = [check(7, 14, 0), check(7, 15, 60), check(7, 1, 120), check(8, 2, 0)]
    why = superseded_by(table("check_requests", pile), NEWER, DECIDED)
    assert why.to_pylist() == ["overtaken by check 1"] * 2 + [None, None]


def test_skipped_is_an_answer_that_nobody_received() -> None:
    rows = table("check_requests", [check(7, 3, 0)])
    (row,) = not_sent(rows, pa.chunked_array([["overtaken by check 4"]]), at(9), 5).to_pylist()
    assert (row["transaction_id"], row["check_times"], row["batch_id"]) == ("t7", 3, 5)
    assert (row["outcome"], row["error"], row["delivered"]) == ("SKIPPED", "overtaken by check 4", False)
    assert (row["endpoint"], row["latency_ms"], row["answered_at"], row["failed_tries"]) == (None, 0, at(9), [])
    none = not_sent(rows.slice(0, 0), pa.chunked_array([], pa.string()), at(9), 5)
    assert (none.num_rows, none.schema) == (0, arrow_schema("check_answers"))


def test_stale_is_what_is_as_old_as_an_interval() -> None:
    rows = table("check_requests", [check(1, 1, 0), check(2, 1, 1)])
    assert possibly_superseded(rows, at(60), timedelta(seconds=60)).column("queue_offset").to_pylist() == [1]
    assert possibly_superseded(rows, at(59), timedelta(seconds=60)).num_rows == 0


def answer(offset: int, times: int, seconds: int, outcome: str, delivered: bool | None) -> dict[str, Any]:
    return check(offset, times, 0) | {"outcome": outcome, "answered_at": at(seconds), "delivered": delivered}


def answers(*rows: tuple[int, int, int, str, bool | None]) -> pa.Table:
    schema = arrow_schema("check_answers")
    made = [answer(*row) for row in rows]
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in made], schema=schema)


def test_answers_to_requests_are_told_by_number_and_time() -> None:
    """A number that was given back is asked again: what nobody received before is no answer to it."""
    requests = table("check_requests", [check(1, 1, 60), check(2, 1, 60), check(3, 2, 60), check(4, 1, 60)])
    rows = answers(
        (1, 1, 5, "NO_ANSWER", False),
        (2, 1, 5, "NO_ANSWER", True),
        (3, 1, 5, "UNKNOWN", True),
        (3, 2, 65, "SKIPPED", False),
        (4, 1, 5, "COMMIT", None),  # a row without `delivered`
        (9, 1, 65, "COMMIT", True),
    )
    found = answers_to(requests, rows)
    assert found.column("queue_offset").to_pylist() == [2, 3, 4]
    assert answers_to(requests.slice(0, 0), rows).num_rows == 0


def test_answers_of_a_batch_done_again_are_its_own_whatever_the_clock_says() -> None:
    """The clock was set back between the request and the answer: nobody is asked twice for one row."""
    requests = table("check_requests", [check(1, 1, 60), check(2, 1, 60)])
    rows = answers((1, 1, 5, "NO_ANSWER", False), (2, 1, 5, "NO_ANSWER", False))
    batch_ids = pa.array([7, 6], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("batch_id"), "batch_id", batch_ids)
    assert answers_to(requests, rows).num_rows == 0
    assert answers_to(requests, rows, own=7).column("queue_offset").to_pylist() == [1]


def test_answers_of_another_transaction_at_the_place_are_no_answers() -> None:
    """`half` was put back, and the place given out again: the checks of the lost one bear the same numbers."""
    lost, other = check(1, 1, 0) | {"transaction_id": "lost"}, check(1, 1, 0) | {"producer_group": "others"}
    rows = answers((1, 1, 65, "COMMIT", True))
    for asked_of in (lost, other):
        assert answers_to(table("check_requests", [asked_of]), rows).num_rows == 0
    requests = table("check_requests", [lost, check(1, 1, 60), other])
    assert answers_to(requests, rows).num_rows == 1
    assert deduplicate_requests(requests).num_rows == 3


def test_once_keeps_the_newest_of_one_number() -> None:
    rows = table("check_requests", [check(1, 1, 0), check(1, 1, 60), check(2, 1, 0)])
    assert sorted(deduplicate_requests(rows).column("requested_at").to_pylist()) == [at(0), at(60)]


def test_ops_say_delivered_only_if_others_do_not_count() -> None:
    rows = answers(
        (1, 1, 5, "NO_ANSWER", False),
        (2, 4, 5, "SKIPPED", False),
        (3, 1, 5, "NO_ANSWER", True),
        (4, 1, 5, "NO_ANSWER", None),
        (5, 1, 5, "COMMIT", True),
    )
    said = [
        {
            (row["queue_offset"], row["state"], row["source"], row["remark"])
            for row in op_rows(rows, T0, last).to_pylist()
        }
        for last in (15, None)
    ]
    commit = (5, "COMMIT", "check", "check 1")
    assert said[0] == {commit}
    assert said[1] == {commit, (3, "COUNTED", "check", "check 1"), (4, "COUNTED", "check", "check 1")}
