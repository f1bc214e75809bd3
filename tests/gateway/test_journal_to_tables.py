"""What the journal has is in the tables exactly once, wherever its gateway was killed."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.errors import FencedError, StorageError
from checkback.gateway.appender import Appender, claim
from checkback.gateway.health import HealthState
from checkback.gateway.journal.files import LARGE
from checkback.gateway.journal.group_commit import COMMIT_ROWS
from checkback.gateway.journal.journal import Journal
from checkback.gateway.journal.journal_to_tables import JournalToTables, JournalToTablesLoop
from checkback.gateway.journal.record import Kind, half_record, op_record
from checkback.gateway.metrics import Metrics
from checkback.messages.half import Half
from checkback.messages.op import Op
from gateway.process import PATIENCE_S
from gateway.test_journal import crash, small_disk
from gateway.test_tables import Failing
from support.examples import DEAR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from checkback.gateway.journal.record import Unflushed


class _KilledError(Exception):
    """The process is killed here."""


class _Gateway:
    """The journal and the tables of a gateway; ``kill_at``: before or after the commit to a table, or at no time."""

    def __init__(self, root: Path) -> None:
        self.half, self.op = (Appender(str(root), name, [0], sync=False) for name in ("half", "op"))
        tables = (self.half.table_id(), self.op.table_id())
        self.journal = Journal(str(root / "_journal"), tables, 1 << 30, sync=False)
        self.half.use(self.journal.id)
        self.op.use(self.journal.id)
        self.to_tables = JournalToTables(self.journal, self.half, self.op, Metrics())
        self.to_tables.drain()
        claim(self.half, self.op)

    def flush(self, kill_at: str) -> None:
        for name, table in (("half", self.half), ("op", self.op)):
            append = table.append

            def killed(*parts: pa.Table, position: int | None = None, name: str = name, append=append) -> None:  # type: ignore[no-untyped-def]
                if kill_at == f"before {name}":
                    raise _KilledError
                append(*parts, position=position)
                if kill_at == f"after {name}":
                    raise _KilledError

            table.append = killed  # type: ignore[method-assign]
            try:
                if name == "op":
                    self.to_tables.flush()
            finally:
                table.append = append  # type: ignore[method-assign]

    def crash(self) -> None:
        crash(self.journal)


def _half(number: int) -> Half:
    return Half(0, 0, f"t-{number}", "orders", "payments", 0, None, None, {"a": "b"}, b"body", 1000, None)


def _op(number: int) -> Op:
    return Op(0, number, f"t-{number}", "orders", "COMMIT", 2000)


def _rows(root: Path, name: str) -> list[tuple[int, str]]:
    rows = DeltaTable(f"{root}/{name}").to_pyarrow_table().select(["queue_offset", "transaction_id"]).to_pylist()
    return sorted((row["queue_offset"], row["transaction_id"]) for row in rows)


_STEP = st.one_of(
    st.tuples(st.just("half"), st.integers(1, 3)),
    st.tuples(st.just("op"), st.just(1)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.sampled_from(["before half", "after half", "before op", "after op", "flush"]), st.just(0)),
)


@pytest.mark.slow
@settings(DEAR, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_STEP, min_size=1, max_size=12))
def test_each_message_is_in_its_table_once(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    root = tmp_path / "tables"
    shutil.rmtree(root, ignore_errors=True)
    gateway, halves, ops = _Gateway(root), 0, 0
    for step, count in steps:
        if step == "half":
            batch = [_half(halves + number) for number in range(count)]
            gateway.journal.append([half_record(batch, 0, halves)], 0)
            halves += count
        elif step == "op" and ops < halves:
            gateway.journal.append([op_record([(_op(ops), None)])], 0)
            ops += 1
        elif step != "op":
            try:
                if step != "crash":
                    gateway.flush(step)
                    continue
            except _KilledError:
                pass
            gateway.crash()
            gateway = _Gateway(root)
    gateway.crash()
    _Gateway(root).crash()
    assert _rows(root, "half") == [(number, f"t-{number}") for number in range(halves)]
    assert _rows(root, "op") == [(number, f"t-{number}") for number in range(ops)]


def test_no_op_is_in_the_table_before_its_half_message(tmp_path: Path) -> None:
    gateway = _Gateway(tmp_path)
    gateway.journal.append([half_record([_half(0)], 0, 0), op_record([(_op(0), "why")])], 0)
    with pytest.raises(_KilledError):
        gateway.flush("before op")
    assert (len(_rows(tmp_path, "half")), len(_rows(tmp_path, "op"))) == (1, 0)
    assert gateway.journal.rows == 2
    gateway.to_tables.flush()
    assert len(_rows(tmp_path, "half")) == len(_rows(tmp_path, "op")) == 1
    assert gateway.journal.rows == 0
    gateway.journal.close()


def test_a_copy_of_the_journal_is_fenced(tmp_path: Path) -> None:
    """Of two processes with the same journal, as from a copied disk, one commits."""
    root = tmp_path / "tables"
    gateway = _Gateway(root)
    gateway.journal.append([half_record([_half(0)], 0, 0)], 0)
    gateway.crash()
    shutil.copytree(root / "_journal", tmp_path / "copy")
    first = _Gateway(root)
    assert first.journal.rows == 0
    half = Appender(str(root), "half", [0], sync=False)
    op = Appender(str(root), "op", [0], sync=False)
    copy = Journal(str(tmp_path / "copy"), (half.table_id(), op.table_id()), 1 << 30, sync=False)
    half.use(copy.id)
    op.use(copy.id)
    to_tables = JournalToTables(copy, half, op, Metrics())
    assert to_tables.drain() == 0
    claim(half, op)
    copy.append([half_record([_half(1)], 0, 1)], 0)
    to_tables.flush()
    first.journal.append([half_record([_half(2)], 0, 1)], 0)
    with pytest.raises(FencedError):
        first.to_tables.flush()
    assert _rows(root, "half") == [(0, "t-0"), (1, "t-1")]
    copy.close()
    first.crash()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("table", ["half", "op"])
def test_a_commit_of_which_nobody_knows_is_found_out_by_the_next_flush(tmp_path: Path, table: str, made: bool) -> None:
    """The gateway goes on meanwhile: the journal keeps what it acknowledges, and its position tells."""
    gateway = _Gateway(tmp_path)
    gateway.journal.append([half_record([_half(0)], 0, 0), op_record([(_op(0), None)])], 0)
    appender = getattr(gateway, table)
    failing = Failing(appender, made, readable=False)
    health = HealthState(lambda error: pytest.fail(str(error)))
    for _ in range(2):
        with pytest.raises(StorageError) as raised:
            gateway.to_tables.flush()
        assert not health.flush_failed(raised.value)
    gateway.journal.append([half_record([_half(1)], 0, 1), op_record([(_op(1), None)])], 0)
    failing.mend(appender)
    gateway.to_tables.flush()
    for name in ("half", "op"):
        assert _rows(tmp_path, name) == [(0, "t-0"), (1, "t-1")]
    assert gateway.journal.rows == 0
    gateway.crash()


def test_a_record_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    gateway = _Gateway(tmp_path)
    gateway.journal.append([half_record([_half(0)], 0, 0)], 0)
    gateway.journal._writer.execute("UPDATE record SET content = x'c1'")
    with pytest.raises(StorageError, match=r"a record of the journal cannot be read"):
        gateway.to_tables.flush()
    assert [found.kind for found in gateway.journal.read(1, 1)] == [Kind.HALF]
    gateway.crash()


def test_what_is_enough_for_a_flush_does_not_wait_for_the_next(tmp_path: Path) -> None:
    """Else the journal of a gateway that is sent more than a flush takes in each interval would become full."""
    gateway = _Gateway(tmp_path)
    for number in range(3):  # of each as many as a flush takes
        gateway.journal.append([replace(op_record([(_op(number), None)]), rows=10 * COMMIT_ROWS)], 0)

    async def main() -> None:
        done = asyncio.Event()

        def flushed(_: Sequence[Unflushed]) -> None:
            if not gateway.journal.rows:
                done.set()

        loop = JournalToTablesLoop(
            gateway.to_tables, gateway.journal, 3600, HealthState(lambda error: pytest.fail(str(error))), flushed
        )
        running = asyncio.create_task(loop.run())
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        loop.close()
        await running

    asyncio.run(main())
    assert [number for number, _ in _rows(tmp_path, "op")] == [0, 1, 2]
    gateway.crash()


def test_an_empty_journal_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while there is nothing to flush, and nothing is taken because there is none."""
    gateway = _Gateway(tmp_path)
    gateway.journal.append(
        [half_record([_half(0)], 0, 0), half_record([_half(1)._replace(body=b"x" * LARGE)], 0, 1)], 0
    )
    gateway.to_tables.flush()
    small_disk(monkeypatch, tmp_path / "_journal")
    rooms: list[bool] = []

    async def main() -> None:
        def flushed(_: Sequence[Unflushed]) -> None:
            rooms.append(gateway.journal.room())
            loop.close()

        health = HealthState(lambda error: pytest.fail(str(error)))
        loop = JournalToTablesLoop(gateway.to_tables, gateway.journal, 3600, health, flushed)
        await asyncio.wait_for(loop.run(), PATIENCE_S)

    assert not gateway.journal.room()
    asyncio.run(main())
    assert rooms == [True]
    gateway.crash()


def test_a_flush_that_failed_while_it_was_closed_is_followed_by_another(tmp_path: Path) -> None:
    """What it failed by may be mended since; only a flush that began after `close` says what is left."""
    gateway = _Gateway(tmp_path)
    gateway.journal.append([half_record([_half(0)], 0, 0)], 0)
    (tmp_path / "half").rename(tmp_path / "away")
    (tmp_path / "half").write_text("no folder")
    flush = gateway.to_tables.flush
    health = HealthState(lambda error: pytest.fail(str(error)))
    loop = JournalToTablesLoop(gateway.to_tables, gateway.journal, 3600, health, lambda _: None)

    def closed_and_mended() -> list[Unflushed]:
        try:
            return flush()
        finally:
            gateway.to_tables.flush = flush  # type: ignore[method-assign]
            loop.close()
            (tmp_path / "half").unlink()
            (tmp_path / "away").rename(tmp_path / "half")

    gateway.to_tables.flush = closed_and_mended  # type: ignore[method-assign]
    asyncio.run(asyncio.wait_for(loop.run(), PATIENCE_S))
    assert [number for number, _ in _rows(tmp_path, "half")] == [0]
    gateway.crash()
