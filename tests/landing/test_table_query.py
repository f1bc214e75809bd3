"""Rows of Delta tables land once, in their order, whatever happens to the table; what is wrong is rejected."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from checkback.errors import CheckbackError, SettingsError
from checkback.landing import table_source
from checkback.landing.batch import Landing
from checkback.landing.drained_tables import all_landed
from checkback.landing.landing_queries import Landed
from checkback.landing.table_query import TableOptions, land
from checkback.landing.table_source import TableSource
from checkback.settings import Settings
from checkback.storage.horizon import versions_of
from checkback.storage.queue_owners import QueueOwner, log_of_half, refuse_foreign
from checkback.storage.spark_schemas import schema_of
from landing.fixtures import Lakehouse, half, killed_before
from landing.outbox import OUTBOX, Outbox, bodies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out box"


@pytest.mark.spine("landing from tables")
def test_rows_of_an_outbox_become_committed_messages(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place, f"{OUTBOX}, timestamp BIGINT, headers STRING, other INT")
    outbox.add(
        """'e1', 'orders', 'a1', 'created', '{"amount": 1}', 1700000000001, '{"region":"eu", "n":1, "no":null}', 1""",
        "'e2', 'payments', NULL, NULL, repeat('é', 300), 1700000000000, NULL, 1",
        "NULL, 'orders', 'a1', 'created', 'no id', 1700000000002, NULL, 1",
        "'e4', 'or ders', 'a1', 'created', 'no topic', 1700000000003, NULL, 1",
        "'e5', 'orders', 'a1', 'created', NULL, 1700000000004, NULL, 1",
        "'e6', 'orders', 'a1', 'created', 'bad headers', 1700000000005, 'a=b', 1",
    )
    assert outbox.land() == Landed(half=2, rejected=4)
    columns = (
        "queue_offset",
        "transaction_id",
        "producer_group",
        "real_topic",
        "tags",
        "keys",
        "properties",
        "committed",
    )
    properties = {"region": "eu", "n": "1", "__SHARDINGKEY": "a1"}
    assert lake.rows("half", *columns) == [
        (0, "e2", "outbox", "payments", None, None, {}, True),
        (1, "e1", "outbox", "orders", "created", "a1", properties, True),
    ]
    assert [bytes(row.body) for row in lake.rows("half", "queue_offset", "body")] == [
        "é".encode() * 300,
        b'{"amount": 1}',
    ]
    assert [int(row[0].timestamp() * 1000) for row in lake.rows("half", "born_timestamp")] == [
        1700000000000,
        1700000000001,
    ]
    assert {row[0] for row in lake.rows("rejected", "reason")} == {
        "transaction_id: missing",
        'real_topic: "or ders" has characters other than a-z, A-Z, 0-9, _ and -',
        "body: missing",
        "properties: not JSON: Expecting value at character 0",
    }
    # What is rejected is whole: it could be landed by hand.
    raws = [json.loads(row[0]) for row in lake.rows("rejected", "raw")]
    assert [raw["properties"] for raw in raws if raw.get("transaction_id") == "e6"] == ["a=b"]
    assert all(row[0].startswith(f"{place}/part-") for row in lake.rows("rejected", "file"))
    # Nothing new, which is known without Spark; then more rows, of which one came before.
    assert all_landed(lake.tables, [str(place)])
    assert outbox.land() == Landed()
    outbox.add(
        "'e7', 'orders', 'a1', 'created', 'late', 1700000000009, NULL, 1",
        "'e1', 'orders', 'a1', 'created', 'twice', 1700000000008, NULL, 1",
        "'e7', 'orders', 'a1', 'created', 'late, twice', 1700000000010, NULL, 1",
    )
    assert not all_landed(lake.tables, [str(place)])
    assert outbox.land() == Landed(half=1, rejected=2)
    assert all_landed(lake.tables, [str(place)])
    lake.forget_last_batch(outbox.query)
    assert not all_landed(lake.tables, [str(place)])
    assert bodies(lake)[2:] == [(2, "e7", "late")]
    twice = [(row[0], json.loads(row[1])["transaction_id"]) for row in lake.rows("rejected", "reason", "raw")[-3:-1]]
    assert twice == [("repeated transaction_id e1", "e1"), ("repeated transaction_id e7", "e7")]


@pytest.mark.parametrize("killed", ["half", "rejected", "position"])
def test_batch_that_is_done_again_changes_nothing(
    lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Killed before one of its commits, or before Spark notes that the batch is done."""
    outbox = Outbox(lake, place)
    outbox.orders(*range(5))
    assert outbox.land() == Landed(half=5)
    outbox.add("'5', 'orders', 'a', 'b', 'five'", "'1', 'orders', 'a', 'b', 'twice'", "'6', '', 'a', 'b', 'none'")
    if killed == "position":
        outbox.land()
        lake.forget_last_batch(outbox.query)
    else:
        with monkeypatch.context() as patch:
            killed_before(patch, killed)
            with pytest.raises(CheckbackError):
                outbox.land()
    assert outbox.land() == Landed(half=1, rejected=2)
    assert bodies(lake) == [*((n, str(n), f"body {n}") for n in range(5)), (5, "5", "five")]
    assert len(lake.rows("rejected")) == 2
    # Without its checkpoint the table is read again: what has landed is known, and the queue is the same.
    shutil.rmtree(lake.tables.checkpoint(outbox.query))
    assert outbox.land() == Landed(rejected=8)
    outbox.orders(9)
    assert outbox.land() == Landed(half=1)
    assert bodies(lake)[-1] == (6, "9", "body 9")
    assert len({row[0] for row in lake.rows("half", "queue_id")}) == 1


def _with_checkpoints(lake: Lakehouse, folder: Path) -> Lakehouse:
    storage = lake.settings.storage.model_copy(update={"checkpoints": str(folder)})
    return replace(lake, spark=lake.spark.newSession(), settings=lake.settings.model_copy(update={"storage": storage}))


def test_of_two_that_land_at_once_one_takes_a_row(
    lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each with its own checkpoints. The other one lands when this one has looked for repeated ids."""
    outbox = Outbox(lake, place)
    outbox.orders(*range(3))
    other = _with_checkpoints(lake, tmp_path / "elsewhere")
    write = Landing._write

    def come_late(landing: Landing, *given: Any) -> None:
        monkeypatch.undo()
        assert outbox.land(lake=other) == Landed(half=3)
        write(landing, *given)

    monkeypatch.setattr(Landing, "_write", come_late)
    assert outbox.land() == Landed(rejected=3)
    assert [row[0] for row in bodies(lake)] == [0, 1, 2]


@pytest.mark.parametrize("landed", [False, True])
def test_of_two_that_land_in_turn_each_knows_what_the_other_took(
    lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, landed: bool
) -> None:
    """``landed``: of the first batch, too, so that this one commits nothing in it."""
    outbox = Outbox(lake, place)
    outbox.orders(0)
    if landed:
        assert outbox.land(lake=_with_checkpoints(lake, tmp_path / "third")) == Landed(half=1)
    outbox.orders(1)
    outbox.orders(2)
    other = _with_checkpoints(lake, tmp_path / "elsewhere")
    monkeypatch.setattr(table_source, "_LIMITS", {"maxFilesPerTrigger": "1"})
    take, batches = Landing._take, count()

    def in_turn(landing: Landing, *given: Any) -> None:
        if next(batches) == 1:
            monkeypatch.setattr(Landing, "_take", take)
            assert outbox.land(lake=other, version="3") == Landed(half=1)
        take(landing, *given)

    monkeypatch.setattr(Landing, "_take", in_turn)
    assert outbox.land() == (Landed(half=1, rejected=2) if landed else Landed(half=2, rejected=1))
    assert [row[0] for row in bodies(lake)] == [0, 1, 2]


def test_rows_keep_their_order(lake: Lakehouse, place: Path) -> None:
    """That of a batch's commits by the column `timestamp`, or by what --map says."""
    outbox = Outbox(lake, place, f"{OUTBOX}, timestamp TIMESTAMP, number DECIMAL(20, 0)")
    for number in range(6):
        outbox.add(
            *(
                f"'{number}-{n}', 'orders', 'a', 'b', 'x', TIMESTAMP '2026-01-01 00:00:0{number}', {9 - n}"
                for n in (0, 1)
            )
        )
    outbox.land()
    assert [row[1] for row in bodies(lake)] == [f"{number}-{n}" for number in range(6) for n in (0, 1)]
    second = Outbox(lake, place.with_name("second"), f"{OUTBOX}, number INT")
    for number in (3, 1, 2):
        second.add(f"'{number}', 'orders', 'a', 'b', 'x', {number}")
    assert second.land(mapping={"order": "-number"}).half == 3
    assert [
        row[1] for row in lake.rows("half", "queue_offset", "transaction_id", "queue_id") if "-" not in row[1]
    ] == list("321")


def test_columns_of_a_table_may_have_any_names(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place, f"{OUTBOX}, _ignored BOOLEAN, _fault STRING, _commit_time TIMESTAMP, _snapshot STRING")
    outbox.add("'1', 'orders', 'a', 'b', 'x', TRUE, 'none', NULL, 's'")
    assert outbox.land(mapping={"tags": "_fault"}) == Landed(half=1)
    assert lake.rows("half")[0].tags == "none"


def test_columns_and_expressions_of_a_mapping(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(
        lake,
        place,
        "seq BIGINT, kind STRING, doc STRUCT<n: INT>, meta MAP<STRING, INT>, raw BINARY, at TIMESTAMP_NTZ, wait STRING",
    )
    outbox.add(
        "7, 'paid', NAMED_STRUCT('n', 1), MAP('a', 1, 'b', NULL), X'00FF', TIMESTAMP_NTZ '2026-01-01 00:00:00', '30s'",
        "8, 'paid', NULL, NULL, X'00FF', NULL, 'soon'",
    )
    mapping = {
        "transaction_id": "seq",
        "real_topic": "concat('topic-', kind)",
        "producer_group": "'billing'",
        "body": "doc",
        "properties": "meta",
        "tags": "hex(raw)",
        "keys": "raw",
        "born_timestamp": "at",
        "delay": "wait",
        "order": "seq",
        "real_queue_id": "CAST('no number' AS INT)",
    }
    assert outbox.land(mapping=mapping) == Landed(half=1, rejected=1)
    row = lake.rows("half")[0]
    assert (row.transaction_id, row.producer_group, row.real_topic) == ("7", "billing", "topic-paid")
    assert (row.tags, row.keys, row.properties, bytes(row.body)) == ("00FF", "00ff", {"a": "1"}, b'{"n":1}')
    assert (row.born_timestamp.isoformat(), row.delay_ms) == ("2026-01-01T00:00:00+00:00", 30_000)
    assert lake.rows("rejected", "reason")[0][0].startswith("body: missing")


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"transaction_id": "nowhere"}, "--map transaction_id: "),
        ({"transaction_id": "id ||"}, "--map transaction_id: "),
        ({"born_timestamp": "payload"}, "--map born_timestamp: is string, which born_timestamp cannot be"),
        ({"order": "payload"}, "--map order: is string, neither a time nor a whole number"),
        ({"body": "max(payload)"}, "--map: "),
        ({"body": "explode(array(1))"}, "--map: "),
        ({"body": "payload, id"}, "--map body: "),
        ({"queue_id": "1"}, "--map: queue_id is not a field of an outbox's row"),
    ],
)
def test_wrong_mapping_is_told_in_one_line(lake: Lakehouse, place: Path, mapping: dict[str, str], told: str) -> None:
    outbox = Outbox(lake, place)
    with pytest.raises(SettingsError) as error:
        outbox.land(mapping=mapping)
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


def test_tables_that_are_no_outbox_are_refused(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place, "key STRING, value STRING")
    with pytest.raises(
        SettingsError, match="--outbox: has no column id, and its columns are key, value; say what it is"
    ):
        outbox.land()
    with pytest.raises(SettingsError, match=r"--outbox: .* (is no Delta table|cannot be opened)"):
        outbox.land(outbox=str(place.parent))
    with pytest.raises(SettingsError, match="'no table' is no table"):
        outbox.land(outbox="no table")
    with pytest.raises(SettingsError, match="--half: column key: no such field, did you mean keys"):
        outbox.land(as_outbox=False, half=str(place))


def test_half_messages_and_ops_of_tables(lake: Lakehouse, place: Path) -> None:
    halves = Outbox(
        lake,
        place,
        "queue_id INT, queue_offset BIGINT, transaction_id STRING, producer_group STRING, real_topic STRING, "
        "body BINARY, properties MAP<STRING, STRING>, "
        "born_timestamp TIMESTAMP, committed BOOLEAN, _ingested_at TIMESTAMP",
    )
    when = "TIMESTAMP '2026-01-01 00:00:00'"
    halves.add(
        *(f"3, {n}, 't{n}', 'orders', 'paid', X'00FF', MAP('a', 'b'), {when}, NULL, NULL" for n in (0, 1, 1)),
        f"3, 2, 't2', 'or ders', 'paid', X'00FF', NULL, {when}, TRUE, NULL",
    )
    ops = Outbox(
        lake,
        place.with_name("ops"),
        "queue_id INT, queue_offset LONG, transaction_id STRING, producer_group STRING, state STRING, "
        "born_timestamp LONG",
    )
    ops.add("3, 0, 't0', 'orders', 'COMMIT', 1700000000000", "3, 1, 't1', 'orders', 'MAYBE', 1700000000000")
    landed = halves.land(as_outbox=False, half=str(halves.place), op=str(ops.place))
    assert landed == Landed(half=2, op=1, rejected=3)
    assert [(row.queue_id, row.queue_offset, bytes(row.body), row.committed) for row in lake.rows("half")] == [
        (3, 0, b"\x00\xff", None),
        (3, 1, b"\x00\xff", None),
    ]
    assert lake.rows("op", "queue_offset", "state") == [(0, "COMMIT")]
    with pytest.raises(SettingsError, match="half messages and ops need a table each"):
        halves.land(as_outbox=False, half=str(halves.place), op=str(halves.place))


def test_feed_has_inserts_and_the_rest_is_counted(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place, **{"delta.enableChangeDataFeed": "true"})
    outbox.orders(1, 2)
    assert outbox.land() == Landed(half=2)
    outbox.sql("DELETE FROM {} WHERE id = '1'")
    outbox.sql("UPDATE {} SET payload = 'other'")
    outbox.sql(
        "MERGE INTO {} AS t USING (SELECT '2' AS id UNION ALL SELECT '3') AS s ON t.id = s.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, aggregatetype, aggregateid, payload) VALUES ('3', 'orders', 'a', 'body 3')"
    )
    assert outbox.land() == Landed(half=1, ignored=3)
    assert [row[1:] for row in bodies(lake)] == [(f"{n}", f"body {n}") for n in (1, 2, 3)]


@pytest.mark.parametrize("feed", ["false", "true"])
def test_columns_that_change_are_passed(lake: Lakehouse, place: Path, feed: str) -> None:
    """Added, renamed, dropped, of a wider type: what the fields need is read by the names of now."""
    properties = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    properties |= {"delta.enableChangeDataFeed": feed, "delta.enableDeletionVectors": "true"}
    columns = "id STRING, aggregatetype STRING, payload STRING, seq INT, unused INT"
    outbox = Outbox(lake, place, columns, **properties)
    outbox.add("'1', 'orders', 'body 1', 1, 0")
    assert outbox.land(mapping={"order": "seq"}) == Landed(half=1)
    outbox.add("'2', 'orders', 'body 2', 2, 0")
    outbox.sql("ALTER TABLE {} ADD COLUMN more INT")
    outbox.add("'3', 'orders', 'body 3', 3, 0, 1")
    outbox.sql("ALTER TABLE {} DROP COLUMN unused")
    outbox.sql("ALTER TABLE {} ALTER COLUMN seq TYPE BIGINT")
    outbox.sql("ALTER TABLE {} RENAME COLUMN payload TO content")
    outbox.add("'4', 'orders', 'body 4', 30000000000, 1")
    with pytest.raises(SettingsError, match=r"has no column payload, .*; say what it is by --map body=COLUMN"):
        outbox.land(mapping={"order": "seq"})
    assert outbox.land(mapping={"order": "seq", "body": "content"}) == Landed(half=3)
    assert bodies(lake) == [(n, f"{n + 1}", f"body {n + 1}") for n in range(4)]


def _rewritten(outbox: Outbox) -> None:
    outbox.sql("UPDATE {} SET payload = 'other' WHERE id = '4'")


def _vacuumed(outbox: Outbox) -> None:
    outbox.sql("OPTIMIZE {}")
    outbox.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    outbox.sql("VACUUM {} RETAIN 0 HOURS")
    outbox.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


def _forgotten(outbox: Outbox) -> None:
    """The log begins with a checkpoint after the position."""
    outbox.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.checkpointInterval = 1)")
    outbox.orders(7)
    for file in (outbox.place / "_delta_log").glob("*.json"):
        if int(file.stem) < 4:
            file.unlink()


@pytest.mark.parametrize(
    ("change", "told", "left"),
    [
        (_rewritten, "version 3 updated or deleted rows, and only a change data feed says which rows it added", 2),
        (_vacuumed, "VACUUM has removed files of the table before they were read", 2),
        (_forgotten, "the table's log begins after the position", 3),
    ],
)
def test_what_the_stream_cannot_pass_is_told_and_the_fix_helps(
    lake: Lakehouse, place: Path, change: Callable[[Outbox], None], told: str, left: int
) -> None:
    outbox = Outbox(lake, place)
    outbox.orders(1, 2)
    assert outbox.land() == Landed(half=2)
    outbox.orders(3, 4)
    change(outbox)
    with pytest.raises(CheckbackError) as error:
        outbox.land()
    checkpoint = lake.tables.checkpoint(outbox.query)
    assert str(error.value).startswith(f"{place}: {told}")
    assert f"move {checkpoint} away: the table is read anew, and what has landed is known" in str(error.value)
    if change is _rewritten:
        assert "SET TBLPROPERTIES (delta.enableChangeDataFeed = true), then" in str(error.value)
        outbox.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    shutil.move(checkpoint, f"{checkpoint}-moved")
    assert outbox.land() == Landed(half=left, rejected=2)
    assert sorted(row[1] for row in bodies(lake)) == ["1", "2", "3", "4", "7"][: left + 2]
    if change is _rewritten:
        outbox.sql("DELETE FROM {} WHERE id = '3'")
        assert outbox.land() == Landed(ignored=1)


def test_feed_that_begins_late_and_starts_that_the_table_does_not_have(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place)
    outbox.orders(1)
    for given, told in (
        (
            {"version": "9"},
            "the table has no such --starting-version: it has [0, 1]; give one of these, or leave it out",
        ),
        ({"time": "2999-01-01"}, "--starting-timestamp is not one of the table's times: Timestamp 2999"),
        ({"time": "soon"}, "--starting-timestamp is not one of the table's times: The provided timestamp ('soon')"),
        ({"version": "latest"}, "--starting-version: latest is another version at each start; give 1, the newest one"),
        ({"feed": True}, "--changes: " + f"{place} has no change data feed; ALTER TABLE"),
    ):
        with pytest.raises(CheckbackError) as error:
            outbox.land(**given)
        assert told in str(error.value)
    outbox.orders(2)
    assert outbox.land(version="2") == Landed(half=1)
    assert [row[1] for row in bodies(lake)] == ["2"]
    outbox.orders(3)
    outbox.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    with pytest.raises(CheckbackError, match="the change data feed lacks versions after the position; read on without"):
        outbox.land(feed=True)
    assert outbox.land(feed=False) == Landed(half=1)
    outbox.orders(4)
    assert outbox.land() == Landed(half=1)
    outbox.sql("UPDATE {} SET payload = 'other' WHERE id = '4'")
    with pytest.raises(CheckbackError, match=r"updated or deleted rows.*; read it by --changes"):
        outbox.land()
    outbox.orders(5)
    assert outbox.land(feed=True) == Landed(half=1, ignored=1)
    since = lake.spark.sql(f"DESCRIBE HISTORY delta.`{place}`").where("version = 7").first()["timestamp"]  # type: ignore[index]
    shutil.rmtree(lake.tables.checkpoint(outbox.query))
    assert outbox.land(time=f"{since:%Y-%m-%d %H:%M:%S.%f}") == Landed(rejected=1)


def test_table_that_was_made_anew_is_told(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place)
    outbox.orders(1)
    outbox.land()
    before = lake.tables.checkpoint(outbox.query)
    shutil.rmtree(place)
    outbox = Outbox(lake, place)
    outbox.orders(1)
    with pytest.raises(CheckbackError, match=f"the table was made anew: .*; to land them, move {before} away"):
        outbox.land()
    shutil.move(before, f"{before}-moved")
    assert outbox.land() == Landed(half=1)
    # Under another name a table is the same one.
    other = place.with_name("moved")
    shutil.move(place, other)
    assert outbox.land(outbox=str(other)) == Landed()
    # A copy of its files has its id, and so its position.
    shutil.copytree(other, place)
    with pytest.raises(CheckbackError, match=f"is a copy of the table in .*{other}, with its id"):
        outbox.land()
    shutil.rmtree(other)
    assert outbox.land() == Landed()


def test_table_of_a_catalog_that_was_made_anew_elsewhere_is_told(lake: Lakehouse, tmp_path: Path) -> None:
    """As Unity Catalog has managed tables: each in a folder of its own. One that is renamed goes on."""
    schema = "land_anew_test"
    name, renamed = f"{schema}.outbox", f"{schema}.renamed"

    def create(folder: str) -> str:
        lake.spark.sql(f"CREATE TABLE {name} ({OUTBOX}) USING delta LOCATION '{tmp_path / folder}'")
        lake.spark.sql(f"INSERT INTO {name} VALUES ('1', 'orders', 'a', 'b', 'x')")  # noqa: S608 - of this file
        return lake.tables.checkpoint(TableSource.find(lake.spark, name, "--outbox").query)

    def land_it(name: str) -> Landed:
        return land(lake.spark, lake.settings, TableOptions(outbox=name), available_now=True)

    lake.spark.sql(f"CREATE SCHEMA {schema}")
    try:
        before = create("first")
        assert land_it(name) == Landed(half=1)
        lake.spark.sql(f"DROP TABLE {name}")
        create("second")
        for given in (name, "`spark_catalog`.LAND_anew_test.OutBox"):
            with pytest.raises(CheckbackError, match=f"the table was made anew: .*; to land them, move {before} away"):
                land_it(given)
        shutil.move(before, f"{before}-moved")
        assert land_it(name) == Landed(half=1)
        lake.spark.sql(f"ALTER TABLE {name} RENAME TO {renamed}")
        create("third")
        with pytest.raises(CheckbackError, match="If the old one was renamed, land it first"):
            land_it(name)
        assert land_it(renamed) == Landed()
        assert land_it(name) == Landed(half=1)
        lake.spark.sql(f"DROP TABLE {name}")
        lake.spark.sql(f"ALTER TABLE {renamed} RENAME TO {name}")
        assert land_it(name) == Landed()
    finally:
        lake.spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_envelopes_of_debezium(lake: Lakehouse, place: Path) -> None:
    row = "STRUCT<id: STRING, aggregatetype: STRING, aggregateid: STRING, type: STRING, payload: STRING>"
    outbox = Outbox(lake, place, f"op STRING, before {row}, after {row}, ts_ms BIGINT")
    after = (
        "named_struct('id', '{}', 'aggregatetype', 'orders', 'aggregateid', 'a', 'type', 't', 'payload', 'x')".format
    )
    outbox.add(
        f"'c', NULL, {after(1)}, 1",
        f"'r', NULL, {after(2)}, 1",
        f"'u', {after(1)}, {after(1)}, 1",
        f"'d', {after(1)}, NULL, 1",
        f"'insert', NULL, {after(3)}, 1",
        f"NULL, NULL, {after(4)}, 1",
        "'c', NULL, NULL, 1",
        "NULL, NULL, NULL, NULL",
    )
    assert outbox.land() == Landed(half=2, rejected=3, ignored=3)
    assert sorted(row[1] for row in bodies(lake)) == ["1", "2"]
    assert [row[0] for row in lake.rows("rejected", "reason")] == [
        "after: missing",
        "op: 'insert' is none of Debezium's c, r, u, d, t, m",
        "op: missing",
    ]
    text = Outbox(lake, place.with_name("text"), "op STRING, after STRING")
    with pytest.raises(SettingsError, match="is Debezium's envelope, and its column after is string, not a struct"):
        text.land()


def test_tables_of_a_catalog(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only Spark writes them; the outbox has a name there, too. Killed before it commits, and after."""
    schema = "land_table_test"
    lake.spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    storage = {"catalog": "spark_catalog", "schema": schema, "checkpoints": str(tmp_path / "checkpoints")}
    settings = Settings.model_validate({"storage": storage})
    name = f"spark_catalog.{schema}.outbox"

    def land_it() -> Landed:
        return land(lake.spark, settings, TableOptions(outbox=name), available_now=True)

    try:
        lake.spark.sql(f"CREATE TABLE {name} ({OUTBOX}) USING delta")
        insert = f"INSERT INTO {name} VALUES ('{{}}', 'orders', 'a', 'b', 'x')".format  # noqa: S608 - of this file
        for number in (1, 2):
            lake.spark.sql(insert(number))
        assert land_it() == Landed(half=2)
        for number in (3, 2, 4):
            lake.spark.sql(insert(number))
        with monkeypatch.context() as patch:
            killed_before(patch, "half")
            with pytest.raises(CheckbackError):
                land_it()
        assert land_it() == Landed(half=2, rejected=1)
        source = TableSource.find(lake.spark, name, "--outbox")
        last = max((tmp_path / "checkpoints" / source.query / "commits").glob("[0-9]*"))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        land_it()
        half = lake.spark.table(f"spark_catalog.{schema}.half").select("queue_offset", "transaction_id", "queue_id")
        found = sorted(tuple(row) for row in half.collect())
        assert [row[0] for row in found] == [0, 1, 2, 3]
        assert sorted(row[1] for row in found) == ["1", "2", "3", "4"]
        assert {row[2] for row in found} == {source.queue}
        assert lake.spark.table(f"spark_catalog.{schema}.rejected").count() == 1
    finally:
        lake.spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")


def test_table_is_followed_until_a_signal(lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is added meanwhile ends the query, and the next start goes on."""
    outbox = Outbox(lake, place)
    outbox.orders(1)
    take, batches = Landing.__call__, []

    def take_and_add(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        take(landing, batch, batch_id)
        batches.append(batch_id)
        if batch_id == 0:
            outbox.orders(2)
        elif batch_id == 1:
            outbox.sql("ALTER TABLE {} ADD COLUMN more INT")
            outbox.add("'3', 'orders', 'a', 'b', 'x', 1")
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Landing, "__call__", take_and_add)
    follow = partial(land, lake.spark, lake.settings, TableOptions(outbox=str(place)), available_now=False)
    with pytest.raises(CheckbackError, match="run again, and it goes on"):
        follow()
    assert follow() == Landed(half=1)
    assert (batches, [row[1] for row in bodies(lake)]) == ([0, 1, 2], ["1", "2", "3"])
    assert not lake.spark.streams.active


def test_offsets_begin_after_what_was_decided_or_removed(
    lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`half` may have lost rows to a backup or to retention, even while a batch is written: their places are taken."""
    outbox = Outbox(lake, place)
    outbox.orders(1)
    assert outbox.land() == Landed(half=1)
    queue = TableSource.find(lake.spark, str(place), "--outbox").queue
    lake.tables.create(lake.spark, "decisions")
    decided = {"queue_id": queue, "queue_offset": 9}
    lake.tables.append(lake.spark.createDataFrame([decided], schema_of("decisions")), "decisions")
    outbox.orders(2)
    assert outbox.land() == Landed(half=1)
    assert [row[:2] for row in bodies(lake)] == [(0, "1"), (10, "2")]
    write = Landing._write

    def come_late(landing: Landing, *given: Any) -> None:
        monkeypatch.undo()
        lake.tables.open_log("half").commit_after([], {}, versions_of(1, {queue: 20}))
        write(landing, *given)

    monkeypatch.setattr(Landing, "_write", come_late)
    outbox.orders(3)
    assert outbox.land() == Landed(half=1)
    assert bodies(lake)[-1][:2] == (20, "3")


def test_old_rows_of_which_retention_has_removed_the_ids_do_not_land_again(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place)
    outbox.orders(1)
    assert outbox.land() == Landed(half=1)
    queue = TableSource.find(lake.spark, str(place), "--outbox").queue
    lake.tables.open_log("half").commit_after([], {}, versions_of(1, {queue: 20}))
    shutil.rmtree(lake.tables.checkpoint(outbox.query))
    with pytest.raises(CheckbackError, match="retention has removed ids that have landed"):
        outbox.land()
    outbox.orders(2)
    assert outbox.land(version="2") == Landed(half=1)


def test_a_new_snapshot_does_not_land_what_retention_has_forgotten(lake: Lakehouse, place: Path) -> None:
    """Of rows of Debezium's op r those that `half` may have lost the ids of are told; all others are as ever."""
    row = "STRUCT<id: STRING, aggregatetype: STRING, payload: STRING, timestamp: TIMESTAMP>"
    outbox = Outbox(lake, place, f"op STRING, before {row}, after {row}")

    def add(op: str, *rows: tuple[str, str]) -> None:
        named = "named_struct('id', '{}', 'aggregatetype', 'orders', 'payload', 'x', 'timestamp', {})".format
        outbox.add(*(f"'{op}', NULL, {named(*each)}" for each in rows))

    old, young = "TIMESTAMP '2026-01-01 00:00:00Z'", "TIMESTAMP '2026-03-01 00:00:00Z'"
    add("c", ("kept", old))
    add("r", ("first", old))
    assert outbox.land() == Landed(half=2)
    queue, horizon = TableSource.find(lake.spark, str(place), "--outbox").queue, 1_769_904_000_000
    lake.tables.open_log("half").commit_after([], {}, versions_of(horizon, {}))
    add("r", ("second", old))
    assert outbox.land() == Landed(half=1), "retention has removed nothing of this table"
    lake.tables.open_log("half").commit_after([], {}, versions_of(horizon, {queue: 1}))
    add("r", ("kept", old), ("old", old), ("timeless", "CAST(NULL AS TIMESTAMP)"), ("young", young))
    add("c", ("created", old))
    assert outbox.land() == Landed(half=2, rejected=3)
    told = (
        "op: 'r' of a row from before 2026-02-01T00:00:00.000Z, or without a time: whether it has landed is removed"
        " (retention.history); if it has not, append it with op 'c'"
    )
    assert lake.rows("rejected", "reason") == [(told,), (told,), ("repeated transaction_id kept",)]
    add("c", ("old", old))
    assert outbox.land() == Landed(half=1)
    assert sorted(row[1] for row in bodies(lake)) == ["created", "first", "kept", "old", "second", "young"]


def test_first_batch_that_is_done_again_begins_where_it_was_told(
    lake: Lakehouse, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the option is left out then."""
    outbox = Outbox(lake, place)
    outbox.orders(1)
    outbox.orders(2)

    def killed(*_: Any) -> None:
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Landing, "_take", killed)
        with pytest.raises(CheckbackError):
            outbox.land(version="2")
    assert outbox.land() == Landed(half=1)
    assert [row[1] for row in bodies(lake)] == ["2"]


def test_table_that_is_behind_its_position_is_told(lake: Lakehouse, place: Path) -> None:
    outbox = Outbox(lake, place)
    outbox.orders(1)
    copy = place.with_name("copy")
    shutil.copytree(place, copy)
    outbox.orders(2)
    outbox.orders(3)
    assert outbox.land() == Landed(half=3)
    shutil.rmtree(place)
    shutil.move(copy, place)
    lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert not all_landed(lake.tables, [str(place)])
    with pytest.raises(CheckbackError, match="has version 1, and 3 has landed: it was restored"):
        outbox.land()


def test_queue_of_another_is_refused(lake: Lakehouse, place: Path, inbox: Path) -> None:
    outbox = Outbox(lake, place)
    queue = TableSource.find(lake.spark, str(place), "--outbox").queue
    gateway = lake.settings.gateway.model_copy(update={"queues": [queue]})
    with pytest.raises(
        SettingsError, match=f"gateway.queues: the half queue of .* is {queue}, and it is in gateway.queues"
    ):
        outbox.land(lake=replace(lake, settings=lake.settings.model_copy(update={"gateway": gateway})))
    outbox.orders(1)
    assert outbox.land() == Landed(half=1)
    (inbox / "a.jsonl").write_text(half(1, queue_id=queue))
    assert lake.land(half=inbox) == Landed(rejected=1)
    told = f"queue_id: {queue} is of an outbox table, whose messages come by no other door"
    assert lake.rows("rejected", "reason") == [(told,)]
    lake.gateway(queue + 1)
    with pytest.raises(SettingsError, match="is the gateway's already"):
        refuse_foreign(log_of_half(lake.tables), [queue + 1], QueueOwner.TABLE, "--outbox", 7)
    with pytest.raises(SettingsError, match="holds messages of another outbox table"):
        refuse_foreign(log_of_half(lake.tables), [queue], QueueOwner.TABLE, "--outbox", 7)
