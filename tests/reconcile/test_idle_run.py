"""A scheduled run that has nothing to do is told so by files; whatever has changed, it has something to do."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checkback.commands.reconcile import _nothing_to_do
from checkback.query.status.progress import progress
from checkback.reconcile.start import idle_run
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, SOURCES, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable

_NOW, _DUE = 1_000_000, 1_000_500
_TIMERS = ((0, 0, _DUE), (3, 1, _DUE + 7))
_QUERY = "the-query"


class Drained:
    """Tables in a folder, and the checkpoints of queries that have read all of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings.model_validate({"storage": {"root": str(root)}})
        self.tables = Tables.of(self.settings.storage)
        for name in SCHEMAS:
            DeltaLog.create(name, self.tables.location(name))
        for query in SOURCES:
            self.batch(query, 7)
            (self.root / "_checkpoints" / query / "metadata").write_text(json.dumps({"id": _QUERY}))
        idle_run.write_note(self.tables, self.settings, _TIMERS, None, _NOW)

    def batch(self, query: str, number: int, done: bool = True, time: int = 1) -> None:
        """A batch that has read what there is."""
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": time, "conf": {}})]
        for name in SOURCES[query]:
            log = DeltaLog(name, self.tables.location(name))
            position = {"reservoirId": log.table_id(), "reservoirVersion": log.version() + 1, "index": -1}
            lines.append(json.dumps(position | {"isStartingVersion": False}))
        for folder, text in (("offsets", "\n".join(lines)), ("commits", "v1\n{}")):
            place = self.root / "_checkpoints" / query / folder
            place.mkdir(parents=True, exist_ok=True)
            if folder == "offsets" or done:
                (place / str(number)).write_text(text)

    def land(self, name: str) -> None:
        """A row that nobody has read."""
        schema = arrow_schema(name)
        row = pa.Table.from_pylist([{"tick_at": datetime.now(timezone.utc)} if name == "ticks" else {}], schema)
        with FileWriter(str(self.root)) as writer:
            writer.write(name, row)
            files = writer.close()
        DeltaLog(name, self.tables.location(name)).commit(files)

    def nothing_to_do(self, now: int = _NOW) -> bool:
        """As another process sees it."""
        return idle_run.nothing_to_do(Tables.of(self.settings.storage), self.settings, now)


@pytest.fixture
def drained(tmp_path: Path) -> Drained:
    return Drained(tmp_path)


def test_nothing_is_to_be_done_until_the_first_timer_is_due(drained: Drained) -> None:
    assert drained.nothing_to_do()
    assert drained.nothing_to_do(_DUE - 1)
    assert not drained.nothing_to_do(_DUE)


def test_run_starts_when_the_clock_was_set_back(drained: Drained) -> None:
    """A message may wait for its topic's table, which is tried again at each start, and a minute later at most."""
    idle_run.write_note(drained.tables, drained.settings, (), _DUE, _NOW)
    assert drained.nothing_to_do(_NOW)
    assert not drained.nothing_to_do(_NOW - 1)


def test_without_a_timer_nothing_is_ever_due(drained: Drained) -> None:
    idle_run.write_note(drained.tables, drained.settings, (), None, _NOW)
    assert drained.nothing_to_do(2**62)


def test_the_last_runs_are_known_those_without_work_too(drained: Drained) -> None:
    """From the note, as long as its batch is the newest; none tells of no runs."""
    place = drained.tables.checkpoint("reconcile")

    def runs(at: int | None = None) -> tuple[int, ...] | None:
        found = progress(None, place, at)
        return None if found is None or found.schedule is None else found.schedule.runs

    idle_run.note_run(drained.tables, _NOW + 60)
    assert drained.nothing_to_do(_NOW + 60)
    assert runs() == (_NOW, _NOW + 60)
    assert runs(_NOW + 59) == (_NOW,)
    assert runs(_NOW - 1) is None
    drained.batch("reconcile", 8, done=False)
    assert runs() is None
    drained.batch("reconcile", 8)
    assert runs() is None
    for number in range(20):
        idle_run.write_note(drained.tables, drained.settings, _TIMERS, None, _NOW + 100 + number)
    assert runs() == tuple(range(_NOW + 110, _NOW + 120))
    (drained.root / "_checkpoints" / idle_run.FILE).unlink()
    idle_run.note_run(drained.tables, _NOW + 300)
    assert runs() is None


def test_command_with_nothing_to_do_is_a_run(drained: Drained) -> None:
    idle_run.write_note(drained.tables, drained.settings, (), None, _NOW)
    assert _nothing_to_do(drained.settings)
    note = idle_run.read_note(drained.tables.checkpoint("reconcile"))
    assert note is not None
    assert len(note.runs) == 3


def _row_of(name: str) -> Callable[[Drained], None]:
    def change(drained: Drained) -> None:
        drained.land(name)

    return change


def _batch_of(query: str, done: bool = False) -> Callable[[Drained], None]:
    def change(drained: Drained) -> None:
        drained.batch(query, 8, done)

    return change


def _lost_note(drained: Drained) -> None:
    (drained.root / "_checkpoints" / idle_run.FILE).unlink()


def _half_written_note(drained: Drained) -> None:
    note = drained.root / "_checkpoints" / idle_run.FILE
    note.write_text(note.read_text()[:-5])


def _other_settings(drained: Drained) -> None:
    drained.settings = Settings.model_validate(
        {"storage": {"root": str(drained.root)}, "transaction": {"check_interval": "30s"}}
    )


def _other_query(drained: Drained) -> None:
    (drained.root / "_checkpoints/reconcile/metadata").write_text(json.dumps({"id": "rebuilt"}))


def _broken_checkpoint(drained: Drained) -> None:
    (drained.root / "_checkpoints/reconcile/offsets/7").write_text("v1\nnonsense")


def _lost_checkpoint(drained: Drained) -> None:
    (drained.root / "_checkpoints/reconcile/metadata").unlink()


def _lost_table(drained: Drained) -> None:
    (drained.root / "operations").rename(drained.root / "set-aside")


def _new_table(drained: Drained) -> None:
    (drained.root / "op").rename(drained.root / "set-aside")
    DeltaLog.create("op", drained.tables.location("op"))


def _rebuild_under_way(drained: Drained) -> None:
    (drained.root / "_checkpoints/reconcile.rebuilding").mkdir()


_CHANGES: dict[str, Callable[[Drained], None]] = {
    **{f"a row of {name}": _row_of(name) for names in SOURCES.values() for name in names},
    **{f"a batch of {query}": _batch_of(query) for query in SOURCES},
    "a batch of another run": _batch_of("reconcile", done=True),
    "no note": _lost_note,
    "half a note": _half_written_note,
    "other settings": _other_settings,
    "another checkpoint": _other_query,
    "a broken checkpoint": _broken_checkpoint,
    "no checkpoint": _lost_checkpoint,
    "a rebuild has begun": _rebuild_under_way,
    "a table is missing": _lost_table,
    "a table is another": _new_table,
}


@pytest.mark.parametrize("change", _CHANGES)
def test_whatever_has_changed_is_something_to_do(drained: Drained, change: str) -> None:
    assert drained.nothing_to_do()
    _CHANGES[change](drained)
    assert not drained.nothing_to_do()


def test_timers_are_noted_for_the_batch_that_left_them(drained: Drained, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next run need not read the state: what else it has seen, they are its own batch's to change."""
    assert idle_run.noted_timers(drained.tables) == _TIMERS
    _other_settings(drained)
    drained.land("half")
    assert idle_run.noted_timers(drained.tables) == _TIMERS
    monkeypatch.setattr(idle_run, "_TIMERS", 1)
    idle_run.write_note(drained.tables, drained.settings, _TIMERS, None, _NOW)
    assert idle_run.noted_timers(drained.tables) is None
    assert not drained.nothing_to_do(_DUE)


def test_before_the_first_batch_there_are_no_timers(tmp_path: Path) -> None:
    storage = Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage
    assert idle_run.noted_timers(Tables.of(storage)) == ()


def _same_number(drained: Drained) -> None:
    """As a run begun from a backup comes to it."""
    drained.batch("reconcile", 7, time=2)


def _undone(drained: Drained) -> None:
    (drained.root / "_checkpoints/reconcile/commits/7").unlink()


@pytest.mark.parametrize(
    "change",
    [
        *(_batch_of("reconcile"), _batch_of("reconcile", done=True), _same_number, _undone),
        *(_lost_note, _half_written_note, _other_query, _broken_checkpoint, _lost_checkpoint),
    ],
)
def test_timers_of_another_batch_are_not_its_own(drained: Drained, change: Callable[[Drained], None]) -> None:
    change(drained)
    assert idle_run.noted_timers(drained.tables) is None
    assert not drained.nothing_to_do()


def test_a_stopped_batch_leaves_no_timers(drained: Drained) -> None:
    """They are those of the batch before."""
    drained.batch("reconcile", 8, done=False)
    idle_run.write_note(drained.tables, drained.settings, _TIMERS, None, _NOW)
    assert idle_run.noted_timers(drained.tables) is None
    drained.batch("reconcile", 8)
    assert idle_run.noted_timers(drained.tables) is None


def test_a_version_that_brought_no_rows_is_nothing_to_do(drained: Drained) -> None:
    """As OPTIMIZE leaves them: it rewrites."""
    DeltaLog("half", drained.tables.location("half")).commit([])
    assert drained.nothing_to_do()


def test_check_query_is_not_started_for_nothing(drained: Drained) -> None:
    """What the other query has still to do is not its concern; its own last batch is, if it broke off."""
    drained.land("half")
    assert idle_run.nothing_to_check(drained.tables)
    drained.batch("check", 8, done=False)
    assert not idle_run.nothing_to_check(drained.tables)
    drained.batch("check", 8)
    assert idle_run.nothing_to_check(drained.tables)
    (drained.root / "_checkpoints/check/offsets/8").write_text("v1\nnonsense")
    assert not idle_run.nothing_to_check(drained.tables)


def test_a_check_query_that_never_ran_has_nothing_to_do_as_long_as_nothing_was_asked(drained: Drained) -> None:
    (drained.root / "_checkpoints/check/metadata").unlink()
    assert drained.nothing_to_do()
    assert idle_run.nothing_to_check(drained.tables)
    drained.land("check_requests")
    assert not drained.nothing_to_do()
    assert not idle_run.nothing_to_check(drained.tables)
