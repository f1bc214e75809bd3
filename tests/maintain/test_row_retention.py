"""Retention on tables of a folder: what ended long ago goes, what is owed to anybody stays, and the audit agrees."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.errors import SettingsError, StorageError
from checkback.maintain.row_retention import RowRetention
from checkback.query.answers import Answers
from checkback.reconcile.records.segment_records import Reason
from checkback.settings import Settings
from checkback.storage.checkpoints.seen_commits import SeenCommits, replaced
from checkback.storage.horizon import floors_of, horizon, refuse_older_half
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables
from maintain.fixtures import maintained, rows_of
from support.examples import fewer
from support.stories import DONE, Row, Transaction, batch, checkpoint, in_batches, ms, write, written

if TYPE_CHECKING:
    from checkback.query.audit.findings import Report

pytestmark = pytest.mark.slow

HISTORY = timedelta(days=30)
#: it must outlive what other threads free later
_POOL = pa.proxy_memory_pool(pa.default_memory_pool())
HORIZON = DONE - HISTORY
#: by table, the columns of the key
_HISTORY = dict.fromkeys(
    ("half", "op", "decisions", "deliveries", "check_requests", "rejected"), ("queue_id", "queue_offset")
)
_HISTORY["unpublished"] = ("half_queue_id", "half_queue_offset")


def settings_of(root: Path, **retention: Any) -> Settings:
    maintain = {"min_files": 2, "target_file_size": "1MiB"}
    return Settings.model_validate(
        {"storage": {"root": str(root)}, "maintain": maintain, "retention": {"history": "30d", **retention}}
    )


def _at_once(random: Random, t: Transaction, at: datetime) -> tuple[list[Row], datetime | None]:
    """A story without a delay, and its end; None = it has not ended."""
    alien = [t.op(producer_group="pay"), t.rejected_op(Reason.WRONG_GROUP)]
    waits = t.unpublished(unpublished_at=at, application="query")  # nothing notes it as published
    stories: list[tuple[list[Row], datetime | None]] = [
        ([t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)], at),
        ([t.half(), t.op("ROLLBACK"), t.decision("ROLLBACK", decided_at=at)], at),
        ([t.half(), *t.checks(), t.decision("DISCARD", decided_at=at), t.discarded(discarded_at=at)], at),
        ([t.half(), t.check(), *alien], None),
        ([t.half(), t.op(), t.decision(decided_at=at), waits], None),
    ]
    return random.choice([*stories, *stories[:2]])  # most end


def _delayed(random: Random, t: Transaction, at: datetime) -> tuple[list[Row], datetime | None]:
    later = at + timedelta(days=random.choice([1, 20, 50]))
    rows = [t.half(deliver_at=later), t.op(), t.decision(decided_at=at, deliver_at=later)]
    if later > DONE:
        return rows, None
    if random.random() < 0.5:
        _, row = t.decision()
        names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic")
        delivery = {name: row[name] for name in names} | {"deliver_at": later, "delivered_at": later, "batch_id": 0}
        return [*rows, ("deliveries", delivery), t.published(published_at=later)], later
    end = later - timedelta(hours=1)
    kept = t.discarded(reason="CANCELLED", check_times=0, discarded_at=end, deliver_at=later)
    cancel = t.decision("CANCEL", source="operator", decided_at=end)
    return [*rows, t.op("CANCEL", source="operator"), cancel, kept], end


def lake(root: Path, seed: int, number: int, size: int = 4) -> dict[int, datetime | None]:
    """Tables with transactions of the last sixty days, several files each; by offset, when each ended.

    ``size``: bytes of a body.
    """
    rows, ends = stories(seed, number, size)
    written(root, rows, size=50)
    return ends


def stories(seed: int, number: int, size: int = 4) -> tuple[list[Row], dict[int, datetime | None]]:
    """The rows of `lake`, and when each transaction ended."""
    random, rows, ends = Random(seed), list[Row](), dict[int, datetime | None]()
    for offset in range(number):
        born = DONE - timedelta(days=60 * (number - offset) / number, seconds=random.random())
        t = Transaction(offset % 2, offset, born.replace(microsecond=0), random.randbytes(size))
        mine, ends[offset] = random.choice([_at_once, _delayed])(random, t, t.born + timedelta(minutes=30))
        rows += mine
    return rows, ends


def by_offset(root: Path, name: str) -> dict[int, list[str]]:
    """The rows of a table by the offset of their half message."""
    found: dict[int, list[str]] = {}
    for row in rows_of(root, name) if (root / name).is_dir() else []:
        raw = row.get("raw")
        offset = int(str(raw).rpartition(" ")[2].rstrip("}")) if raw else row.get(_HISTORY[name][1])
        assert isinstance(offset, int)
        found.setdefault(offset, []).append(repr(row))
    return {offset: sorted(rows) for offset, rows in found.items()}


def figures(report: Report) -> dict[str, int]:
    return {found.finding.name: found.count for found in report.found}


def resumable(root: Path) -> set[int]:
    """The offsets of the messages in `discarded`."""
    return (
        {int(str(row["queue_offset"])) for row in rows_of(root, "discarded")}
        if (root / "discarded").is_dir()
        else set()
    )


@fewer(25)
@given(st.integers(0, 2**32), st.integers(1, 150))
def test_what_is_owed_stays_and_the_rest_goes(tmp_path_factory: pytest.TempPathFactory, seed: int, number: int) -> None:
    """All rows of what had not ended at the horizon; of the others the half message goes first, or nothing does."""
    root = tmp_path_factory.mktemp("tables")
    ends = lake(root, seed, number)
    settings = settings_of(root)
    answers = Answers(settings)
    before = {name: by_offset(root, name) for name in _HISTORY}
    assert not answers.audit().broken
    asked = answers.pending().to_pylist(), answers.scheduled().to_pylist()
    promised = maintained(settings, ms(DONE), dry_run=True)
    done = maintained(settings, ms(DONE))
    after = {name: by_offset(root, name) for name in _HISTORY}
    judged = {offset for offset, end in ends.items() if end is None or end >= HORIZON}
    owed = judged | resumable(root)
    for name, rows in before.items():
        for offset, mine in rows.items():
            left = after[name].get(offset, [])
            assert left == mine if offset in owed or offset in after["half"] else set(left) <= set(mine), name
    assert len(set(after["half"]) - owed) <= len(owed & set(after["half"]))
    assert done["half"].expired_rows == len(before["half"]) - len(after["half"]) == promised["half"].expired_rows
    counts = {name: (promised[name].expired_rows, done[name].expired_rows) for name in done}
    may_be_more = ("decisions", "deliveries", "rejected")
    assert all(would == did for name, (would, did) in counts.items() if name not in may_be_more), counts
    report = answers.audit()
    assert not report.broken, figures(report)
    assert report.since == (ms(HORIZON) if any(one.expired_rows for one in done.values()) else None)
    assert figures(report)["halves"] == len(judged if report.since else ends)
    assert [row["queue_offset"] for row in answers.pending().to_pylist()] == [row["queue_offset"] for row in asked[0]]
    assert [row["queue_offset"] for row in answers.scheduled().to_pylist()] == [row["queue_offset"] for row in asked[1]]
    while any(one.expired_rows for one in maintained(settings, ms(DONE)).values()):  # what ends a COMMIT goes after it
        pass
    assert by_offset(root, "half") == after["half"]
    assert not answers.audit().broken
    assert [row["queue_offset"] for row in answers.scheduled().to_pylist()] == [row["queue_offset"] for row in asked[1]]


@fewer(25)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 60))
def test_lake_whose_half_messages_all_stay_is_cleaned(
    tmp_path_factory: pytest.TempPathFactory, seed: int, owed: int, idle: int
) -> None:
    """It is idle, or all of them are owed. `half` says the horizon by which the others are read, once."""
    root, random = tmp_path_factory.mktemp("tables"), Random(seed)
    rows = list[Row]()
    for offset in range(owed):
        t = Transaction(0, offset, DONE - timedelta(days=random.randrange(1, 60)))
        at = t.born + timedelta(minutes=30)
        waits = [t.op(), t.decision(decided_at=at), t.unpublished(unpublished_at=at, application="query")]
        rows += [t.half(), *random.choice([waits, t.checks(2)])]
    times = [DONE - timedelta(seconds=random.randrange(60 * 86_400)) for _ in range(idle)]
    found, done = in_batches(rows, times)
    settings = settings_of(root)
    tables, answers = Tables.of(settings.storage), Answers(settings)
    write(None, tables, found)
    for time in times:
        write(None, tables, [("ticks", {"tick_at": time})])
    for name in ("ticks", *_HISTORY):
        DeltaLog.create(name, tables.location(name))
    checkpoint(root, batch_id=done)
    before, pending = {name: by_offset(root, name) for name in _HISTORY}, answers.pending().num_rows
    promised = maintained(settings, ms(DONE), dry_run=True)
    done_by_table = maintained(settings, ms(DONE))
    assert {name: by_offset(root, name) for name in _HISTORY} == before
    assert {row["tick_at"] for row in rows_of(root, "ticks")} == {time for time in times if time >= HORIZON}
    gone = {name: one.expired_rows for name, one in done_by_table.items() if one.expired_rows}
    assert gone == {name: one.expired_rows for name, one in promised.items() if one.expired_rows}
    assert gone.keys() <= {"ticks", "batches"}
    assert horizon(None, tables) == (ms(HORIZON) if gone else None)
    assert not answers.audit().broken
    assert answers.pending().num_rows == pending
    for _ in range(2):  # the compaction may have made a file of batches that is worth it
        again = maintained(settings, ms(DONE))
    assert all(one.version_after == one.version_before for one in again.values())


def test_longer_history_does_not_take_the_horizon_back(tmp_path: Path) -> None:
    lake(tmp_path, 2, 150)
    maintained(settings_of(tmp_path), ms(DONE))
    settings = settings_of(tmp_path, history="50d")
    maintained(settings, ms(DONE + timedelta(days=10)))
    assert horizon(None, Tables.of(settings.storage)) == ms(HORIZON)
    assert not Answers(settings).audit().broken


@pytest.mark.parametrize("days", [1, 35])
def test_what_has_just_ended_stays_after_the_clock_was_ahead(tmp_path: Path, days: int) -> None:
    """A batch and `maintain` ran sixty days ahead: what is said does not recede, but only what is old goes.

    The batch after it broke off, and `reconcile` is down for some days: what it was to publish is only in `half`.
    """
    ahead = DONE + timedelta(days=60)
    old, new = Transaction(1, 0, DONE - timedelta(days=3)), Transaction(0, 1, DONE)
    at, decided = old.born + timedelta(minutes=30), DONE + timedelta(minutes=1)
    rows = [old.half(), old.op(), old.published(published_at=at), old.decision(decided_at=at)]
    settings = settings_of(tmp_path)
    tables = Tables.of(settings.storage)
    write(None, tables, [*rows, batch(0, at, committed=1), batch(1, ahead)])
    checkpoint(tmp_path, batch_id=1, done=ahead)
    maintained(settings, ms(ahead))
    assert rows_of(tmp_path, "half") == []
    write(None, tables, [new.half(), new.op(), new.decision(decided_at=decided, batch_id=2)])
    maintained(settings, ms(DONE + timedelta(days=days)))
    assert [len(rows_of(tmp_path, name)) for name in ("half", "op", "decisions")] == [1, 1, 1]
    assert horizon(None, tables) == ms(ahead - HISTORY)


def test_messages_of_a_batch_that_broke_off_stay_after_the_clock_was_ahead(tmp_path: Path) -> None:
    """That of the one before was two hours ahead. What is gone a rebuild would take for published."""
    decided = DONE + timedelta(minutes=2)
    t, lost = Transaction(0, 1, DONE), Transaction(0, 2, DONE)
    rows = [t.half(), t.op(), t.published(published_at=decided), t.decision(decided_at=decided)]
    rows += [lost.half(), lost.checks()[0], lost.discarded(discarded_at=decided), lost.decision(decided_at=decided)]
    under_way = [(name, row | {"batch_id": 2} if "batch_id" in row else row) for name, row in rows]
    settings = settings_of(tmp_path, topics="1h", given_up="1h")
    before = [batch(0, DONE - timedelta(hours=3)), batch(1, DONE + timedelta(hours=2))]
    write(None, Tables.of(settings.storage), [*before, *under_way])
    checkpoint(tmp_path, batch_id=1)
    maintained(settings, ms(DONE + timedelta(minutes=95)))
    assert [len(rows_of(tmp_path, name)) for name in ("topics/a", "discarded")] == [1, 1]
    write(None, Tables.of(settings.storage), [batch(2, decided, committed=1)])
    maintained(settings, ms(DONE + timedelta(minutes=95)))
    assert [len(rows_of(tmp_path, name)) for name in ("topics/a", "discarded")] == [0, 0]


def test_op_that_waits_for_its_half_message_stays(tmp_path: Path) -> None:
    """It waits from when it was read, though it landed long before: reconcile was stopped in between."""
    read, waiting = (Transaction(0, offset, DONE - timedelta(days=days)) for offset, days in ((1, 55), (2, 40)))
    rows = [t.op() for t in (read, waiting)]
    rows += Transaction(0, 3, DONE).committed()
    settings = settings_of(tmp_path)
    written(tmp_path, rows, size=1, idle=[DONE - timedelta(days=50)])
    maintained(settings, ms(DONE))
    assert by_offset(tmp_path, "op").keys() == {2, 3}


def test_gateway_whose_clock_is_ahead_keeps_no_rows_for_ever(tmp_path: Path) -> None:
    """Its half messages landed after their decisions; so did another's, to which an offset was assigned again."""
    born, ahead = DONE - timedelta(days=50), timedelta(hours=2)
    rows: list[Row] = []
    for offset in range(4):
        t = Transaction(0, offset, born)
        again = t.half(transaction_id="another", store_timestamp=born + ahead)
        rows += [again if offset == 3 else t.half(store_timestamp=born + ahead)]
        rows += [t.op("ROLLBACK"), t.decision("ROLLBACK", decided_at=born + timedelta(minutes=1))]
    settings = settings_of(tmp_path)
    written(tmp_path, rows, size=1)
    maintained(settings, ms(DONE))
    assert all(by_offset(tmp_path, name).keys() == {3} for name in ("half", "op", "decisions"))
    assert figures(Answers(settings).audit())["halves"] == 1


class Killed(BaseException):
    """The process ends here."""


@fewer(25)
@given(st.integers(0, 2**32), st.integers(0, 12), st.booleans())
def test_run_that_breaks_off_is_continued(
    tmp_path_factory: pytest.TempPathFactory, seed: int, commits: int, made: bool
) -> None:
    """Before or after any commit: the audit is clean, and the next run goes on; what is owed has all its rows."""
    root = tmp_path_factory.mktemp("tables")
    ends = lake(root, seed, 60)
    settings = settings_of(root)
    answers = Answers(settings)
    before = {name: by_offset(root, name) for name in _HISTORY}
    scheduled = [row["queue_offset"] for row in answers.scheduled().to_pylist()]
    with pytest.MonkeyPatch.context() as patch:
        _kill_at(patch, commits, made)
        with suppress(Killed):
            maintained(settings, ms(DONE))
    pending = sorted(offset for offset, end in ends.items() if end is None and offset not in before["decisions"])
    for _ in range(2):
        assert not answers.audit().broken
        assert sorted(row["queue_offset"] for row in answers.pending().to_pylist()) == pending
        assert [row["queue_offset"] for row in answers.scheduled().to_pylist()] == scheduled
        maintained(settings, ms(DONE))
    judged = {offset for offset, end in ends.items() if end is None or end >= HORIZON}
    owed = judged | resumable(root)
    for name, rows in before.items():
        after = by_offset(root, name)
        assert {offset: after.get(offset) for offset in owed & rows.keys()} == {
            offset: rows[offset] for offset in owed & rows.keys()
        }
    assert len(set(by_offset(root, "half")) - owed) <= len(owed)


def _kill_at(patch: pytest.MonkeyPatch, commits: int, made: bool) -> None:
    """End the process at a commit of retention, before it is made or afterwards."""
    remove, count = DeltaLog.remove, Counter[str]()

    def removing(log: DeltaLog, *arguments: Any, **more: Any) -> bool:
        count["commits"] += 1
        if count["commits"] > commits and not made:
            raise Killed
        found = remove(log, *arguments, **more)
        if count["commits"] > commits:
            raise Killed
        return found

    patch.setattr(DeltaLog, "remove", removing)


@pytest.mark.parametrize("altered", ["topics/a", "op", "rejected", "half", "decisions", "batches"])
def test_table_that_somebody_has_altered_keeps_its_rows(tmp_path: Path, altered: str) -> None:
    """Deleted rows may still be in its files: it is left alone, and so is the history of what became of messages."""
    lake(tmp_path, 2, 90)
    names = [*(name for name in _HISTORY if (tmp_path / name).is_dir()), "batches", "topics/a"]
    before = {name: rows_of(tmp_path, name) for name in names}
    DeltaTable(f"{tmp_path}/{altered}").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    settings = settings_of(tmp_path, history="15d", topics="15d")
    done = maintained(settings, ms(DONE))
    kept = {name for name in names if rows_of(tmp_path, name) == before[name]}
    assert kept == {name for name in names if not done[name].expired_rows}
    left = {"topics/a": {"topics/a"}, "op": {"op", "rejected"}, "rejected": {"rejected"}}.get(altered)
    assert kept >= (left or {*names} - {"topics/a"})
    assert kept.isdisjoint({"topics/a", "half", "op", "decisions", "batches"} - (left or {*names} - {"topics/a"}))
    assert any("nothing of the history is removed" in why for why in done["half"].kept) == (left is None)
    assert "no rows are removed" in str(done[altered].skipped)
    assert not Answers(settings).audit().broken


@pytest.mark.parametrize("bodies", [False, True])
def test_columns_that_somebody_has_added_keep_their_values(tmp_path: Path, bodies: bool) -> None:
    """Also in a file that is made one with others from before."""
    rows = list[Row]()
    for offset, days in enumerate((50, 49, 48, 3, 2)):
        t = Transaction(0, offset, DONE - timedelta(days=days), Random(offset).randbytes(999))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    found, last = in_batches(rows)
    settings = settings_of(tmp_path, **({"history": None, "bodies": "30d"} if bodies else {"topics": "30d"}))
    write(None, Tables.of(settings.storage), found)
    checkpoint(tmp_path, batch_id=last)
    names, noted = ("topics/a", "half", "op", "decisions"), datetime(2020, 1, 1, tzinfo=timezone.utc)
    for name in names:
        table = DeltaTable(f"{tmp_path}/{name}")
        table.alter.set_table_properties({"delta.appendOnly": "false"})
        table.alter.add_columns([Field("note", PrimitiveType("string")), Field("noted", PrimitiveType("timestamp"))])
        table.update(updates={"note": "'mine'", "noted": "TIMESTAMP '2020-01-01T00:00:00Z'"})
    for offset in range(5, 9):
        later = Transaction(0, offset, DONE, Random(offset).randbytes(999))
        write(None, Tables.of(settings.storage), [later.half(), later.op(), later.published(), later.decision()])
    done = maintained(settings, ms(DONE))
    for name in names:
        if name == "half" or not bodies:
            assert done[name].expired_rows == 3 * (not bodies)
        after = rows_of(tmp_path, name)
        assert Counter((row.get("note"), row.get("noted")) for row in after) == {
            ("mine", noted): 5 if bodies else 2,
            (None, None): 4,
        }
        if not bodies:
            read = DeltaTable(f"{tmp_path}/{name}").to_pyarrow_dataset()
            assert read.count_rows(ds.field("note").cast("string") == "mine") == 2
    assert (done["half"].emptied_bodies == 3) == bodies
    assert bodies or done["half"].files_after == 1


def test_history_null_keeps_everything(tmp_path: Path) -> None:
    lake(tmp_path, 1, 40)
    before = {name: rows_of(tmp_path, name) for name in _HISTORY}
    maintained(settings_of(tmp_path, history=None), ms(DONE))
    assert {name: rows_of(tmp_path, name) for name in _HISTORY} == before


def test_what_reconcile_has_not_seen_stays(tmp_path: Path) -> None:
    """It was stopped for a year: the history reaches back from its last batch."""
    lake(tmp_path, 2, 150)
    settings = settings_of(tmp_path)
    found = RowRetention.by_files(Tables.of(settings.storage), settings, [*_HISTORY, "batches"], ms(DONE), False).run()
    again = RowRetention.by_files(
        Tables.of(settings.storage), settings, [*_HISTORY, "batches"], ms(DONE + timedelta(days=365)), False
    ).run()
    assert sum(one.rows for one in found.values()) > 0
    assert sum(one.rows for one in again.values()) == 0


def test_history_is_at_least_what_recognises_a_repetition(tmp_path: Path) -> None:
    settings = Settings.model_validate({"retention": {"history": "1h"}, "gateway": {"dedup_window": "100h"}})
    assert settings.history() == timedelta(hours=100)
    settings = Settings.model_validate({"retention": {"history": "1h"}, "transaction": {"max_age": "50h"}})
    assert settings.history() == timedelta(hours=50)


def test_offsets_below_the_floor_are_not_given_again(tmp_path: Path) -> None:
    """A queue whose rows are all gone still has its next offset."""
    born = DONE - timedelta(days=50)
    rows: list[Row] = []
    for offset in range(4):
        t, at = Transaction(0, offset, born), born + timedelta(minutes=1)
        rows += [t.half(), t.op("ROLLBACK"), t.decision("ROLLBACK", decided_at=at)]
    settings = settings_of(tmp_path)
    written(tmp_path, rows)
    maintained(settings, ms(DONE))
    assert rows_of(tmp_path, "half") == []
    log = DeltaLog("half", str(tmp_path / "half"))
    assert floors_of(log, [0, 1]) == {0: 4}
    assert horizon(None, Tables.of(settings.storage)) == ms(HORIZON)
    with pytest.raises(SettingsError, match=r"was removed \(retention.history\)"):
        Answers(settings).pending(as_of=HORIZON - timedelta(days=1))
    assert Answers(settings).pending(as_of=HORIZON + timedelta(days=1)).num_rows == 0


def test_floor_does_not_recede(tmp_path: Path) -> None:
    """The message at a lower offset was the last to end."""
    settings, log = settings_of(tmp_path), str(tmp_path / "half")
    rows: list[Row] = []
    for offset, days in ((0, 20), (1, 50)):
        t, at = Transaction(0, offset, DONE - timedelta(days=50)), DONE - timedelta(days=days)
        rows += [t.half(), t.op("ROLLBACK", store_timestamp=at), t.decision("ROLLBACK", decided_at=at)]
    found, done = in_batches(rows)
    later = DONE + timedelta(days=20)
    for row in [*found, batch(done + 1, later)]:
        write(None, Tables.of(settings.storage), [row])
    checkpoint(tmp_path, batch_id=done + 1, done=later)
    for at, left in ((DONE, 1), (later, 0)):
        maintained(settings, ms(at))
        assert len(rows_of(tmp_path, "half")) == left
        assert floors_of(DeltaLog("half", log), [0]) == {0: 2}


def test_offset_that_was_much_too_high_does_not_close_its_queue(tmp_path: Path) -> None:
    """It stays while others land below it. A queue of a gateway, which gives them in turn, has none."""
    rows: list[Row] = []
    for offset, days in ((0, 50), (1, 50), (10**12, 50), (2, 49), (3, 1)):
        t = Transaction(2000, offset, DONE - timedelta(days=days))
        at = t.born + timedelta(minutes=1)
        rows += [t.half(), t.op("ROLLBACK"), t.decision("ROLLBACK", decided_at=at)]
    settings = settings_of(tmp_path)
    written(tmp_path, rows, size=1)
    maintained(settings, ms(DONE))
    assert [by_offset(tmp_path, name).keys() for name in ("half", "op", "decisions")] == [{3, 10**12}] * 3
    log = DeltaLog("half", str(tmp_path / "half"))
    assert floors_of(log, [2000]) == {2000: 3}
    assert not Answers(settings).audit().broken
    log.commit_after([], {}, {"gateway/2000": 1 << 33})
    maintained(settings, ms(DONE))
    assert by_offset(tmp_path, "half").keys() == {3}


def test_batch_under_way_at_the_horizon_hides_none_before_it(tmp_path: Path) -> None:
    """Each takes a second, and the last one before the horizon begins half a second before it."""
    rows: list[Row] = []
    for offset in range(9):
        at = HORIZON - timedelta(seconds=2 * offset, milliseconds=500)
        t = Transaction(0, offset, at - timedelta(seconds=5))
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    settings = settings_of(tmp_path)
    written(tmp_path, rows)
    maintained(settings, ms(DONE))
    assert len(rows_of(tmp_path, "batches")) == 3  # a run, that one, and the last
    assert Answers(settings).topics(as_of=HORIZON)["messages"].to_pylist() == [8]
    assert Answers(settings).topics(as_of=HORIZON + timedelta(milliseconds=500))["messages"].to_pylist() == [9]


def test_rows_removed_by_hand_are_no_retention(tmp_path: Path) -> None:
    """A decision and a message since the horizon that somebody takes out are found."""
    at = DONE - timedelta(hours=2)
    rows: list[Row] = []
    for offset in range(4):
        t = Transaction(0, offset, at - timedelta(minutes=30) - timedelta(days=50 * (offset < 2)))
        end = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=end), t.decision(decided_at=end)]
    gone = [row for row in rows if row[0] == "half" and row[1]["queue_offset"] == 3]
    settings = settings_of(tmp_path)
    written(tmp_path, [row for row in rows if row not in gone])
    maintained(settings, ms(DONE))
    assert len(rows_of(tmp_path, "half")) == 1
    broken = {one.finding.name for one in Answers(settings).audit().found if one.finding.level == "broken"}
    assert broken == {"decision_without_half"}


def test_what_may_be_resumed_stays_and_is_resumed_once(tmp_path: Path) -> None:
    """With the half message made of it, which says that it was; the others of that time go."""
    born = DONE - timedelta(days=45)
    once, twice, other = (Transaction(0, offset, born) for offset in range(3))
    at = born + timedelta(minutes=30)
    rows: list[Row] = [other.half(), other.op(), other.published(published_at=at), other.decision(decided_at=at)]
    for t in (once, twice):
        rows += [t.half(), *t.checks(), t.decision("DISCARD", decided_at=at), t.discarded(discarded_at=at)]
    new, name = Transaction(2_000_000_000, 0, at), {"transaction_id": once.key["transaction_id"]}
    origin = {"properties": [("CHECKBACK_RESUMED_FROM", "0/0"), ("CHECKBACK_RESUMED_BY", "ada: why")]}
    rows += [new.half(**name, **origin), new.op(**name), new.published("a", published_at=at, **name, **origin)]
    rows.append(new.decision(decided_at=at, **name))
    settings = settings_of(tmp_path)
    written(tmp_path, rows, size=1)
    maintained(settings, ms(DONE))
    assert sorted(str(row["queue_offset"]) for row in rows_of(tmp_path, "half")) == ["0", "0", "1"]
    resume = ["tx", "resume", "--set", f"storage.root={tmp_path}", "--actor", "a", "--reason", "r", "--yes"]
    assert main([*resume, "--all"]) == 0
    assert len(rows_of(tmp_path, "half")) == 4
    assert main([*resume, str(name["transaction_id"])]) == 1


def test_topics_and_what_was_given_up_have_their_own_retention(tmp_path: Path) -> None:
    """By topic; the audit does not miss what is gone, and a check of the promise goes on for the rest."""
    rows: list[Row] = []
    for offset, days in enumerate((20, 8, 1)):
        for queue, topic in enumerate(("a", "b")):
            t = Transaction(queue, offset, DONE - timedelta(days=days))
            at = t.born + timedelta(minutes=30)
            rows += [t.half(real_topic=topic), t.op(), t.decision(decided_at=at, real_topic=topic)]
            rows.append(t.published(topic, published_at=at))
        t = Transaction(2, offset, DONE - timedelta(days=days))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), *t.checks(), t.decision("DISCARD", decided_at=at), t.discarded(discarded_at=at)]
    settings = settings_of(tmp_path, topics="5d", topic={"a": "10d"}, given_up="10d")
    written(tmp_path, rows, size=3)
    maintained(settings, ms(DONE))
    assert [row["half_queue_offset"] for row in rows_of(tmp_path, "topics/a")] == [1, 2]
    assert [row["half_queue_offset"] for row in rows_of(tmp_path, "topics/b")] == [2]
    assert [row["queue_offset"] for row in rows_of(tmp_path, "discarded")] == [1, 2]
    assert len(rows_of(tmp_path, "half")) == 9
    report = Answers(settings).audit()
    assert not report.broken, figures(report)


@pytest.mark.parametrize("retention", [{}, {"topics": "4d"}])
def test_damaged_topic_stops_nothing_else(tmp_path: Path, retention: dict[str, str]) -> None:
    """A message waits for it."""
    rows: list[Row] = []
    for number in range(40):
        at, topic = DONE - timedelta(days=40) + timedelta(hours=number), "ab"[number % 2]
        t = Transaction(0, number, at - timedelta(minutes=1))
        rows += [t.half(real_topic=topic), t.op(), t.decision(decided_at=at, real_topic=topic)]
        rows.append(t.published(topic, published_at=at))
    waits = Transaction(0, 40, DONE - timedelta(days=39))
    rows += [waits.half(real_topic="b"), waits.op(), waits.decision(decided_at=DONE - timedelta(days=38))]
    rows.append(waits.unpublished("b", unpublished_at=DONE - timedelta(days=38), application="query"))
    settings = settings_of(tmp_path, **retention)
    written(tmp_path, rows)
    newest = max((tmp_path / "topics/b/_delta_log").glob("*.json"))
    newest.write_text("{not json\n")
    removed = maintained(settings, ms(DONE))
    assert removed["half"].expired_rows == 40
    assert (removed["topics/a"].expired_rows or 0) == (20 if retention else 0)
    assert [row["queue_offset"] for row in rows_of(tmp_path, "half")] == [40]


def test_long_rejected_lines_are_in_memory_one_file_after_another(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    tables = Tables.of(settings.storage)
    write(None, tables, [batch(0, DONE - timedelta(days=35)), batch(1, DONE), *Transaction(0).committed()])
    for number in range(20):
        raw = Random(number).randbytes(500_000).hex()
        row = {"source": "half", "raw": raw, "reason": "r", "file": "f", "rejected_at": DONE - timedelta(days=40)}
        write(None, tables, [("rejected", row)])
    before = pa.default_memory_pool()
    pa.set_memory_pool(_POOL)
    try:
        names = ["half", "decisions", "batches", "rejected"]
        found = RowRetention.by_files(tables, settings, names, ms(DONE), True).run()
    finally:
        pa.set_memory_pool(before)
    assert found["rejected"].rows == 20
    assert (_POOL.max_memory() or 0) < 8_000_000


@pytest.mark.parametrize("command", [["tx", "decisions"], ["outages"], ["what-if"]])
def test_part_of_what_is_asked_for_is_said_to_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    lake(tmp_path, 2, 60)
    maintained(settings_of(tmp_path), ms(DONE))
    asked = [*command, "--set", f"storage.root={tmp_path}", "-o", "json", "--since"]
    said = "what ended before 2025-12-03T00:00:00.000Z was removed by retention"
    assert main([*asked, "2025-11-01T00:00"]) == 0
    assert said in capsys.readouterr().err
    assert main([*asked, "2025-12-10T00:00"]) == 0
    assert said not in capsys.readouterr().err


def test_half_from_before_a_run_is_refused(tmp_path: Path) -> None:
    """Restored alone, it would make pending what ended long ago."""
    rows: list[Row] = []
    for number in range(20):
        at = DONE - timedelta(days=40) + timedelta(minutes=number)
        t = Transaction(0, number, at - timedelta(minutes=1))
        rows += [t.half(), t.op(), t.decision(decided_at=at), t.published(published_at=at)]
    settings = settings_of(tmp_path)
    tables = Tables.of(settings.storage)
    written(tmp_path, rows)
    shutil.copytree(tmp_path / "half", tmp_path / "backup")
    refuse_older_half(None, tables)
    maintained(settings, ms(DONE))
    refuse_older_half(None, tables)
    shutil.rmtree(tmp_path / "half")
    (tmp_path / "backup").rename(tmp_path / "half")
    with pytest.raises(StorageError, match=r"is older than `decisions`.*restore all tables from one backup"):
        refuse_older_half(None, Tables.of(settings.storage))


def test_half_restored_beyond_a_removal_is_refused_and_found(tmp_path: Path) -> None:
    """What had ended would be pending. What is owed for as long is no such message."""
    rows: list[Row] = []
    for offset, days in enumerate((45, 44, 0)):
        at = DONE - timedelta(days=days)
        t = Transaction(0, offset, at - timedelta(minutes=30))
        rows += [t.half(), t.op(), t.decision(decided_at=at), t.published(published_at=at)]
    owed = Transaction(1, 0, DONE - timedelta(days=45))
    rows += [owed.half(), owed.check()]
    after = Transaction(1, 1, DONE - timedelta(days=44))
    at = after.born + timedelta(minutes=1)
    rows += [after.half(), after.op("ROLLBACK"), after.decision("ROLLBACK", decided_at=at)]
    settings = settings_of(tmp_path)
    settings = settings.model_copy(update={"maintain": settings.maintain.model_copy(update={"min_files": 100})})
    tables = Tables.of(settings.storage)
    written(tmp_path, rows, size=1)
    before = DeltaTable(f"{tmp_path}/half").version()
    maintained(settings, ms(DONE))
    removed = DeltaTable(f"{tmp_path}/half").version()
    SeenCommits(tables, "reconcile", "").keep(None, {"half": removed})
    assert replaced(None, tables, "reconcile") is None
    assert not Answers(settings).audit().broken
    DeltaTable(f"{tmp_path}/half").restore(before)
    assert len(rows_of(tmp_path, "half")) == 5
    assert "half is a RESTORE, which may bring removed rows back" in (replaced(None, tables, "reconcile") or "")
    assert figures(Answers(settings).audit())["half_back"] == 3
    assert figures(Answers(settings).audit(since=DONE))["half_back"] == 3
    DeltaTable(f"{tmp_path}/half").restore(removed)
    assert "half_back" not in figures(Answers(settings).audit())


def test_second_copy_of_what_ended_before_the_horizon_is_found(tmp_path: Path) -> None:
    """It has all rows of a message of today, and its topic still has the first one."""
    rows: list[Row] = []
    for offset, days in enumerate((45, 44, 1)):
        t = Transaction(0, offset, DONE - timedelta(days=days))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    settings = settings_of(tmp_path)
    tables = Tables.of(settings.storage)
    done = written(tmp_path, rows)
    maintained(settings, ms(DONE))
    assert not Answers(settings).audit().broken
    t, now = Transaction(0, 0, DONE), DONE + timedelta(minutes=30)
    again = [t.half(), t.op(), t.published(published_at=now, batch_id=done + 1)]
    again += [t.decision(decided_at=now, batch_id=done + 1), batch(done + 1, now, committed=1)]
    write(None, tables, again)
    shutil.rmtree(tmp_path / "_checkpoints")
    checkpoint(tmp_path, batch_id=done + 1, done=now)
    for report in (Answers(settings).audit(), Answers(settings).audit(since=now)):
        assert [(f.finding.name, f.samples) for f in report.found if f.finding.level == "broken"] == [
            ("published_twice", ((0, 0),))
        ]
