"""What the gateway reads of the tables beside its own rows, and how much of it it holds at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from checkback.errors import StorageError
from checkback.gateway.appender import half_rows
from checkback.gateway.deduplication.history import LEFT, DeduplicationHistory, TransactionEnd
from checkback.gateway.deduplication.remembered_half import STATE_OF, RememberedHalf, fingerprint, name_of
from checkback.messages.half import Half
from checkback.messages.limits import LONG_MAX, MS_MAX
from checkback.storage.horizon import versions_of
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import LEAST
from support.odd_rows import append_odd

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 3, 1, tzinfo=timezone.utc)
T0_MS = round(T0.timestamp() * 1000)
HALF = Half(-1, -1, "tx", "orders", "payments", 0, None, None, {}, b"body", T0_MS, None)


def append(root: Path, name: str, rows: pa.Table) -> None:
    DeltaLog.create(name, f"{root}/{name}")
    with FileWriter(str(root)) as writer:
        writer.write(name, rows)
        files = writer.close()
    DeltaLog(name, f"{root}/{name}").commit(files)


def land(root: Path, name: str, *rows: dict[str, Any]) -> None:
    append(root, name, pa.Table.from_pylist(list(rows), schema=arrow_schema(name)))


def half(offset: int, transaction_id: str = "tx", second: int = 0, **more: Any) -> dict[str, Any]:
    own = {"queue_id": 0, "queue_offset": offset, "transaction_id": transaction_id, "producer_group": "orders"}
    own |= {"real_topic": "payments", "properties": [], "body": b"body", "born_timestamp": T0}
    return own | {"store_timestamp": T0 + timedelta(seconds=second)} | more


def op(offset: int, state: str, second: int = 0, **more: Any) -> dict[str, Any]:
    own = {"queue_id": 0, "queue_offset": offset, "transaction_id": "tx", "producer_group": "orders", "state": state}
    stored = T0 + timedelta(seconds=second)
    return own | {"source": "producer", "born_timestamp": T0, "store_timestamp": stored} | more


def kept(offset: int, transaction_id: str = "tx") -> RememberedHalf:
    return RememberedHalf(0, offset, name_of("orders", transaction_id), 0, "payments", T0_MS, T0_MS)


def recent(history: DeduplicationHistory, queues: list[int], since: datetime, most: int) -> list[RememberedHalf]:
    """As the cache has them."""
    found = history.recent(queues, since, most)
    columns = (found.queue_ids, found.offsets, found.names, found.fingerprints, found.topics, found.born, found.stored)
    values = zip(*(pa.array(column).to_pylist() for column in columns), found.states, strict=True)
    return [
        RememberedHalf(queue_id, offset, name, content, topic, born, stored, STATE_OF[code])
        for queue_id, offset, name, content, topic, born, stored, code in values
    ]


def test_check_that_counts_ends_no_transaction(tmp_path: Path) -> None:
    """A COUNTED row is no op of the half: it neither ends it nor hides the op after it."""
    said = [(0, "COUNTED"), (1, "COUNTED"), (1, "COMMIT")]
    land(tmp_path, "op", *(op(offset, state, second) for second, (offset, state) in enumerate(said)))
    assert DeduplicationHistory(str(tmp_path)).ended([kept(0), kept(1)]) == {(0, 1): TransactionEnd("COMMIT")}


def test_op_of_somebody_else_ends_no_transaction(tmp_path: Path) -> None:
    """Neither where it is looked up, nor at a start."""
    land(tmp_path, "half", half(0), half(1, "long" * 99))
    land(tmp_path, "op", op(0, "ROLLBACK", producer_group="evil"), op(0, "ROLLBACK", transaction_id="another"))
    land(tmp_path, "op", op(1, "ROLLBACK", transaction_id="long" * 98), op(1, "COMMIT", transaction_id="long" * 99))
    history = DeduplicationHistory(str(tmp_path))
    assert [half.state for half in recent(history, [0], T0, 10)] == [None, "COMMIT"]
    assert {place: half.state for place, half in history.find({(0, 0), (0, 1)}).items()} == {
        (0, 0): None,
        (0, 1): "COMMIT",
    }
    land(tmp_path, "op", op(0, "COMMIT", 5, transaction_id=None))
    assert history.ended([kept(0)]) == {(0, 0): TransactionEnd("COMMIT")}


def test_op_that_was_rejected_ends_no_transaction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Until another is there. A line of a file, rejected by `land`, is about no row of `op`."""
    land(tmp_path, "half", half(0), half(1))
    land(tmp_path, "op", op(0, "COMMIT"), op(1, "COMMIT"))
    raw = '{"queue_id":0,"queue_offset":%d,"transaction_id":"tx","producer_group":"orders","state":"COMMIT",'
    raw += f'"source":"producer","born_timestamp":{T0_MS}}}'
    rows = [
        {"source": "op", "raw": raw % offset, "reason": "too many", "file": file, "rejected_at": T0}
        for offset, file in ((0, None), (1, "in/op.jsonl"))
    ]
    land(tmp_path, "rejected", *rows)
    history = DeduplicationHistory(str(tmp_path))
    found = history.find([(0, 0), (0, 1)])
    assert [found[0, offset].state for offset in range(2)] == [None, "COMMIT"]
    assert [one.state for one in recent(history, [0], T0, 10)] == [None, "COMMIT"]
    assert not caplog.records
    land(tmp_path, "op", op(0, "ROLLBACK", 1))
    assert history.find([(0, 0)])[0, 0].state == "ROLLBACK"
    assert [one.state for one in recent(history, [0], T0, 10)] == ["ROLLBACK", "COMMIT"]


def test_decision_of_somebody_else_is_not_told(tmp_path: Path) -> None:
    """A half message whose offset was seen before is rejected: the decision there is another transaction's."""
    land(tmp_path, "half", half(0, second=1), half(0, "late", 2))
    row = half(0) | {"state": "COMMIT", "source": "producer", "check_times": 0, "decided_at": T0}
    land(tmp_path, "decisions", {name: row.get(name) for name in arrow_schema("decisions").names})
    history = DeduplicationHistory(str(tmp_path))
    assert history.ended([kept(0)]) == {(0, 0): TransactionEnd("COMMIT", decided_at=T0_MS)}
    assert history.ended([kept(0, "late")]) == {}
    assert list(history.named("orders", "late")) == [[]]
    assert history.find({(0, 0)})[0, 0].name == "orders/tx"
    ((found,),) = history.named("orders", "tx")
    assert (found.queue_offset, found.stored) == (0, T0_MS + 1000)


def test_delivery_and_cancel_of_a_scheduled_message(tmp_path: Path) -> None:
    """The last decision is the CANCEL. Those of another transaction at the offset are not its own."""
    land(tmp_path, "half", half(0), half(1))
    row = half(0) | {"state": "COMMIT", "source": "producer", "check_times": 0, "decided_at": T0}
    due = T0 + timedelta(hours=1)
    rows = [row | {"deliver_at": due}, row | {"queue_offset": 1, "deliver_at": due}]
    rows.append(row | {"queue_offset": 1, "state": "CANCEL", "decided_at": T0 + timedelta(minutes=1)})
    for table, told in (("decisions", rows), ("deliveries", [row | {"deliver_at": due, "delivered_at": due}])):
        land(tmp_path, table, *({name: one.get(name) for name in arrow_schema(table).names} for one in told))
    history = DeduplicationHistory(str(tmp_path))
    end = TransactionEnd("COMMIT", decided_at=T0_MS, deliver_at=T0_MS + 3_600_000)
    cancelled = replace(end, state="CANCEL", decided_at=T0_MS + 60_000)
    assert history.ended([kept(0), kept(1)]) == {(0, 0): end, (0, 1): cancelled}
    assert [history.delivered(kept(offset)) for offset in (0, 1)] == [T0_MS + 3_600_000, None]
    assert history.delivered(kept(0, "late")) is None


@pytest.mark.parametrize("commits", [1, 30])
def test_decisions_are_read_once_each_whatever_becomes_of_their_files(tmp_path: Path, commits: int) -> None:
    """First those from an offset on, then what is new: also after a compaction, and when a file is missing."""
    history = DeduplicationHistory(str(tmp_path))

    def decided(first: int = 0) -> list[tuple[int, str | None]]:
        found = history.decided({0: first, 5: 7})
        return [
            (offset, STATE_OF[code])
            for queue_id, offsets, states in found
            for offset, code in zip(offsets.tolist(), states.tolist(), strict=True)
            if queue_id == 0
        ]

    def decide(*said: tuple[int, str], queue_id: int = 0) -> None:
        about = dict.fromkeys(arrow_schema("decisions").names)
        rows = [{"queue_id": queue_id, "queue_offset": offset, "state": state} for offset, state in said]
        land(tmp_path, "decisions", *(about | row for row in rows))

    assert decided() == []
    decide((1, "DISCARD"))
    decide((2, "CANCEL"), (2, "COMMIT"), (3, "ROLLBACK"), (4, "what?"), queue_id=0)
    decide((3, "DISCARD"), queue_id=1)
    assert decided(2) == [(2, "COMMIT"), (3, "ROLLBACK"), (2, "CANCEL")]
    for offset in range(commits):
        decide((offset, "COMMIT"))
    assert decided() == [(offset, "COMMIT") for offset in range(commits)]
    log = DeltaLog("decisions", f"{tmp_path}/decisions")
    old = log.paths()
    with FileWriter(str(tmp_path)) as writer:
        for path in sorted(old):
            rows = read_rows(f"{tmp_path}/decisions/{path}", "decisions", None, pc.field("queue_id").is_valid())
            writer.write("decisions", rows)
        assert log.replace(old, writer.close())
    assert decided() == []
    decide((100, "DISCARD"))
    before = log.paths()
    assert decided() == [(100, "DISCARD")]
    decide((101, "COMMIT"))
    (new,) = log.paths() - before
    (tmp_path / "decisions" / new).rename(tmp_path / "away")
    with pytest.raises(StorageError, match="cannot be read"):
        decided()
    (tmp_path / "away").rename(tmp_path / "decisions" / new)
    assert set(decided(100)) >= {(100, "DISCARD"), (101, "COMMIT")}
    assert decided() == []


def test_rows_that_no_door_lets_in_stop_nothing(tmp_path: Path) -> None:
    """Whoever writes the tables by other means may leave out what he likes."""
    nothing = dict.fromkeys(arrow_schema("half").names)
    land(tmp_path, "half", nothing | {"queue_id": 0}, nothing | {"queue_id": 0, "queue_offset": 1}, half(2))
    land(tmp_path, "half", nothing | {"queue_id": 0, "queue_offset": 3, "store_timestamp": T0})
    land(tmp_path, "op", {"queue_id": 0, "queue_offset": 2, "state": "COMMIT", "store_timestamp": T0})
    land(tmp_path, "op", op(2, "COMMIT", store_timestamp=None), op(2, "COMMIT", born_timestamp=None))
    history = DeduplicationHistory(str(tmp_path))
    assert history.next_offset(0) == 4
    assert [(half.queue_offset, half.state) for half in recent(history, [0], T0, 10)] == [(2, "COMMIT"), (3, None)]
    assert {place: half.name for place, half in history.find({(0, 1), (0, 3)}).items()} == {(0, 1): "/", (0, 3): "/"}


@pytest.mark.parametrize("offset", [LONG_MAX, LONG_MAX - 3, LONG_MAX - LEFT + 1])
def test_queue_that_soon_has_no_offset_left_is_told(tmp_path: Path, offset: int) -> None:
    """At the start: a commit has no offsets to give then, and whoever waits for it no answer."""
    land(tmp_path, "half", half(offset))
    with pytest.raises(StorageError, match=rf"has the offset {offset}: too few.*other gateway\.queues"):
        DeduplicationHistory(str(tmp_path)).next_offset(0)


def test_queue_with_offsets_left_goes_on(tmp_path: Path) -> None:
    land(tmp_path, "half", half(LONG_MAX - LEFT))
    assert DeduplicationHistory(str(tmp_path)).next_offset(0) == LONG_MAX - LEFT + 1


def test_offset_that_is_decided_is_not_given_out_again(tmp_path: Path) -> None:
    """`half` was restored to an older state: what was decided of it since stays decided."""
    land(tmp_path, "half", half(2), half(9, queue_id=1))
    decided = {"transaction_id": "tx", "producer_group": "orders", "state": "COMMIT", "decided_at": T0, "batch_id": 0}
    places = [(0, 2), (0, 4), (1, 7), (2, 20)]
    land(tmp_path, "decisions", *({"queue_id": queue, "queue_offset": offset} | decided for queue, offset in places))
    history = DeduplicationHistory(str(tmp_path))
    assert [history.next_offset(queue) for queue in range(4)] == [5, 10, 21, 0]


def test_offsets_that_retention_removes_meanwhile_are_not_given_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows about them are gone by the time `half` is looked at: only its floor knows."""
    land(tmp_path, "half", half(8))
    look = DeduplicationHistory._last_offset

    def retention_is_first(history: DeduplicationHistory, table: str, queue_id: int, last: int) -> int:
        monkeypatch.undo()
        log = DeltaLog("half", f"{tmp_path}/half")
        assert log.remove(log.paths(), [], versions_of(T0_MS, {0: 9}), changes=False)
        return look(history, table, queue_id, last)

    monkeypatch.setattr(DeduplicationHistory, "_last_offset", retention_is_first)
    assert DeduplicationHistory(str(tmp_path)).next_offset(0) == 9


def test_checks_are_the_transactions_own_and_keep_their_offset(
    tmp_path: Path,
) -> None:
    """`half` was restored to an older state: a transaction that was only checked is lost, and its place."""
    land(tmp_path, "half", half(0), half(1))
    checked = {"transaction_id": "tx", "producer_group": "orders", "requested_at": T0, "batch_id": 0}
    places = [(0, 1), (1, 2), (3, 3)]
    rows = [{"queue_id": 0, "queue_offset": offset, "check_times": times} | checked for offset, times in places]
    land(tmp_path, "check_requests", *rows, rows[1] | {"transaction_id": "lost", "check_times": 9})
    history = DeduplicationHistory(str(tmp_path))
    assert history.next_offset(0) == 4
    assert [history.check_times(half) for half in (kept(0), kept(1), kept(1, "lost"), kept(2))] == [1, 2, 9, 0]


@pytest.mark.parametrize("table", ["half", "op", "decisions"])
def test_commit_that_a_power_cut_tore_is_put_aside(tmp_path: Path, table: str) -> None:
    """Also of a table that only others write, and not where nobody flushes: an empty commit proves nothing there."""
    land(tmp_path, "half", half(2))
    land(tmp_path, "op", op(2, "COMMIT"))
    decided = {"queue_id": 0, "queue_offset": 4, "transaction_id": "tx", "producer_group": "orders", "state": "COMMIT"}
    land(tmp_path, "decisions", decided)
    torn = tmp_path / table / f"_delta_log/{2:020}.json"
    torn.touch()
    with pytest.raises(StorageError, match="maintain --repair"):
        looked_up(DeduplicationHistory(str(tmp_path), sync=False))
    assert looked_up(DeduplicationHistory(str(tmp_path))) == (5, "COMMIT")
    assert not torn.exists()


def looked_up(history: DeduplicationHistory) -> tuple[int, str | None]:
    return history.next_offset(0), history.find({(0, 2)})[0, 2].state


def test_no_half_message_goes_past_the_last_offset() -> None:
    """The last one is given; a commit that needs one more is refused as a whole."""
    rows = half_rows([HALF, HALF], 0, LONG_MAX - 1, T0_MS)
    assert rows.column("queue_offset").to_pylist() == [LONG_MAX - 1, LONG_MAX]
    with pytest.raises(StorageError, match=r"queue 0: no offsets are left.*other gateway\.queues"):
        half_rows([HALF, HALF], 0, LONG_MAX, T0_MS)


@pytest.mark.parametrize("year_us", [569_036_000_000_000_000, -(2**62)])
def test_times_beyond_pythons_stop_nothing(tmp_path: Path, year_us: int) -> None:
    """Delta has the years 290,000 before and after: those of other writers count as the nearest that Python has."""
    far = pa.array([year_us], pa.int64()).cast(pa.timestamp("us", "UTC"))
    land(tmp_path, "half", half(0))
    born, stored_at = "born_timestamp", "store_timestamp"
    for offset, beyond in enumerate(([born], [stored_at], [born, stored_at]), 1):
        for name, row in (("half", half(offset)), ("op", op(offset, "COMMIT"))):
            rows = pa.Table.from_pylist([row], schema=arrow_schema(name))
            for column in beyond:
                rows = rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), far)
            DeltaLog.create(name, f"{tmp_path}/{name}")
            write_deltalake(f"{tmp_path}/{name}", rows, mode="append")
    history = DeduplicationHistory(str(tmp_path))
    assert history.next_offset(0) == 4
    stored = {half.queue_offset: half.stored for half in recent(history, [0], T0, 10)}
    assert set(stored) == ({0, 1, 2, 3} if year_us > 0 else {0, 1})
    assert all(LEAST // 1000 <= half.stored <= MS_MAX for half in history.find({(0, n) for n in range(4)}).values())
    places = {(0, n): half.state for (_, n), half in history.find({(0, n) for n in range(4)}).items()}
    assert places == {(0, 0): None, (0, 1): "COMMIT", (0, 2): "COMMIT", (0, 3): "COMMIT"}
    assert any(history.named("orders", "tx"))


def test_half_messages_of_a_name_are_searched_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a list landed after those of the next one, also where the times of files overlap; no more is read."""
    seconds = {0: 1, 1: 9, 2: 5, 3: 20, 4: 12, 5: 30, 6: 40}
    for offsets in ((0, 1), (2,), (3, 4), (5,), (6,)):
        land(tmp_path, "half", *(half(offset, "tx" if offset < 5 else "other", seconds[offset]) for offset in offsets))
    read: list[str] = []

    def reading(path: str, name: str, *more: Any) -> pa.Table:
        read.append(name)
        return read_rows(path, name, *more)

    monkeypatch.setattr("checkback.gateway.deduplication.history.read_rows", reading)
    searched = DeduplicationHistory(str(tmp_path)).named("orders", "tx")
    assert {one.queue_offset for one in next(searched)} == {3, 4}
    assert len(read) <= 3 + 1, "of five files the last three, and the half messages that were found"
    assert [{one.queue_offset for one in halves} for halves in searched] == [{0, 1, 2}]


def test_recent_half_messages_are_the_last_ones(tmp_path: Path) -> None:
    """With the fingerprints of their content; in the order of landing, whatever files they lie in."""
    for second in (3, 1, 2):
        halves = [HALF._replace(transaction_id=f"{second}-{n}", properties={"n": str(n)}) for n in range(5)]
        append(tmp_path, "half", half_rows(halves, 0, 5 * second, T0_MS + 1000 * second))
    history = DeduplicationHistory(str(tmp_path))
    last = recent(history, [0], T0 + timedelta(seconds=2), 100)
    assert [half.queue_offset for half in last] == list(range(10, 20))
    content = fingerprint(HALF._replace(transaction_id="3-4", properties={"n": "4"}))
    assert last[-1].fingerprint == content
    assert [half.queue_offset for half in recent(history, [0], T0, 3)] == [17, 18, 19]
    assert [half.queue_offset for half in recent(history, [0], T0, 7)] == list(range(13, 20))
    assert recent(history, [1], T0, 7) == []


@pytest.mark.processes
def test_start_holds_no_bodies(tmp_path: Path) -> None:
    """Of 96 MiB of bodies in one file it has a row group at a time; to look one up it reads none."""
    count, size = 96, 1 << 20
    halves = [HALF._replace(transaction_id=f"t-{n}", body=os.urandom(size)) for n in range(count)]
    DeltaLog.create("half", f"{tmp_path}/half")
    with FileWriter(str(tmp_path), buffer=1) as writer:
        for first in range(0, count, 8):
            writer.write("half", half_rows(halves[first : first + 8], 0, first, T0_MS))
        files = writer.close()
    DeltaLog("half", f"{tmp_path}/half").commit(files)
    del halves
    ran = subprocess.run([sys.executable, "-c", _START, str(tmp_path)], capture_output=True, text=True, check=True)
    arrow, python, looked_up = map(int, ran.stdout.split())
    assert arrow < 32 << 20
    assert python < 32 << 20
    assert looked_up < 4 << 20


#: In a process of its own: Arrow's pool tells the most that it ever held, and is not to be changed under its objects.
_START = """
import sys, tracemalloc
from datetime import datetime, timezone
import pyarrow as pa
from checkback.gateway.deduplication.history import DeduplicationHistory
older = DeduplicationHistory(sys.argv[1])
tracemalloc.start()
assert len(older.recent([0], datetime(2026, 3, 1, tzinfo=timezone.utc), 1000).names) == 96
python = tracemalloc.get_traced_memory()[1]
tracemalloc.reset_peak()
assert len(older.find({(0, n) for n in range(96)})) == 96
assert any(older.named("orders", "t-7"))
print(pa.default_memory_pool().max_memory(), python, tracemalloc.get_traced_memory()[1])
"""


def test_rows_with_text_that_is_not_utf8_hold_up_nothing(tmp_path: Path) -> None:
    """Another writer's: neither a start, nor a look-up of an op, nor a query of the others."""
    land(tmp_path, "half", half(0, "first"))
    odd = {"transaction_id": "bad", "producer_group": "bad", "tags": "bad", "properties": [("bad", "bad")]}
    append_odd(str(tmp_path), "half", [half(1) | odd, half(0, second=9) | odd, half(2)])
    land(tmp_path, "op", op(0, "COMMIT", transaction_id="first"))
    append_odd(str(tmp_path), "op", [op(0, "ROLLBACK", -1, transaction_id="bad"), op(2, "ROLLBACK", remark="bad")])
    named = {"queue_id": 0, "queue_offset": 2, "transaction_id": "tx", "producer_group": "orders"}
    land(tmp_path, "decisions", named | {"state": "ROLLBACK", "decided_at": T0})
    append_odd(str(tmp_path), "decisions", [named | {"transaction_id": "bad", "state": "COMMIT", "decided_at": T0}])
    append_odd(str(tmp_path), "check_requests", [named | {"transaction_id": "bad", "check_times": 7}])
    history = DeduplicationHistory(str(tmp_path))
    assert [one.queue_offset for one in recent(history, [0], T0 - timedelta(days=1), 10)] == [0, 1, 2, 0]
    found = history.find([(0, 0), (0, 1), (0, 2)])
    assert [(found[0, offset].name, found[0, offset].state) for offset in (0, 2)] == [
        (name_of("orders", "first"), "COMMIT"),
        (name_of("orders", "tx"), "ROLLBACK"),
    ]
    ((named_half,),) = history.named("orders", "tx")
    assert (named_half.queue_offset, history.check_times(named_half)) == (2, 0)
