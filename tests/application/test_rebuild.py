"""A checkpoint built anew from the tables: nothing is decided again, nothing is lost, wherever the old one ended."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.application import rebuild as module
from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild, segment_blocks
from checkback.errors import CheckbackError, SettingsError, StateError
from checkback.gateway.health import now_ms
from checkback.query.answers import Answers
from checkback.query.audit.findings import audit_on
from checkback.query.engines.spark_engine import SparkEngine
from checkback.reconcile.lost_checkpoint.batch_recovery import Deleted
from checkback.reconcile.state.packed_events import pack, parse_key, unpack
from checkback.reconcile.state.state_codec import decode
from checkback.settings import Settings
from checkback.storage.files import filesystem
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from maintain.fixtures import maintained
from reconcile.messages import T0
from reconcile.messages import half as half_row
from reconcile.segments import events
from reconcile.segments import half as half_event
from support.aged import age
from support.ended import assert_ended
from support.lines import land_lines
from support.rows import records_of, rows_of
from support.scripted import made
from support.stories import DECIDED, Transaction, batch, checkpoint, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_CHECK_MAX = 1
#: what a batch of `reconcile` writes
_WRITTEN = ("topics/", "decisions", "discarded", "check_requests", "rejected", "batches")


class Lost(ConnectionError):  # noqa: N818 - no error of the code
    """The machine is gone: no error of one table, which would not end the batch."""


def breaking(monkeypatch: pytest.MonkeyPatch, survives: Callable[[str], bool]) -> None:
    """From now on only some tables' commits are made; the first of the others ends the batch."""
    commit = Tables.commit

    def broken(self: Tables, spark: SparkSession, name: str, *more: Any) -> None:
        if name.startswith(_WRITTEN) and not survives(name):
            raise Lost
        commit(self, spark, name, *more)

    monkeypatch.setattr(Tables, "commit", broken)


def test_without_tables_there_is_nothing_to_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    """The wrong folder: a new, empty checkpoint there would seem to be the one that was wanted."""
    with pytest.raises(SettingsError, match="there is no such table; name the place of the tables"):
        rebuild(spark, Settings.model_validate({"storage": {"root": str(tmp_path)}}), print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spine("a rebuild")
def test_rebuilt_after_a_batch_that_broke_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other segments and partitions; then the rest of the trace lands, and all ends as if nothing had been."""
    seed = int(os.environ.get("SEED", "0")) or Random().randrange(1, 10**9)
    print(f"run it again with SEED={seed}")
    random = Random(seed)
    trace = made(random, 240, round(time.time() * 1000))
    for half in trace.halves.values():
        half["check_immunity"] = None
    trace.write_parts(tmp_path, random, 4)
    survivors = tuple(random.sample(_WRITTEN[:-1], random.randrange(1, 4)))
    content: dict[str, Any] = {
        "storage": {"root": str(tmp_path / "data")},
        # Nobody is given up before all has landed.
        "transaction": {"timeout": "1h", "check_max": _CHECK_MAX, "check_interval": "1ms"},
        "reconcile": {"partitions": 2, "segment_size": 64},
    }
    settings = Settings.model_validate(content)

    def land_file(number: int) -> None:
        land_lines(settings.storage.root, *(tmp_path / kind / f"{number}.jsonl" for kind in ("half", "op")))

    land_file(0)
    reconcile(spark, settings, available_now=True)
    land_file(1)
    with monkeypatch.context() as patch:
        breaking(patch, lambda name: name.startswith(survivors))
        with pytest.raises(CheckbackError):
            reconcile(spark, settings, available_now=True)
    land_file(2)
    checkpoints = Path(settings.storage.checkpoints_root)
    shutil.rmtree(checkpoints / "reconcile")
    content["reconcile"] |= {"partitions": 3, "segment_size": random.choice([32, 100, 4096])}
    settings = Settings.model_validate(content)
    told: list[str] = []
    rebuilt = rebuild(spark, settings, told.append)
    assert rebuilt is not None
    assert rebuilt.set_aside is None
    land_file(3)
    reconcile(spark, settings, available_now=True)
    content["transaction"]["timeout"] = "0s"
    settings = Settings.model_validate(content)
    rebuilt = rebuild(spark, settings, told.append)
    assert rebuilt is not None
    assert rebuilt.finished == {}
    assert rebuilt.set_aside is not None
    for _ in range(_CHECK_MAX + 1):
        reconcile(spark, settings, available_now=True)
    assert_ended(spark, settings, trace)


def test_rebuild_broken_off_is_run_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its batch, or before its end; until it is done nothing starts, and the old checkpoint is kept.

    If it has changed nothing yet, `reconcile` goes on.
    """
    random = Random(5)
    trace = made(random, 60, round(time.time() * 1000))
    trace.write(tmp_path, random, files=1)
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path / "data")},
            "transaction": {"timeout": "0s", "check_max": _CHECK_MAX, "check_interval": "1ms"},
            "reconcile": {"partitions": 2, "segment_size": 64},
        }
    )
    land_lines(settings.storage.root, tmp_path / "half/0.jsonl", tmp_path / "op/0.jsonl")
    reconcile(spark, settings, available_now=True)

    def gone(*_: object, **__: object) -> None:
        raise Lost

    def breaks_off(where: object, step: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(where, step, gone)
            with pytest.raises(Lost):
                module.rebuild(spark, settings, print)

    for step in ("finish", "segment_blocks"):
        breaks_off(module, step)
    reconcile(spark, settings, available_now=True)
    for where, step in (
        (module, "reconcile_query"),
        (module, "segment_blocks"),
        (module, "claim"),
        (filesystem, "delete"),
    ):
        breaks_off(where, step)
        with pytest.raises(StateError, match="a rebuild is in progress"):
            reconcile(spark, settings, available_now=True)
    again = rebuild(spark, settings, print)
    assert again is not None
    assert again.finished == {}
    assert again.set_aside is not None
    assert (Path(again.set_aside) / "metadata").exists()
    for _ in range(_CHECK_MAX + 1):
        reconcile(spark, settings, available_now=True)
    assert_ended(spark, settings, trace)


def test_segments_are_cut_as_the_packer_cuts_them(spark: SparkSession, tmp_path: Path) -> None:
    """Up to the last offset there is. What another writer has put below 0 is no half message, here as in a batch."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"segment_size": 1000}})
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    offsets = [-(2**63), -1001, -1000, -1, 0, 999, 1000, 2**63 - 1]
    halves = [half_row(offset) for offset in offsets]
    common = {"queue_id": 0, "producer_group": "orders", "state": "COMMIT", "source": "producer", "store_timestamp": T0}
    ops = [common | {"queue_offset": offset, "transaction_id": f"tx-{offset}"} for offset in offsets]
    for name, rows in (("half", halves), ("op", ops)):
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema(name)), name)
    versions = {name: max(tables.history(spark, name, 1)) + 1 for name in ("half", "op")}
    segments = {}
    for key, block in segment_blocks(spark, tables, settings, versions, 1_800_000_000_000).collect():
        segments[key], _ = decode(bytes(block), parse_key(key, 1000)[1], 1000)
    packed = events(*(half_event(offset) for offset in offsets if offset >= 0))
    keys = {
        key: unpack([found])["offset"].tolist() for key, found in pack(np.zeros(len(packed), np.int32), packed, 1000)
    }
    assert {key: segment.pending["offset"].tolist() for key, segment in segments.items()} == keys
    assert {key: segment.early["offset"].tolist() for key, segment in segments.items()} == keys


def test_deleted_messages_are_not_published_again_unasked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of batches before the last: it says which, and how either is done; the old checkpoint goes on.

    Not if the rebuild has appended rows of a batch that broke off, which its checkpoint would write again.
    """
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 1}})
    tables = Tables.of(settings.storage)

    def land_messages(*offsets: int) -> None:
        rows = [half_row(offset) | {"committed": True} for offset in offsets]
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema("half")), "half")

    def offsets(name: str, column: str) -> list[int]:
        return sorted(offset for (offset,) in rows_of(tables.root, name, column))

    tables.create(spark, *SCHEMAS)
    land_messages(0, 1)
    reconcile(spark, settings, available_now=True)
    shutil.rmtree(tables.location("topics/a"))
    with pytest.raises(StateError, match=r"topics/a lacks 2.*--leave-out.*--publish-again"):
        rebuild(spark, settings, print)
    land_messages(2)
    with monkeypatch.context() as patch:
        breaking(patch, lambda name: name == "decisions")
        with pytest.raises(CheckbackError):
            reconcile(spark, settings, available_now=True)
    assert offsets("decisions", "queue_offset") == [0, 1, 2]
    with pytest.raises(StateError, match="topics/a lacks 2"):
        rebuild(spark, settings, print)
    assert offsets("topics/a", "half_queue_offset") == [2]
    with pytest.raises(StateError, match=r"a rebuild is in progress or was interrupted.*may no longer fit"):
        reconcile(spark, settings, available_now=True)
    left_out = rebuild(spark, settings, print, Deleted.LEAVE_OUT)
    assert left_out is not None
    assert left_out.finished == {}
    reconcile(spark, settings, available_now=True)
    assert offsets("topics/a", "half_queue_offset") == [2]
    again = rebuild(spark, settings, print, Deleted.PUBLISH_AGAIN)
    assert again is not None
    assert again.finished == {"topics/a": 2}
    assert offsets("topics/a", "half_queue_offset") == [0, 1, 2]


def test_messages_whose_bodies_retention_has_removed(spark: SparkSession, tmp_path: Path) -> None:
    """They are published once, and judged by both engines; if somebody deletes them, they cannot be again."""
    settings = Settings.model_validate(
        {"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 1}, "retention": {"bodies": "5d"}}
    )
    tables = Tables.of(settings.storage)

    def publish(*offsets: int) -> None:
        rows = [half_row(offset, stored=None) | {"committed": True} for offset in offsets]
        now = {"born_timestamp": time_of(now_ms()), "store_timestamp": time_of(now_ms())}
        rows = [row | now | {"body": Random(row["queue_offset"]).randbytes(1024)} for row in rows]
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema("half")), "half")
        reconcile(spark, settings, available_now=True)

    def published() -> list[tuple[int, int]]:
        return sorted(
            (offset, len(body)) for offset, body in rows_of(tables.root, "topics/a", "half_queue_offset", "body")
        )

    tables.create(spark, *SCHEMAS)
    publish(0, 1)
    age(tables, timedelta(days=20))
    assert rebuild(spark, settings, print) is not None
    publish(2)
    assert maintained(settings)["half"].emptied_bodies == 2
    bodies = dict(rows_of(tables.root, "half", "queue_offset", "body"))
    assert [bodies[offset] is None for offset in range(3)] == [True, True, False]
    rebuilt = rebuild(spark, settings, print)
    assert rebuilt is not None
    assert rebuilt.finished == {}
    reconcile(spark, settings, available_now=True)
    assert published() == [(0, 1024), (1, 1024), (2, 1024)]
    assert audit_on(SparkEngine(spark, tables), settings).kept
    assert Answers(settings).audit().kept
    shutil.rmtree(tables.location("topics/a"))
    with pytest.raises(StateError, match=r"no bodies of them .retention.bodies.: topics/a lacks 2.*--leave-out"):
        rebuild(spark, settings, print, Deleted.PUBLISH_AGAIN)
    assert published() == [(2, 1024)]
    assert rebuild(spark, settings, print, Deleted.LEAVE_OUT) is not None
    assert published() == [(2, 1024)]


@pytest.mark.parametrize("restored", [["half"], ["half", "op"], ["decisions"]])
def test_what_ended_long_ago_is_not_taken_for_pending(spark: SparkSession, tmp_path: Path, restored: list[str]) -> None:
    """Somebody takes a table back to before retention removed rows: messages would be published again."""
    retention = {"history": "60d" if restored == ["decisions"] else "30d", "topics": "20d"}
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "retention": retention})
    tables, now = Tables.of(settings.storage), time_of(now_ms())
    rows = []
    for offset, days in enumerate((45.0, 44.0, 0.5)):
        t = Transaction(0, offset, now - timedelta(days=days))
        at = t.born + timedelta(minutes=30)
        rows.append(
            [
                t.half(),
                t.op(),
                t.published(published_at=at, batch_id=offset),
                t.decision(decided_at=at, batch_id=offset),
            ]
        )
        rows[-1].append(batch(offset, at, committed=1))
    tables.create(spark, *SCHEMAS)
    before = {name: DeltaTable(tables.location(name)).version() for name in restored}
    for each in rows:
        write(spark, tables, each)
        before |= {} if restored == ["decisions"] else {name: tables.log(name).version() for name in restored}
    checkpoint(tmp_path, batch_id=2, done=at)
    maintained(settings)
    versions = {name: tables.log(name).version() for name in restored}
    for name, version in before.items():
        DeltaTable(tables.location(name)).restore(version)
    shutil.rmtree(tmp_path / "_checkpoints")
    with pytest.raises(StateError, match=r"2 half messages have no decision.*'tx-0-[01]'.*one backup.*--publish-again"):
        rebuild(spark, settings, print)
    assert len(rows_of(tables.root, "topics/a", "half_queue_offset")) == 1
    for name, version in versions.items():
        DeltaTable(tables.location(name)).restore(version)
    assert rebuild(spark, settings, print) is not None
    assert len(rows_of(tables.root, "topics/a", "half_queue_offset")) == 1
    assert Answers(settings).pending().num_rows == 0


def test_topic_copied_or_moved_beside_itself_is_a_strangers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a batch that broke off: one decision, in its own topic; what was moved is published again."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 1}})
    tables = Tables.of(settings.storage)

    def land_messages(*halves: dict[str, Any]) -> None:
        rows = [half | {"committed": True} for half in halves]
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema("half")), "half")

    tables.create(spark, *SCHEMAS)
    land_messages(half_row(0))
    reconcile(spark, settings, available_now=True)
    land_messages(half_row(1), half_row(2, "b"))
    with monkeypatch.context() as patch:
        breaking(patch, lambda name: name.startswith("topics/"))
        with pytest.raises(CheckbackError):
            reconcile(spark, settings, available_now=True)
    shutil.copytree(tables.location("topics/a"), tables.location("topics/a_backup"))
    Path(tables.location("topics/b")).rename(tables.location("topics/b_old"))
    shutil.rmtree(Path(settings.storage.checkpoints_root) / "reconcile")
    rebuilt = rebuild(spark, settings, print)
    assert rebuilt is not None
    assert rebuilt.finished == {"decisions": 1}
    reconcile(spark, settings, available_now=True)
    decided = rows_of(tables.root, "decisions", "queue_offset", "real_topic")
    assert sorted(decided) == [(0, "a"), (1, "a"), (2, "b")]
    published = {name: rows_of(tables.root, name, "half_queue_offset") for name in ("topics/a", "topics/b")}
    assert {name: sorted(rows) for name, rows in published.items()} == {"topics/a": [(0,), (1,)], "topics/b": [(2,)]}


def test_repeated_half_messages_that_no_batch_has_read_are_rejected_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the rebuild is broken off after that; what is decided, or else came first, is not rejected."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "reconcile": {"partitions": 1}})
    tables = Tables.of(settings.storage)
    decided, undecided, whole = (Transaction(0, offset) for offset in range(3))
    before, after = ({"store_timestamp": decided.born + timedelta(seconds=n)} for n in (0, 9))
    rows = [*decided.committed(), decided.half(transaction_id="other", **before)]
    rows += [undecided.half(), undecided.half(transaction_id="other", **after), *whole.committed()]
    tables.create(spark, *SCHEMAS)
    write(spark, tables, [*rows, batch(0, DECIDED, committed=2)])
    with monkeypatch.context() as patch:
        patch.setattr(module, "segment_blocks", _lost)
        with pytest.raises(Lost):
            rebuild(spark, settings, print)
    with pytest.raises(StateError, match="a rebuild is in progress"):  # its first batch would reject them again
        reconcile(spark, settings, available_now=True)
    assert rebuild(spark, settings, print) is not None
    found = [(row["source"], row["reason"], json.loads(row["raw"])) for row in records_of(tmp_path, "rejected")]
    assert sorted((source, reason, raw["transaction_id"]) for source, reason, raw in found) == [
        ("half", f"repeated (queue_id, queue_offset) 0/{offset}", "other") for offset in (0, 1)
    ]


def _lost(*_: object) -> None:
    raise Lost
