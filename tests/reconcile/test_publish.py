"""Publishing on real tables: by files and by Spark, the same rows; a missing message stops it."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable

from checkback.errors import StorageError
from checkback.reconcile.publish import batch_writers, half_reader
from checkback.reconcile.publish.event_columns import identity_columns
from checkback.reconcile.publish.half_lookup import HalfLookup
from checkback.reconcile.publish.publisher import Publisher
from checkback.reconcile.records.segment_records import Action, Reason, Source
from checkback.storage.files.fsync import UnflushedError
from checkback.storage.log.snapshot_files import DataFile
from checkback.storage.parquet import parquet_files
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from reconcile.frames import half_frame
from reconcile.messages import BATCH_ID, BATCH_MS, T0, T0_US, T1, action, actions, half, halves
from support.rows import count_of, records_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "query"
OUTPUTS = ("topics/a", "topics/b", "decisions", "deliveries", "discarded", "check_requests")
_DUE_MS = BATCH_MS + 60_000


class Lakehouse:
    """Tables with some half messages, and a batch at a time."""

    def __init__(self, spark: SparkSession, root: Path, by_files: bool) -> None:
        self.spark = spark
        self.tables = Tables(root=str(root), by_files=by_files)
        self.files = Tables(root=str(root), by_files=True)
        self.files.create(spark, *SCHEMAS)

    def land(self, *rows: dict[str, Any]) -> None:
        """Append half messages."""
        with FileWriter(self.files.root) as writer:
            writer.write("half", halves(*rows))
            self.files.commit(self.spark, "half", writer.close())

    def publish(self, *rows: tuple[Any, ...]) -> None:
        """A batch of actions."""
        Publisher(self.tables, segment_size=16).publish(self.spark, actions(*rows), BATCH_ID, APP)

    def offsets(self, name: str) -> list[int]:
        """Queue offsets in a table."""
        column = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
        return sorted(offset for (offset,) in rows_of(self.files.root, name, column))


@pytest.fixture(params=["by files", "by Spark"])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lakehouse:
    """Both ways to write."""
    return Lakehouse(spark, tmp_path, by_files=request.param == "by files")


_BATCH = (
    action(Action.COMMIT, 1, detail=Source.CHECK),
    action(Action.COMMIT, 2),
    action(Action.ROLLBACK, 3),
    action(Action.DISCARD, 4, detail=Reason.CHECK_MAX),
    action(Action.CHECK, 5),
)
_DELAYED = (
    action(Action.SCHEDULE, 6, detail=Source.PRODUCER, due=_DUE_MS),
    action(Action.DELIVER, 0, due=BATCH_MS - 5),
    action(Action.CANCEL, 7, detail=Source.OPERATOR, due=_DUE_MS),
)


def _messages() -> list[dict[str, Any]]:
    return [half(offset, "ab"[offset % 2]) for offset in range(8)]


@pytest.mark.spine("publishing by either writer")
def test_batch_is_published_once(lake: Lakehouse) -> None:
    """Each action in its table; the batch that comes again changes nothing."""
    lake.land(*_messages()[:3])
    lake.land(*_messages()[3:])
    for _ in range(2):
        lake.publish(*_BATCH, *_DELAYED)
        found = {name: lake.offsets(name) for name in OUTPUTS}
        assert found == {
            "topics/a": [0, 2],
            "topics/b": [1],
            "decisions": [1, 2, 3, 4, 6, 7],
            "deliveries": [0],
            "discarded": [4, 7],
            "check_requests": [5],
        }
    names = "queue_offset", "state", "source", "reason", "deliver_at"
    decided = {row[0]: row[1:] for row in rows_of(lake.files.root, "decisions", *names)}
    due = datetime.fromtimestamp(_DUE_MS / 1000, timezone.utc)
    assert decided[6] == ("COMMIT", "producer", None, due)
    assert decided[7] == ("CANCEL", "operator", None, None)
    assert decided[2][-1] is None
    assert dict(rows_of(lake.files.root, "discarded", "queue_offset", "reason")) == {4: "CHECK_MAX", 7: "CANCELLED"}
    assert dict(rows_of(lake.files.root, "discarded", "queue_offset", "body"))[7] == bytes([7])
    (delivery,) = rows_of(lake.files.root, "deliveries", "transaction_id", "deliver_at", "delivered_at", "batch_id")
    assert delivery == ("tx-0", T1 - timedelta(milliseconds=5), T1, BATCH_ID)


def test_all_ways_write_the_same_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Column by column: files, Spark with the rows that the driver or a job brings, Spark that reads each table's."""
    found, ways = [], (("files", True, 1), ("driver", False, 8 << 20), ("job", False, 8 << 20), ("read", False, 1))
    for way, by_files, brought in ways:
        monkeypatch.setattr(batch_writers, "_SMALL", brought)
        lake = Lakehouse(spark, tmp_path / way, by_files)
        lake.land(*_messages())
        if way == "job":
            half = lake.tables.in_sql("half")
            spark.sql(f"ALTER TABLE {half} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
        lake.publish(*_BATCH, *_DELAYED)
        found.append(lake)
    for name in OUTPUTS:
        one, *others = (lake.files.read(spark, name).orderBy("transaction_id") for lake in found)
        for other in others:
            assert_df_equality(one, other)


def test_topic_that_cannot_be_written_after_the_survey_is_unpublished(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark, whose survey has brought its rows for the topic, and others for `unpublished`: both are unpublished."""
    lake = Lakehouse(spark, tmp_path, by_files=False)
    lake.land(*_messages(), half(8, "no\nname"))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/topics/b` (other INT) USING delta")
    lake.publish(*_BATCH, action(Action.COMMIT, 8))
    assert lake.offsets("topics/a") == [2]
    rows = rows_of(tmp_path, "unpublished", "half_queue_offset", "real_topic", "body")
    assert sorted(rows) == [(1, "b", b"\x01"), (8, "no\nname", b"\x08")]


@pytest.mark.parametrize("kind", ["decided", "rejected", "empty"])
def test_batch_commits_nothing_before_its_inputs_are_flushed(lake: Lakehouse, kind: str) -> None:
    """A power cut could take away the state or the offsets of a batch that is in a table."""
    lake.land(*_messages())
    found = lake.tables.read(lake.spark, "half").where("queue_offset = 6").select(*identity_columns()).first()
    group, transaction = found or (0, 0)
    rejected = action(Action.REJECT_HALF, 6, group=group, transaction=transaction)
    batch = {"decided": _BATCH, "rejected": (rejected,), "empty": ()}[kind]
    lake.publish(action(Action.COMMIT, 0))  # the checkpoint owns the tables now
    publisher = Publisher(lake.tables, segment_size=16)

    def no_disk() -> None:
        raise UnflushedError("cannot be flushed to the disk")

    publisher._durable = no_disk
    before = _commits(lake)

    def run() -> None:
        written = publisher.publish(lake.spark, actions(*batch), BATCH_ID + 1, APP)
        publisher._conclude(lake.spark, actions(*batch), BATCH_ID + 1, APP, written)

    with pytest.raises(UnflushedError):
        run()
    assert _commits(lake) == before


def _commits(lake: Lakehouse) -> set[str]:
    return {str(commit) for commit in Path(lake.files.root).rglob("_delta_log/*.json")}


def test_message_that_is_gone_stops_the_batch(lake: Lakehouse) -> None:
    """Nothing of the batch is written: a decision without its message would be a lost message."""
    lake.land(*_messages()[:2])
    with pytest.raises(StorageError, match="of 5 half messages that a batch acts on, 4 are not there"):
        lake.publish(*_BATCH)
    assert lake.offsets("decisions") == []
    assert not Path(lake.files.location("topics/b"), "_delta_log").exists()


def test_message_beside_one_that_no_batch_has_read_is_published_once(lake: Lakehouse) -> None:
    """Same offset, same microsecond: the segment that acts on the one does not know the other. Its identity tells."""
    lake.land(half(1, "a"), half(2, "b"))
    rows = lake.tables.read(lake.spark, "half").where("queue_offset = 1").select(*identity_columns())
    group, transaction = rows.first() or (0, 0)
    lake.land(half(1, "b") | {"transaction_id": "other"}, half(1, "a"))
    with pytest.raises(StorageError, match="of 1 half messages that a batch acts on, 1 are not there"):
        lake.publish(action(Action.COMMIT, 1))
    for _ in range(2):
        lake.publish(action(Action.COMMIT, 1, group=group, transaction=transaction))
    assert lake.offsets("decisions") == lake.offsets("topics/a") == [1]
    assert not Path(lake.files.location("topics/b"), "_delta_log").exists()


def test_rows_that_cannot_be_told_apart_are_published_once(lake: Lakehouse) -> None:
    """Same offset, same microsecond, same identity: one of them."""
    lake.land(half(1, "a"), half(1, "b"))
    hashes = lake.tables.read(lake.spark, "half").select(*identity_columns()).first()
    assert hashes is not None
    lake.publish(action(Action.COMMIT, 1, repeated=1, group=hashes[0], transaction=hashes[1]))
    assert lake.offsets("decisions") == [1]
    assert len([name for name in ("topics/a", "topics/b") if Path(lake.files.location(name)).exists()]) == 1


def test_few_of_many_are_found(lake: Lakehouse) -> None:
    """Some rows of a large range, in files of several queues."""
    lake.land(*(half(offset, "a", queue=queue) for queue in (0, 1) for offset in range(100)))
    lake.publish(action(Action.COMMIT, 0), action(Action.COMMIT, 99), action(Action.COMMIT, 50, queue=1))
    assert lake.offsets("topics/a") == [0, 50, 99]


def test_batch_of_thousands_of_queues_is_published(lake: Lakehouse) -> None:
    """What skips files stays small: Spark plans a predicate of a term for each queue until its stack ends."""
    queues = range(100_000, 103_000)
    lake.land(*(half(0, queue=queue) for queue in queues))
    same = {
        "queue_offset": 0,
        "producer_group": "other",
        "state": "COMMIT",
        "source": "producer",
        "store_timestamp": T0,
    }
    ops = pa.Table.from_pylist([same | {"queue_id": queue} for queue in queues], schema=arrow_schema("op"))
    lake.files.append_arrow(lake.spark, ops, "op")
    group, transaction = lake.tables.read(lake.spark, "op").select(*identity_columns()).first() or (0, 0)
    refused = {"detail": Reason.WRONG_GROUP, "group": group, "transaction": transaction}
    lake.publish(
        *(action(Action.CHECK, 0, queue=queue) for queue in queues),
        *(action(Action.REJECT_OP, 0, queue=queue, **refused) for queue in queues),
    )
    for name in ("check_requests", "rejected"):
        assert count_of(lake.files.root, name) == len(queues)


def test_table_that_somebody_clustered_is_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """delta-rs must not append to it; the rows arrive all the same, once."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    lake.land(*_messages())
    lake.files.create(spark, "topics/b")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/topics/b` CLUSTER BY (half_queue_offset)")
    for _ in range(2):
        lake.publish(*_BATCH)
    assert lake.offsets("topics/b") == [1]
    assert lake.offsets("decisions") == [1, 2, 3, 4]


def test_half_rewritten_by_spark_is_still_read(spark: SparkSession, tmp_path: Path) -> None:
    """OPTIMIZE writes the files anew, with Spark's kind of timestamps."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    for message in _messages():
        lake.land(message)
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/half`")
    assert len(DeltaTable(f"{tmp_path}/half").file_uris()) == 1
    lake.publish(*_BATCH)
    (row,) = records_of(tmp_path, "topics/b")
    assert (row["half_store_timestamp"].timestamp() * 1_000_000, row["body"]) == (T0_US, b"\x01")
    assert row["published_at"].timestamp() == T1.timestamp()
    assert row["properties"] == {"k": "v"}


def test_bodies_are_read_only_where_they_are_written(tmp_path: Path) -> None:
    """A batch of checks leaves them in the file."""
    with FileWriter(str(tmp_path)) as writer:
        writer.write("half", halves(half(1)))
        (file,) = writer.close()
    piece = half_reader.RowGroups(f"{tmp_path}/half/{file.path}", file.size)
    wanted = HalfLookup.of(actions(action(Action.CHECK, 1)), BATCH_ID)
    for with_body, bodies in ((True, [b"\x01"]), (False, [None])):
        found = [
            row["body"] for batch in half_reader.read(piece, piece.path, wanted, with_body) for row in batch.to_pylist()
        ]
        assert found == bodies
    nothing = HalfLookup.of(actions(action(Action.CHECK, 2)), BATCH_ID)
    assert not list(half_reader.read(piece, piece.path, nothing, with_body=True))


def test_large_bodies_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    """However well they compress: 12 of 4 MiB are 2 MiB of file, and 48 MiB of memory."""
    body = bytes(4 << 20)
    with FileWriter(str(tmp_path)) as writer:
        writer.write("half", halves(*(half(offset) | {"body": body} for offset in range(12))))
        (file,) = writer.close()
    wanted = HalfLookup.of(actions(*(action(Action.COMMIT, offset) for offset in range(12))), BATCH_ID)
    piece = half_reader.RowGroups(f"{tmp_path}/half/{file.path}", file.size)
    assert file.size < 4 << 20
    assert [batch.num_rows for batch in half_reader.read(piece, piece.path, wanted, with_body=True)] == [7, 5]


def test_large_batch_is_spread_over_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece in one list, a large file by its row groups; one task for few rows."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    for first in range(0, 40, 10):
        lake.land(*(half(offset) for offset in range(first, first + 10)))
    files = lake.files.log("half").data_files()
    wanted = HalfLookup.of(actions(*(action(Action.COMMIT, offset) for offset in range(5, 25))), BATCH_ID)
    assert [len(some) for some in half_reader.pieces(files, wanted)] == [3]
    monkeypatch.setattr(half_reader, "ROWS_A_TASK", 5)
    assert sorted(len(some) for some in half_reader.pieces(files, wanted)) == [1, 1, 1]
    monkeypatch.setattr(half_reader, "_LARGE", 0)
    assert all(piece.row_groups == (0,) for some in half_reader.pieces(files, wanted) for piece in some)


def test_few_rows_of_large_files_are_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduled messages come due all over `half`: only their row groups are read, and a batch's tasks are few."""
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 10)
    with FileWriter(str(tmp_path)) as writer:
        writer.write("half", halves(*(half(offset) | {"delay_ms": 9} for offset in range(100))))
        (file,) = writer.close()
    path = f"{tmp_path}/half/{file.path}"
    assert pq.read_metadata(path).num_row_groups == 10
    spans = {"queue_id": (0, 0), "queue_offset": (0, 99)}
    wanted = HalfLookup.of(actions(*(action(Action.DELIVER, offset) for offset in (5, 42, 43))), BATCH_ID)
    ((piece,),) = half_reader.pieces([DataFile(path, file.size, spans, 100)], wanted)
    assert piece.size == math.ceil((0.03 + 0.27 / 3) * file.size)
    ((piece,),) = half_reader.pieces([DataFile(path, file.size, spans)], wanted)
    assert piece.size == file.size
    rows = [row["queue_offset"] for batch in half_reader.read(piece, path, wanted, True) for row in batch.to_pylist()]
    assert rows == [*range(10), *range(40, 50)]
    monkeypatch.setattr(half_reader, "_LARGE", 0)
    ((piece,),) = half_reader.pieces([DataFile(path, file.size, spans, 100)], wanted)
    assert piece.row_groups == (0, 4)
    monkeypatch.setattr(half_reader, "_BYTES_A_TASK", 1)
    both = half_reader.pieces([DataFile(path, file.size, spans, 100)], wanted)
    assert sorted(piece.row_groups or () for some in both for piece in some) == [(0,), (4,)]


def test_rows_without_statistics_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """A table that others made need not have any."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/half` SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/half` UNSET TBLPROPERTIES ('delta.dataSkippingStatsColumns')")
    rows = half_frame(spark, *_messages())
    rows.write.format("delta").mode("append").save(f"{tmp_path}/half")
    assert all(not file.spans for file in lake.files.log("half").data_files())
    lake.publish(*_BATCH)
    assert lake.offsets("decisions") == [1, 2, 3, 4]
