"""A scheduled message is cancelled: by one op, and only while it is scheduled."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial

import pytest

from checkback.cli import main
from checkback.operate.permissions import RefusedError
from checkback.operate.transaction import Asked, Place
from checkback.storage.timestamps import ms_of
from operate.fixtures import BOB, T0, Lakehouse

pytestmark = pytest.mark.slow

DUE = T0 + timedelta(hours=1)


def test_scheduled_message_is_cancelled_once(lake: Lakehouse) -> None:
    """One op, also of an operator who had committed it before, and a row in the ledger; then `reconcile` applies it."""
    place = lake.half(12)
    lake.resolve("COMMIT")
    lake.decide(place, "COMMIT", "operator", DUE)
    assert lake.cancel().operation.action == "CANCEL"
    op = lake.rows("op")[-1]
    assert (op["state"], op["source"], op["transaction_id"], op["queue_offset"]) == ("CANCEL", "operator", "tx", 12)
    assert [row["action"] for row in lake.rows("operations")] == ["RESOLVE_COMMIT", "CANCEL"]
    with pytest.raises(RefusedError, match="CANCEL by alice has landed at"):
        lake.cancel(signed=BOB)
    lake.decide(place, "CANCEL", "operator")
    with pytest.raises(RefusedError, match="is cancelled already: CANCEL since"):
        lake.cancel(signed=BOB)
    with pytest.raises(RefusedError, match=r"is decided: CANCEL since .* resume it: that makes"):
        lake.resolve("COMMIT")
    resumed = lake.resume().operation.new_place
    assert resumed is not None
    assert lake.rows("half")[-1]["body"] == lake.rows("half")[0]["body"]


def test_message_that_its_producer_has_recalled_is_not_cancelled_again(lake: Lakehouse) -> None:
    place = lake.half(12)
    lake.decide(place, "COMMIT", deliver_at=DUE)
    lake.op(place, state="CANCEL", source="producer")
    with pytest.raises(RefusedError, match="CANCEL by its producer has landed at"):
        lake.cancel()


def test_what_is_not_scheduled_is_not_cancelled(lake: Lakehouse) -> None:
    place = lake.half(12)
    with pytest.raises(RefusedError, match="is not scheduled but pending; a ROLLBACK ends it"):
        lake.cancel()
    lake.decide(place, "ROLLBACK")
    with pytest.raises(RefusedError, match="is not scheduled but decided: ROLLBACK since"):
        lake.cancel()
    at_once = lake.half(13, "at once")
    lake.op(at_once, transaction_id="at once")
    lake.decide(at_once, "COMMIT")
    before = lake.versions()
    assert main(["tx", "cancel", "at once", "--actor", "a", "--reason", "b", "--set", f"storage.root={lake.root}"]) == 1
    later = lake.half(14, "later")
    lake.decide(later, "COMMIT", deliver_at=DUE)
    lake.deliver(later)
    assert main(["tx", "cancel", "later", "--actor", "a", "--reason", "b", "--set", f"storage.root={lake.root}"]) == 1
    assert lake.versions()["op"] == before["op"]


def reject(lake: Lakehouse, place: Place) -> None:
    """`reconcile` puts the newest op of the place, which finds nothing scheduled, into `rejected`."""
    row = next(row for row in reversed(lake.rows("op")) if (row["queue_id"], row["queue_offset"]) == place)
    told = {name: row[name] for name in ("queue_id", "queue_offset", "transaction_id", "producer_group", "state")}
    raw = json.dumps(told | {"born_timestamp": ms_of(row["born_timestamp"])}, separators=(",", ":"))
    lake._append("rejected", {"source": "op", "raw": raw, "reason": "not scheduled", "rejected_at": lake.clock()})


def test_cancel_that_was_rejected_is_in_the_ledger_once_and_counts_as_undone(lake: Lakehouse) -> None:
    """Also if its command died before: the next completes it. Another may be given, and is recorded as well."""
    place = lake.half(12)
    lake.decide(place, "COMMIT", deliver_at=DUE)
    for actor in ("alice", "bob"):
        lake.op(place, "CANCEL", source="operator", remark=f"{actor}: before the crash")
        reject(lake, place)
        with pytest.raises(RefusedError, match="is not discarded but decided"):
            lake.resume()
    assert [(row["action"], row["actor"]) for row in lake.rows("operations")] == [
        ("CANCEL", "alice"),
        ("CANCEL", "bob"),
    ]
    assert not lake.cancel().repeated
    reject(lake, place)
    lake.deliver(place)
    for _ in range(2):
        with pytest.raises(RefusedError, match="was published at"):
            lake.cancel()
    assert [row["actor"] for row in lake.rows("operations")] == ["alice", "bob", "alice"]


def test_message_that_waits_for_its_topics_table_is_not_called_published(lake: Lakehouse) -> None:
    """It came due, and nobody has it; another message's row at the offset says nothing of it."""
    for offset, transaction_id, whose in ((12, "tx", "tx"), (13, "other", "before a restore")):
        place = lake.half(offset, transaction_id)
        lake.decide(place, "COMMIT", deliver_at=DUE)
        lake.deliver(place)
        lake.leave_unpublished(place, whose, "the table cannot be created")
    with pytest.raises(RefusedError, match=r"its topic's table did not take it: the table cannot be created; it is"):
        lake.cancel()
    with pytest.raises(RefusedError, match=r"was published at .*; tell its consumers"):
        lake.cancel(Asked("other"))


def test_message_without_a_transaction_is_not_rolled_back_but_cancelled(
    lake: Lakehouse, capfd: pytest.CaptureFixture[str]
) -> None:
    """No op changes it: before `reconcile` has scheduled it, nothing can be done. Resumed, nobody is asked."""
    place = lake.half(12, committed=True)
    for change in (lake.cancel, partial(lake.resolve, "ROLLBACK")):
        with pytest.raises(RefusedError, match=r"is its own COMMIT \(rule 12\), whatever op lands"):
            change()
    assert lake.rows("op") == []
    lake.decide(place, "COMMIT", deliver_at=DUE)
    assert lake.cancel().operation.action == "CANCEL"
    lake.decide(place, "CANCEL", "operator")
    options = ["tx", "--actor", "a", "--reason", "b", "--set", f"storage.root={lake.root}"]
    assert main(["tx", "resume", *options]) == 0
    assert "a new message without a transaction" in capfd.readouterr().out
    assert lake.resume().operation.new_place is not None
    assert lake.rows("half")[-1]["committed"] is True


def test_what_became_of_another_message_at_the_offset_does_not_count(lake: Lakehouse) -> None:
    """`half` was restored to an older state, and the offset assigned again."""
    before = lake.half(12, "before")
    lake.decide(before, "COMMIT", deliver_at=DUE)
    lake.deliver(before)
    lake.remove("half")
    lake.decide(lake.half(12), "COMMIT", deliver_at=DUE)
    assert lake.cancel().operation.action == "CANCEL"


def test_preview_says_when_it_is_due(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --yes nothing is written."""
    lake.decide(lake.half(12), "COMMIT", deliver_at=DUE)
    before = lake.versions()
    assert main(["tx", "cancel", "tx", "--actor", "a", "--reason", "b", "--set", f"storage.root={lake.root}"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "scheduled for 2026-01-01 01:00:00" in out
    assert "Nothing was done" in out
    assert lake.versions() == before
