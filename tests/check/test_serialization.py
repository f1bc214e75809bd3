"""What the tasks of a check batch get and return, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.check.recorded_answers import KEY, key_numbers
from checkback.check.worker import CheckWorker, answers_of, check_partitions, partition_requests
from checkback.storage.schemas import arrow_schema

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _requests(offsets: list[int], born_us: int | None = 0) -> pa.Table:
    born = None if born_us is None else _EPOCH + timedelta(microseconds=born_us)
    rows = [
        {"queue_id": 0, "queue_offset": offset, "transaction_id": "tx", "producer_group": "g", "real_topic": "orders"}
        | {"check_times": 1, "born_timestamp": born, "requested_at": _EPOCH, "batch_id": 0}
        for offset in offsets
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema("check_requests"))


@pytest.mark.slow
@given(st.lists(st.integers(0, 99), min_size=1, max_size=20), st.integers(1, 5))
def test_each_request_is_asked_by_one_task(offsets: list[int], tasks: int) -> None:
    """And no task has more than one request more than another."""
    shares = partition_requests(_requests(offsets), tasks)
    assert len(shares) == min(tasks, len(offsets))
    ask = check_partitions(CheckWorker({}, 5, None, concurrency=1), shares)
    returned = [
        answers_of(pa.Table.from_batches(list(ask([pa.RecordBatch.from_pydict({"id": [number]})]))))
        for number in range(len(shares))
    ]
    assert {rows.num_rows - 1 for rows in returned} <= {len(offsets) // tasks, -(-len(offsets) // tasks), 1}
    found = pa.concat_tables(returned)
    answers = found.filter(found.column("health").is_null())
    assert sorted(answers.column("queue_offset").to_pylist()) == sorted(offsets)
    assert found.column("health").null_count == len(offsets)
    assert set(answers.column("error").to_pylist()) <= {"producers.g has no endpoints"}


@given(st.none() | st.integers(-5_000, 5_000))
def test_births_are_whole_milliseconds(born_us: int | None) -> None:
    """Rounded down, as Spark's unix_millis does."""
    (share,) = partition_requests(_requests([1], born_us), 1)
    with pa.ipc.open_stream(share) as stream:
        rows = stream.read_all().to_pylist()
    assert [row["born_ms"] for row in rows] == [None if born_us is None else born_us // 1000]


_NAMES = st.sampled_from([None, "", "a"])
_KEYS = st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 1), _NAMES, _NAMES)
Key = tuple[int, int, int, str | None, str | None]


@given(st.lists(_KEYS, max_size=8), st.lists(_KEYS, max_size=8))
def test_same_key_same_number(one: list[Key], other: list[Key]) -> None:
    types = (pa.int32(), pa.int64(), pa.int32(), pa.string(), pa.string())
    tables = [
        pa.table({name: pa.array([key[at] for key in keys], types[at]) for at, name in enumerate(KEY)})
        for keys in (one, other)
    ]
    tables[0] = pa.concat_tables([tables[0].slice(0, 2), tables[0].slice(2)])  # in chunks
    first, second = (numbers.tolist() for numbers in key_numbers(*tables))
    of_key = dict(zip(one + other, first + second, strict=True))
    assert [of_key[key] for key in one] == first
    assert [of_key[key] for key in other] == second
    assert len(set(of_key.values())) == len(of_key)
