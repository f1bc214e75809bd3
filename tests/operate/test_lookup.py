"""The half messages of a transaction id, found in real tables with what is known of each."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkback.errors import SettingsError
from checkback.messages.half import RESUMED_BY, RESUMED_FROM
from checkback.operate.lookup import find
from checkback.operate.permissions import RefusedError
from checkback.operate.transaction import AmbiguousError, Asked, Place
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import ms_of
from operate.fixtures import QUEUE, Lakehouse
from support.odd_rows import append_odd


def found_one(lake: Lakehouse, **more: Any) -> Any:
    (one,) = find(lake.store(), Asked("tx", **more), QUEUE).transactions
    return one


def test_transaction_is_found_with_its_checks_and_ops(lake: Lakehouse) -> None:
    """By its id or by its place; the newest answer, the ops that are its own in the order in which they are obeyed."""
    place = lake.half(12)
    lake.half(13, "another")
    lake.check(place, 1, "UNKNOWN")
    lake.check(place, 2, "NO_ANSWER", "too late")
    lake.op(place, "ROLLBACK", producer_group="others")
    lake.op(place, "ROLLBACK", transaction_id="another")
    lake.op(place, "MAYBE")
    lake.op(place, "COMMIT", transaction_id=None)
    lake.op(place, "ROLLBACK")
    one = found_one(lake)
    assert found_one(lake, place=place) == one
    assert (one.place, one.check_times, one.last_outcome, one.last_error) == (place, 2, "NO_ANSWER", "too late")
    assert [op.state for op in one.ops] == ["COMMIT", "ROLLBACK"]
    assert one.decision is None
    lake.decide(place, "COMMIT")
    one = found_one(lake)
    assert (one.decision.state, one.decision.source, one.check_times) == ("COMMIT", "producer", 15)


def test_ops_that_were_rejected_hinder_nobody(lake: Lakehouse) -> None:
    """COMMIT came long before its half message, CANCEL before the COMMIT: another may be given."""
    place = lake.half(0)
    lake.op(place)
    lake.op(place, "CANCEL", source="operator")
    for row in lake.rows("op"):
        told = {name: row[name] for name in ("queue_id", "queue_offset", "transaction_id", "producer_group", "state")}
        raw = json.dumps(told | {"born_timestamp": ms_of(row["born_timestamp"])}, separators=(",", ":"))
        lake._append("rejected", {"source": "op", "raw": raw, "reason": "why", "rejected_at": lake.clock()})
    found = found_one(lake)
    assert (found.ops, found.cancels) == ((), ())
    assert not lake.resolve("ROLLBACK").repeated
    assert [op.state for op in found_one(lake).ops] == ["ROLLBACK"]


def test_half_message_that_was_not_taken_is_not_found(lake: Lakehouse) -> None:
    """Of several at one offset the first that landed is the transaction."""
    lake.half(12, "tx")
    lake.half(12, "late")
    assert found_one(lake).place == Place(0, 12)
    for asked in (Asked("late"), Asked("late", place=Place(0, 12))):
        assert find(lake.store(), asked, QUEUE).transactions == []


def test_property_that_a_producer_has_set_means_nothing(lake: Lakehouse) -> None:
    """Only the queue of resumed messages has resumed messages."""
    first = lake.discarded()
    lake.half(13, properties=[(RESUMED_FROM, "0/12"), (RESUMED_BY, "eve: why not")])
    found = find(lake.store(), Asked("tx"), QUEUE).transactions
    assert [(one.place, one.resumed_as, one.resumed_from) for one in found] == [
        (first, None, None),
        (Place(0, 13), None, None),
    ]
    assert lake.resume(Asked("tx", place=first)).operation.new_place == Place(QUEUE, 0)
    assert [row["actor"] for row in lake.rows("operations")] == ["alice"]


def test_queue_of_resumed_messages_may_change(lake: Lakehouse) -> None:
    """The ledger knows the one before."""
    lake.discarded()
    lake.resume()
    found = find(lake.store(), Asked("tx"), QUEUE + 1).transactions
    assert [(one.place, one.resumed_as) for one in found] == [
        (Place(0, 12), Place(QUEUE, 0)),
        (Place(QUEUE, 0), None),
    ]


def test_several_half_messages_are_not_guessed_among(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other groups, other queues; too many are not even looked at."""
    lake.half(12)
    lake.half(12, queue=1)
    lake.half(13, group="pay")
    with pytest.raises(AmbiguousError) as ambiguous:
        lake.resolve("COMMIT")
    assert [one.place for one in ambiguous.value.transactions] == [Place(0, 12), Place(0, 13), Place(1, 12)]
    assert lake.resolve("COMMIT", Asked("tx", group="pay")).operation.place == Place(0, 13)
    assert lake.resolve("COMMIT", Asked("tx", place=Place(1, 12))).operation.place == Place(1, 12)
    monkeypatch.setattr("checkback.operate.lookup.MOST", 3)
    lake.half(20)
    with pytest.raises(SettingsError, match="4 half messages have this transaction id"):
        lake.resolve("COMMIT")
    assert lake.resolve("COMMIT", Asked("tx", place=Place(0, 20))).operation.place == Place(0, 20)


@pytest.mark.slow
def test_message_that_was_resumed_very_often(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place names one, whichever it is; an older one was resumed already, by the next."""
    monkeypatch.setattr("checkback.operate.lookup.MOST", 3)
    place, places = lake.discarded(), []
    for _ in range(6):
        resumed = lake.resume(Asked("tx", place=place)).operation.new_place
        assert resumed is not None
        places.append(place)
        lake.decide(resumed, "DISCARD", "checkback")
        place = resumed
    with pytest.raises(SettingsError, match="half messages have this transaction id"):
        lake.resume()
    for older, newer in zip(places, [*places[1:], place], strict=True):
        with pytest.raises(RefusedError, match=f"resumed as {newer}"):
            lake.resume(Asked("tx", place=older))
    assert lake.resume(Asked("tx", "orders", place)).operation.new_place == Place(QUEUE, 6)


@pytest.mark.parametrize("column", ["born_timestamp", "store_timestamp"])
def test_row_with_a_time_beyond_pythons_is_found(lake: Lakehouse, column: str) -> None:
    """Another writer's, in the year 20000: it can be resolved, and so can the others."""
    lake.half(11)
    far = pa.array([569_036_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    row = lake.rows("half")[0] | {"queue_offset": 12, "transaction_id": "far"}
    rows = pa.Table.from_pylist([row], arrow_schema("half"))
    rows = rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), far)
    write_deltalake(lake.tables.location("half"), rows, mode="append")
    for transaction_id in ("tx", "far"):
        assert lake.resolve("COMMIT", Asked(transaction_id)).operation.transaction_id == transaction_id


@pytest.mark.parametrize("column", ["transaction_id", "producer_group", "real_topic", "properties"])
def test_row_with_text_that_is_not_utf8_holds_up_no_other(lake: Lakehouse, column: str) -> None:
    """Another writer's, in `half` at the next offset, and in `op`, `decisions` and the ledger beside the others'."""
    lake.half(11)
    row = lake.rows("half")[0]
    odd = {column: [("bad", "bad")] if column == "properties" else "bad"}
    append_odd(lake.root, "half", [row | {"queue_offset": 12} | odd])
    append_odd(lake.root, "op", [{"queue_id": 0, "queue_offset": 11, "transaction_id": "bad", "state": "bad"}])
    assert lake.resolve("COMMIT", Asked("tx", place=Place(0, 11))).operation.transaction_id == "tx"
