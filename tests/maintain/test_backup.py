"""Backups: tables as of one batch, beside running processes; brought back they lose and double nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable

from checkback.cli import main
from checkback.errors import SettingsError, StateError, StorageError
from checkback.gateway.metrics import Metrics
from checkback.gateway.ownership import GAP
from checkback.gateway.service import GatewayService
from checkback.maintain import table_version
from checkback.maintain.backup import MANIFEST, back_up, restore
from checkback.maintain.table_version import TableVersion
from checkback.reconcile.checkpoint_owner import WRITTEN
from checkback.settings import Settings
from checkback.storage.half_restored import RESTORING
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables
from examples.s3_server import BUCKET, options
from gateway.process import TO_TABLE, Gateway, half, op
from release.lake import ARCHIVES, Lake, unpacked
from support.jvm import ENVIRON
from support.rows import records_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.maintain.backup import Backup

NOTHING: Any = lambda *_: None  # noqa: E731


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return unpacked(sorted(ARCHIVES.glob("release-*/lake.tar.gz"))[-1], tmp_path)


def settings(root: Path | str, port: int | None = None) -> Settings:
    stores = {} if port is None else {"options": options(port)}
    return Settings.model_validate({"storage": {"root": str(root), "sync": False, **stores}})


def taken(root: Path | str, target: Path | str, port: int | None = None) -> Backup:
    return back_up(settings(root, port), str(target), NOTHING, NOTHING)


def rows(root: Path, name: str) -> list[Any]:
    return sorted(map(str, DeltaTable(str(root / name)).to_pyarrow_table().to_pylist()))


def test_backup_has_all_tables_and_comes_back(lake: Lake, tmp_path: Path) -> None:
    made = taken(lake.root, tmp_path / "backup")
    again = tmp_path / "again"
    assert restore(settings(again), str(tmp_path / "backup"), NOTHING, NOTHING) == made
    names = [copy.table for copy in made.tables]
    assert {"half", "op", "decisions", "topics/payments", "consumer_groups/billing"} <= set(names)
    for name in names:
        assert rows(again, name) == rows(lake.root, name), name
    newest = DeltaTable(str(lake.root / "batches")).to_pyarrow_table().column("batch_id")
    assert made.batch_id == max(newest.to_pylist())


@pytest.mark.processes
def test_to_an_object_store_and_back(lake: Lake, tmp_path: Path, s3_port: int) -> None:
    bucket = f"s3://{BUCKET}/{tmp_path.name}"
    made = taken(lake.root, f"{bucket}/backup", s3_port)
    restore(settings(f"{bucket}/lake", s3_port), f"{bucket}/backup", NOTHING, NOTHING)
    second = taken(f"{bucket}/lake", tmp_path / "second", s3_port)
    assert [replace(copy, version=0) for copy in second.tables] == [replace(copy, version=0) for copy in made.tables]
    restore(settings(tmp_path / "again"), str(tmp_path / "second"), NOTHING, NOTHING)
    for copy in made.tables:
        assert rows(tmp_path / "again", copy.table) == rows(lake.root, copy.table), copy.table


def test_batch_in_progress_is_not_in_it(lake: Lake, tmp_path: Path) -> None:
    """Of the next batch some tables have their commits, and one a compaction after it."""
    before = taken(lake.root, tmp_path / "before")
    owners = DeltaLog("decisions", str(lake.root / "decisions")).applications()
    assert owners is not None
    query = max((number, app) for app, number in owners.items() if app.startswith("checkpoint/"))[1].partition("/")[2]
    assert before.batch_id is not None
    for name in ("decisions", "topics/payments", "check_requests"):
        log = DeltaLog(name, str(lake.root / name))
        log.commit_after([], {}, {f"{query}/{name}": before.batch_id + 1})
        log.commit_after([], {}, {"compaction": 1})
    DeltaLog("half", str(lake.root / "half")).commit_after([], {}, {"gateway": 1})
    after = taken(lake.root, tmp_path / "after")
    earlier = {copy.table: copy.version for copy in before.tables}
    changed = {copy.table: copy.version - earlier[copy.table] for copy in after.tables}
    assert {name: by for name, by in changed.items() if by} == {"half": 1}
    assert after.batch_id == before.batch_id


@pytest.mark.processes
def test_commands(lake: Lake, tmp_path: Path) -> None:
    """They say what there is, as of when, and what comes next."""
    said = lake.run("backup", str(tmp_path / "backup"))
    assert re.search(r"tables, [0-9.]+ MiB\), as of batch 4 of ", " ".join(said.split()))
    again = Lake(tmp_path / "again")
    told = json.loads(again.run("restore", str(tmp_path / "backup"), "-o", "json"))
    assert {"table", "version", "files", "bytes"} == told["tables"][0].keys()
    assert told["batch_id"] == 4
    assert "next: checkback rebuild" in Lake(tmp_path / "third").run("restore", str(tmp_path / "backup"))


def test_places_that_are_refused(lake: Lake, tmp_path: Path) -> None:
    for target in (lake.root, lake.root / "backup", lake.root.parent):
        with pytest.raises(SettingsError, match="place of the tables"):
            taken(lake.root, target)
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(SettingsError, match="not empty"):
        taken(lake.root, tmp_path / "used")
    with pytest.raises(SettingsError, match=MANIFEST):
        restore(settings(tmp_path / "new"), str(tmp_path / "used"), NOTHING, NOTHING)
    with pytest.raises(SettingsError, match="there are no tables"):  # a root that is mistyped
        taken(tmp_path / "lale", tmp_path / "backup")
    taken(lake.root, tmp_path / "backup")
    shutil.copytree(lake.root / "topics/payments", tmp_path / "left/topics/made-since")
    with pytest.raises(SettingsError, match="has the table topics/made-since"):
        restore(settings(tmp_path / "left"), str(tmp_path / "backup"), NOTHING, NOTHING)
    with pytest.raises(SettingsError, match="has the table"):
        restore(settings(lake.root), str(tmp_path / "backup"), NOTHING, NOTHING)


@pytest.mark.processes
def test_lost_offsets_are_not_given_again(tmp_path: Path) -> None:
    """Of a gateway without a journal, as in object stores: consumers and producers know them."""
    root, again = tmp_path / "lake", tmp_path / "again"
    with Gateway(root, TO_TABLE) as gateway:
        assert gateway.post("/v1/half", half("kept")).json()["queue_offset"] == 0
        taken(root, tmp_path / "backup")
        assert gateway.post("/v1/half", half("lost")).json()["queue_offset"] == 1
    restore(settings(again), str(tmp_path / "backup"), NOTHING, NOTHING)
    with Gateway(again, TO_TABLE) as gateway:
        assert gateway.post("/v1/half", half("new")).json()["queue_offset"] == 1 + GAP
        assert gateway.post("/v1/op", op(0, "kept")).status_code == 200


def test_interrupted_restore_goes_on_and_nothing_works_on_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = taken(lake.root, tmp_path / "backup")
    again, calls = settings(tmp_path / "again"), []

    def interrupted(source: str, target: str, paths: list[str], *step: Any) -> None:
        calls.append(target)
        if len(calls) == len(made.tables) + 3:  # among the logs
            raise KeyboardInterrupt
        copy_all(source, target, paths, *step)

    copy_all = table_version._copy_all
    with monkeypatch.context() as broken:
        broken.setattr(table_version, "_copy_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore(again, str(tmp_path / "backup"), NOTHING, NOTHING)
    with pytest.raises(StateError, match=r"restore .*/backup"):
        Tables.of(again.storage).create(None, "half")  # type: ignore[arg-type]  # no Spark is needed
    with pytest.raises(StateError, match="not done"):
        GatewayService(again, Metrics(), NOTHING)
    other = taken(lake.root, tmp_path / "other")
    with pytest.raises(SettingsError, match=r"restore of .*/backup is not done"):
        restore(again, str(tmp_path / "other"), NOTHING, NOTHING)
    assert other.tables == made.tables
    restore(again, str(tmp_path / "backup"), NOTHING, NOTHING)
    for copy in made.tables:
        assert rows(tmp_path / "again", copy.table) == rows(lake.root, copy.table), copy.table
    assert not (tmp_path / "again" / RESTORING).exists()


@pytest.mark.parametrize(
    "line",
    [
        "audit",
        "status",
        "topic list",
        "topic consume payments",
        "tx list",
        "tx describe committed-0",
        "tx resolve committed-0 --commit --actor ops --reason known --yes",
        "erase --key customer-0 --actor ops --reason asked --yes",
        "maintain",
        "maintain --repair",
        "backup BACKUP-2",
        "group list",
        "group reset g --to last --actor ops --reason new --yes",
    ],
)
def test_commands_do_not_take_half_restored_tables_for_all_there_is(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    """An op that the rest of the restore would overwrite, a backup without a table, an answer without a topic."""
    taken(lake.root, tmp_path / "backup")
    restore(settings(tmp_path / "again"), str(tmp_path / "backup"), NOTHING, NOTHING)
    (tmp_path / "again" / RESTORING).write_text(str(tmp_path / "backup"))
    shutil.rmtree(tmp_path / "again/op/_delta_log")
    words = line.replace("BACKUP", str(tmp_path / "backup")).split()
    assert main([*words, "--set", f"storage.root={tmp_path / 'again'}"]) == 1
    assert f"run it again: checkback restore {tmp_path / 'backup'}" in capsys.readouterr().err
    assert not (tmp_path / "again/op/_delta_log").exists()
    assert not (tmp_path / "backup-2").exists()


@pytest.mark.processes
def test_what_a_gateway_acknowledged_meanwhile_is_not_overwritten(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started while the backup is verified: in an object store that is minutes."""
    taken(lake.root, tmp_path / "backup")
    verify, again = TableVersion.refuse_incomplete, tmp_path / "again"

    def verifying(self: TableVersion, *given: Any) -> None:
        if not again.exists():
            with Gateway(again, TO_TABLE) as gateway:
                assert gateway.post("/v1/half", half("acknowledged")).status_code == 200
        verify(self, *given)

    monkeypatch.setattr(TableVersion, "refuse_incomplete", verifying)
    with pytest.raises(SettingsError, match="has the table half"):
        restore(settings(again), str(tmp_path / "backup"), NOTHING, NOTHING)
    assert [row["transaction_id"] for row in records_of(again, "half")] == ["acknowledged"]
    with Gateway(again, TO_TABLE) as gateway:  # it is not marked
        assert gateway.post("/v1/half", half("next")).status_code == 200


def test_what_was_erased_is_not_brought_back(lake: Lake, tmp_path: Path) -> None:
    """A batch was broken off, and rows were erased since: the cut before it would have them."""
    before = taken(lake.root, tmp_path / "before")
    assert before.batch_id is not None
    query = json.loads((lake.root / "_checkpoints/reconcile/metadata").read_text())["id"]
    log = DeltaLog("topics/payments", str(lake.root / "topics/payments"))
    log.commit_after([], {}, {f"{query}/topics/payments": before.batch_id + 1})
    DeltaTable(str(lake.root / "topics/payments")).delete("transaction_id = 'committed-0'")
    with pytest.raises(StorageError, match="erased since"):
        taken(lake.root, tmp_path / "after")


def test_damaged_backup_brings_nothing_back(lake: Lake, tmp_path: Path) -> None:
    taken(lake.root, tmp_path / "backup")
    file = next((tmp_path / "backup/topics/payments").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StorageError, match="missing or cut short"):
        restore(settings(tmp_path / "new"), str(tmp_path / "backup"), NOTHING, NOTHING)
    assert not (tmp_path / "new/half").exists()


@pytest.mark.parametrize("name", ["../elsewhere", "topics/..", "nosuch", "/etc", "half/x"])
def test_manifest_names_tables_only(lake: Lake, tmp_path: Path, name: str) -> None:
    taken(lake.root, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST
    about = json.loads(manifest.read_text())
    about["tables"][0]["table"] = name
    manifest.write_text(json.dumps(about))
    with pytest.raises(StorageError, match="manifest"):
        restore(settings(tmp_path / "new"), str(tmp_path / "backup"), NOTHING, NOTHING)


@pytest.mark.spark
@pytest.mark.parametrize("store", [False, True])
def test_altered_topic_is_in_it(lake: Lake, tmp_path: Path, spark: SparkSession, s3_port: int, store: bool) -> None:
    """With vectors of deleted rows, mapped columns, and a checkpoint that has sidecars: only Spark can read it."""
    table = f"delta.`{lake.root}/topics/payments`"
    before = spark.table(table).count()
    properties = {"enableDeletionVectors": "true", "columnMapping.mode": "name"}
    properties |= {"checkpointPolicy": "v2", "checkpointInterval": "1"}
    new = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({new})")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN more STRING")
    SparkTable.forPath(spark, str(lake.root / "topics/payments")).delete("transaction_id = 'committed-0'")
    assert list((lake.root / "topics/payments").glob("**/deletion_vector_*.bin"))
    assert list((lake.root / "topics/payments/_delta_log/_sidecars").iterdir())
    backup = f"s3://{BUCKET}/{tmp_path.name}" if store else str(tmp_path / "backup")
    made = taken(lake.root, backup, s3_port)
    shutil.rmtree(lake.root / "topics/payments/_delta_log/_sidecars")
    assert restore(settings(tmp_path / "again", s3_port), backup, NOTHING, NOTHING) == made
    found = spark.table(f"delta.`{tmp_path}/again/topics/payments`")
    assert 0 < found.where("transaction_id <> 'committed-0'").count() == found.count() < before
    if not store:
        next((tmp_path / "backup/topics/payments").glob("**/*.bin")).unlink()
        with pytest.raises(StorageError, match="missing or cut short"):
            restore(settings(tmp_path / "new"), backup, NOTHING, NOTHING)


@pytest.mark.spark
def test_under_load(tmp_path: Path) -> None:
    """Two backups while a gateway and reconcile work. Each comes back, is rebuilt and goes on; the audit is clean."""
    lake = Lake(tmp_path / "lake")
    lake.settings = ["reconcile.trigger=100ms"]
    stop = threading.Event()
    sent: list[str] = []

    def produce(gateway: Gateway) -> None:
        while not stop.is_set():
            name = f"tx-{len(sent)}"
            stored = gateway.post("/v1/half", half(name))
            assert gateway.post("/v1/op", op(stored.json()["queue_offset"], name)).status_code == 200
            sent.append(name)

    command = [sys.executable, "-m", "checkback", "reconcile"]
    given = [f"storage.root={lake.root}", "reconcile.partitions=2", "reconcile.segment_size=64", *lake.settings]
    command += [word for setting in given for word in ("--set", setting)]
    with lake.gateway() as gateway, subprocess.Popen(command, env={**os.environ, **ENVIRON}) as reconcile:
        producer = threading.Thread(target=produce, args=(gateway,))
        producer.start()
        try:
            made: list[Backup] = []
            seen = 0
            while len(made) < 2:
                assert reconcile.poll() is None
                assert producer.is_alive()
                batches = lake.root / "batches/_delta_log"
                if not batches.exists() or (now := len(list(batches.glob("*.json")))) < seen + 5:
                    continue
                seen = now
                made.append(taken(lake.root, tmp_path / f"backup-{len(made)}"))
        finally:
            stop.set()
            producer.join()
            reconcile.send_signal(signal.SIGTERM)
    assert reconcile.returncode == 0
    assert len({one.batch_id for one in made}) == 2
    for number in range(2):
        again = Lake(tmp_path / f"again-{number}")
        again.run("restore", str(tmp_path / f"backup-{number}"))
        landed = [row["transaction_id"] for row in records_of(again.root, "half")]
        published = [row["transaction_id"] for row in records_of(again.root, "topics/payments")]
        assert set(published) <= set(landed) <= {*sent, f"tx-{len(sent)}"}
        again.run("rebuild")
        again.run("reconcile", "--available-now")
        ended = {row["transaction_id"] for row in records_of(again.root, "op")}
        published = [row["transaction_id"] for row in records_of(again.root, "topics/payments")]
        assert sorted(published) == sorted(ended & set(landed)), "each committed one, once"
        again.run("audit")
        with again.gateway("gateway.queues=[5]") as gateway:
            assert gateway.post("/v1/half", half("new")).status_code == 200


def test_all_that_a_batch_writes_is_cut(lake: Lake) -> None:
    """A table that a batch writes and this module does not know would be newer than the others."""
    query = json.loads((lake.root / "_checkpoints/reconcile/metadata").read_text())["id"]
    for log in lake.root.glob("*/_delta_log"):
        if any(f'"{query}/' in file.read_text() for file in log.glob("*.json")):
            assert log.parent.name in WRITTEN
