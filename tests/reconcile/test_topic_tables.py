"""Topics' tables that cannot be written, in every way: the others go on, and in the end each message is there, once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from grpc import StatusCode
from py4j.protocol import Py4JNetworkError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, UnknownException

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.position import QUEUES, Position
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import FencedError, StateError, StorageError
from checkback.query.frames import Frames
from checkback.query.undelivered_messages import count_unpublished
from checkback.query.versions.view import View
from checkback.reconcile.lost_checkpoint.batch_recovery import Deleted, finish
from checkback.reconcile.lost_checkpoint.interrupted_batch import find
from checkback.reconcile.publish import topic_tables
from checkback.reconcile.publish import unpublished as unpublished_rules
from checkback.reconcile.publish.batch_row import NOT_KNOWN
from checkback.reconcile.publish.publisher import Publisher
from checkback.reconcile.publish.unpublished import LATER
from checkback.reconcile.records.actions import Actions
from checkback.reconcile.records.segment_records import Action
from checkback.settings import Settings
from checkback.storage.failure_scope import own_failure
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, properties_of
from checkback.storage.spark_schemas import TOPIC
from checkback.storage.tables import Tables
from reconcile.messages import action, actions, half, halves
from support.rows import records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

APP = "query"


class Lakehouse:
    """Tables, and a batch at a time; ``publisher`` is the run: a new one starts again."""

    def __init__(self, spark: SparkSession, root: Path, by_files: bool) -> None:
        self.spark = spark
        self.root = root
        self.tables = Tables(root=str(root), by_files=by_files)
        Tables(root=str(root), by_files=True).create(spark, *SCHEMAS)
        self.start()

    def start(self) -> None:
        """The run ends, and another begins."""
        self.publisher = Publisher(Tables(root=self.tables.root, by_files=self.tables.by_files), segment_size=1000)

    def land(self, topics: Mapping[int, str | None]) -> None:
        """Half messages, by offset with their topics."""
        with FileWriter(str(self.root)) as writer:
            writer.write("half", halves(*(half(offset, topic) for offset, topic in topics.items())))  # type: ignore[arg-type]
            Tables(root=str(self.root), by_files=True).commit(self.spark, "half", writer.close())

    def publish(self, batch_id: int, *offsets: int) -> int:
        """A batch that commits these; how many of them are unpublished."""
        batch = actions(*(action(Action.COMMIT, offset) for offset in offsets))
        return self.publisher.publish(self.spark, batch, batch_id, APP).unpublished

    def conclude(self, batch_id: int, *offsets: int) -> int:
        """`publish`, with the batch's row in `batches`."""
        batch = actions(*(action(Action.COMMIT, offset) for offset in offsets))
        written = self.publisher.publish(self.spark, batch, batch_id, APP)
        self.publisher._conclude(self.spark, batch, batch_id, APP, written)
        return written.unpublished

    def consumed(self, topic: str) -> list[tuple[int, int]]:
        """(offset, batch) of the topic's messages that a consumer is given."""
        batches = BatchLog(self.tables)
        batches.refresh()
        reader = TopicReader(self.tables, topic, batches)
        found = reader.read(batches.batches, dict.fromkeys(range(QUEUES), Position()))
        return [(row["half_queue_offset"], row["batch_id"]) for rows in found for row in rows.rows.to_pylist()]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table's rows, in the order of their offsets."""
        if name == "topics/renamed":  # its columns are mapped: only Spark can read it
            found = [row.asDict() for row in self.tables.read(self.spark, name).collect()]
        else:
            found = records_of(self.root, name)
        return sorted(found, key=lambda row: row.get("half_queue_offset", row.get("queue_offset", 0)))

    def published(self, topic: str) -> list[tuple[int, int]]:
        """(offset, batch) of a topic's messages."""
        return [(row["half_queue_offset"], row["batch_id"]) for row in self.rows(f"topics/{topic}")]

    def unpublished(self) -> dict[int, str]:
        """Why, by offset."""
        return {row["half_queue_offset"]: row["reason"] for row in self.rows("unpublished")}

    def sql(self, statement: str, topic: str) -> None:
        """A statement on a topic's table."""
        self.spark.sql(statement.format(f"delta.`{self.root}/topics/{topic}`"))


@pytest.fixture(params=["by files", "by Spark"])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Lakehouse:
    """Both ways to write."""
    return Lakehouse(spark, tmp_path, by_files=request.param == "by files")


def _newest(lake: Lakehouse, topic: str) -> Path:
    return max((lake.root / "topics" / topic / "_delta_log").glob("*.json"))


def _damage(lake: Lakehouse) -> None:
    (lake.root / "topics/damaged/_delta_log/00000000000000000000.crc").unlink(missing_ok=True)
    _newest(lake, "damaged").write_text("{what is this?")


def _too_new(lake: Lakehouse, back: bool = False) -> None:
    """The protocol of its first commit, as if a later Delta had made the table."""
    newest = _newest(lake, "newer")
    for checksum in newest.parent.glob("*.crc"):
        checksum.unlink()
    old, new = '"minReaderVersion":1,"minWriterVersion":2', '"minReaderVersion":9,"minWriterVersion":99'
    newest.write_text(newest.read_text().replace(*((new, old) if back else (old, new))))


def _file(lake: Lakehouse) -> None:
    shutil.rmtree(lake.root / "topics/file")
    (lake.root / "topics/file").write_text("")


def _rename(lake: Lakehouse) -> None:
    lake.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "renamed")
    lake.sql("ALTER TABLE {} RENAME COLUMN half_queue_offset TO place", "renamed")


def _retype(lake: Lakehouse) -> None:
    """As INSERT OVERWRITE with another schema leaves it. A file with whole numbers in it would spoil it for all."""
    shutil.rmtree(lake.root / "topics/typed")
    schema = json.loads(TOPIC.json())
    schema["fields"][1]["type"] = "string"
    DeltaTable.create(
        *(str(lake.root / "topics/typed"), Schema.from_json(json.dumps(schema))),
        configuration=properties_of("topics/typed"),
        raise_if_key_not_exists=False,
    )


def _others(lake: Lakehouse) -> None:
    """A table that somebody has made for something else."""
    shutil.rmtree(lake.root / "topics/others")
    DeltaTable.create(str(lake.root / "topics/others"), Schema([Field("number", PrimitiveType("long"))]))


#: by topic: how its table is broken, what the reason says, and how it is mended
BROKEN: dict[str, tuple[Callable[[Lakehouse], None], str, Callable[[Lakehouse], None]]] = {
    "file": (_file, "", lambda lake: (lake.root / "topics/file").unlink()),
    "renamed": (
        _rename,
        "",
        lambda lake: lake.sql("ALTER TABLE {} RENAME COLUMN place TO half_queue_offset", "renamed"),
    ),
    "checked": (
        lambda lake: lake.sql("ALTER TABLE {} ADD CONSTRAINT few CHECK (tags <> 'tag')", "checked"),
        "few",
        lambda lake: lake.sql("ALTER TABLE {} DROP CONSTRAINT few", "checked"),
    ),
    "damaged": (_damage, "", lambda lake: shutil.rmtree(lake.root / "topics/damaged")),
    "typed": (_retype, "", lambda lake: shutil.rmtree(lake.root / "topics/typed")),
    "others": (_others, "", lambda lake: shutil.rmtree(lake.root / "topics/others")),
    "newer": (_too_new, "", lambda lake: _too_new(lake, back=True)),
}
_OTHERS: dict[str | None, str] = {
    "_delta_log": "no name of a topic",
    "../decisions": "no name of a topic",
    None: "null",
}


_FILES = pytest.param("by files", marks=pytest.mark.spine("a topic that cannot be written"))


@pytest.mark.parametrize("lake", [_FILES, "by Spark"], indirect=True)
def test_tables_that_cannot_be_written_stop_no_other(lake: Lakehouse) -> None:
    """Broken in many ways at once, in a batch that is run again, and in the next; mended, all is published, once."""
    names: list[str | None] = ["good", *BROKEN, *_OTHERS]
    number = len(names)
    for topic in BROKEN:
        Tables(root=str(lake.root), by_files=True).create(lake.spark, f"topics/{topic}")
        BROKEN[topic][0](lake)
    lake.land({offset: names[offset % number] for offset in range(2 * number)})
    for _ in range(2):
        assert lake.publish(1, *range(number)) == number - 1
        assert lake.published("good") == [(0, 1)]
        assert [row["queue_offset"] for row in lake.rows("decisions")] == [*range(number)]
        reasons = lake.unpublished()
        assert sorted(reasons) == [*range(1, number)]
        lake.start()
    for offset, name in enumerate(names[1:], 1):
        says = _OTHERS[name] if name in _OTHERS else BROKEN[name or ""][1]
        print(name, reasons[offset])
        assert says in reasons[offset], (name, reasons[offset])
        assert reasons[offset], name
        assert reasons[offset].isprintable(), name
        assert "tx-" not in reasons[offset], name
    if lake.tables.by_files:
        of = dict(zip(names, map(reasons.get, range(number)), strict=True))
        lacks = "it has no column half_queue_id, half_queue_offset, queue_id and 11 more"
        assert of["others"] == f"topics/others is another table, {lacks}; move it away"
        retyped = 'its column half_queue_offset is "string", not "long"'
        assert of["typed"] == f"topics/typed is another table, {retyped}; move it away"
    assert lake.publish(2, *range(number, 2 * number)) == number - 1
    assert lake.published("good") == [(0, 1), (number, 2)]
    assert sorted(lake.unpublished()) == [*range(1, number), *range(number + 1, 2 * number)]
    for _, _, mend in BROKEN.values():
        mend(lake)
    lake.start()
    for batch_id in (3, 3, 4):
        assert lake.publish(batch_id) == 0
        for offset, topic in enumerate(BROKEN, 1):
            assert lake.published(topic) == [(offset, 3), (offset + number, 3)], topic
    assert not (lake.root / "topics/_delta_log").exists()
    assert sorted(path.name for path in (lake.root / "topics").iterdir()) == sorted(["good", *BROKEN])
    lake.land({2 * number: "renamed"})
    assert lake.publish(5, 2 * number) == 0
    assert lake.published("renamed")[-1] == (2 * number, 5)


def test_flood_of_new_topics_holds_nobody_up(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch makes so many tables and no more; topics that have one go on, the others follow batch by batch."""
    monkeypatch.setattr(topic_tables, "NEW_TABLES", 2)
    monkeypatch.setattr(unpublished_rules, "FIRST_TRIES", 1)
    lake.land(dict(enumerate("zabcdz")))
    assert lake.publish(0, 0) == 0
    assert lake.publish(1, *range(1, 6)) == 2
    assert lake.published("z") == [(0, 0), (5, 1)]
    assert lake.unpublished() == dict.fromkeys((3, 4), LATER)
    lake.start()  # what is known of the tables is lost
    for batch in (2, 3):
        assert lake.publish(batch) == 0
    assert [lake.published(topic) for topic in "abcd"] == [[(1, 1)], [(2, 1)], [(3, 2)], [(4, 3)]]


def test_what_was_published_late_stays_with_the_table_that_is_moved_away(lake: Lakehouse) -> None:
    """It is not published to the new one: not by the same run, nor by the next; what waits again is."""
    lake.land(dict.fromkeys(range(6), "t"))
    place = lake.root / "topics/t"
    place.parent.mkdir()

    def waits(batch_id: int) -> None:
        place.write_text("in the way")
        lake.start()
        assert lake.conclude(batch_id, batch_id) == 1
        place.unlink()

    def published(batch_id: int, *offsets: int) -> list[int]:
        lake.conclude(batch_id, *offsets)
        return [offset for offset, _ in lake.published("t")]

    waits(0)
    lake.start()
    assert published(1, 1) == [0, 1]
    place.rename(lake.root / "_old")
    lake.start()
    assert published(2, 2) == [2]
    shutil.rmtree(place)
    waits(3)
    lake.start()
    assert published(4, 4) == [3, 4]
    shutil.rmtree(place)
    for writer in ("auto", "spark"):  # the notes hold also when another one writes from now on
        settings = Settings.model_validate({"storage": {"root": str(lake.root), "writer": writer}})
        assert Frames(settings, lake.spark).unpublished().collect() == []


class Killed(BaseException):
    """What kill -9 does: no code may take it for an error of a table."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the application die before or after the commit of a table, or no more."""
    commit = Tables.commit

    def die(table: str = "", after: bool = False) -> None:
        def killed(self: Tables, spark: SparkSession, name: str, *more: Any) -> None:
            if name == table and not after:
                raise Killed
            commit(self, spark, name, *more)
            if name == table:
                raise Killed

        monkeypatch.setattr(Tables, "commit", killed)

    return die


def test_application_dies_between_any_two_steps(
    spark: SparkSession, tmp_path: Path, dying: Callable[..., None]
) -> None:
    """And the topic's table is mended, or broken, before the batch is run again: each message is published once."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    place, aside = tmp_path / "topics/bad", tmp_path / "aside"
    lake.land({offset: ("good", "bad")[offset % 2] for offset in range(14)})

    def broken() -> None:
        place.rename(aside) if place.exists() else None
        place.parent.mkdir(exist_ok=True)
        place.write_text("in the way")

    def mended() -> None:
        place.unlink()
        aside.rename(place) if aside.exists() else None

    def dies(batch_id: int, table: str, *, after: bool) -> None:
        dying(table, after)
        with pytest.raises(Killed):
            lake.publish(batch_id, 2 * batch_id, 2 * batch_id + 1)
        dying()
        lake.start()

    def runs(batch_id: int) -> int:
        return lake.publish(batch_id, 2 * batch_id, 2 * batch_id + 1)

    # It cannot be published; before that is written down, it can.
    broken()
    dies(0, "unpublished", after=False)
    mended()
    assert runs(0) == 0
    assert (lake.published("bad"), lake.unpublished()) == ([(1, 0)], {})
    # Written down: it is published late, by the same batch.
    broken()
    dies(1, "unpublished", after=True)
    mended()
    assert runs(1) == 1  # as the first try has written down
    assert lake.published("bad")[1:] == [(3, 1)]
    # Late, and its own: the second is left out by the replay, and not the first.
    broken()
    assert runs(2) == 1
    mended()
    lake.start()
    dies(3, "topics/bad", after=False)
    dies(3, "topics/bad", after=True)
    assert lake.published("bad")[2:] == [(5, 3)]
    dies(3, "decisions", after=False)
    assert runs(3) == 0
    assert lake.published("bad")[2:] == [(5, 3), (7, 3)]
    # Published, and then the table is gone: what is put into `unpublished` is known to be there when it is back.
    dies(4, "topics/bad", after=True)
    broken()
    assert runs(4) == 1
    assert runs(5) == 1
    mended()
    lake.start()
    assert runs(6) == 0
    assert lake.published("bad")[4:] == [(9, 4), (11, 6), (13, 6)]
    assert sorted(lake.unpublished()) == [3, 5, 9, 11]
    assert [row["queue_offset"] for row in lake.rows("decisions")] == [*range(14)]
    assert [offset for offset, _ in lake.published("good")] == [*range(0, 14, 2)]


def test_consumers_get_what_a_batch_published_before_it_was_interrupted(spark: SparkSession, tmp_path: Path) -> None:
    """Late or at once, though the table breaks again before the batch is done: nothing of it is passed over."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    place, aside = tmp_path / "topics/t", tmp_path / "aside"
    lake.land(dict.fromkeys(range(6), "t"))
    place.parent.mkdir()
    place.write_text("in the way")
    lake.conclude(0, 0)
    place.unlink()
    lake.start()
    lake.publish(1, 1)  # and it dies
    assert lake.published("t") == [(0, 1), (1, 1)]
    place.rename(aside)
    place.write_text("in the way")
    lake.start()
    lake.conclude(1, 1)
    lake.conclude(2, 2)
    with pytest.raises(StorageError, match="restore"):
        lake.consumed("t")
    place.unlink()
    with pytest.raises(StorageError, match="consumers wait"):
        lake.consumed("t")
    aside.rename(place)
    lake.start()
    lake.conclude(3, 3)
    lake.conclude(4, 4)
    assert lake.consumed("t") == [(0, 1), (1, 1), (2, 3), (3, 3), (4, 4)]
    named = {row["batch_id"]: dict(row["table_versions"]).get("topics/t") for row in lake.rows("batches")}
    assert (named[0], named[1], named[2]) == (NOT_KNOWN, NOT_KNOWN, None)
    assert {None, NOT_KNOWN}.isdisjoint((named[3], named[4]))


def test_consumers_get_what_was_committed_and_reported_as_failed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store does that breaks down between a request and its answer."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    lake.land(dict.fromkeys(range(4), "t"))
    lake.conclude(0, 0)
    commit = Tables.commit

    def lies(self: Tables, spark: SparkSession, name: str, *more: Any) -> None:
        commit(self, spark, name, *more)
        if name == "topics/t":
            raise StorageError("the commit failed: no answer came", name)

    monkeypatch.setattr(Tables, "commit", lies)
    lake.conclude(1, 1)
    monkeypatch.undo()
    assert lake.unpublished().keys() == {1}
    lake.start()
    lake.conclude(2, 2)
    assert lake.consumed("t") == [(0, 0), (1, 1), (2, 2)]


def test_rebuild_goes_on_beside_tables_that_cannot_be_made_or_read(spark: SparkSession, tmp_path: Path) -> None:
    """What a batch has left half done of them waits; run again it adds nothing, and the next run publishes it once."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    names = ("new", "file", "damaged", "_delta_log")
    lake.land({offset: names[offset % 4] for offset in range(8)})
    lake.publish(1, *range(4))
    _damage(lake)
    shutil.rmtree(tmp_path / "topics/file")
    (tmp_path / "topics/file").write_text("")
    # The messages that are decided by now, and no more.
    lake.publish(2, *range(4, 8))
    DeltaTable(str(tmp_path / "unpublished")).delete("batch_id = 2")
    DeltaTable(str(tmp_path / "topics/new")).delete("batch_id = 2")
    added = finish(spark, lake.tables, find(spark, lake.tables), Deleted.PUBLISH_AGAIN)
    # Of `damaged` only what was decided last can be half done, and nobody knows what is.
    assert added == {"topics/new": 1, "unpublished": 4}
    assert finish(spark, lake.tables, find(spark, lake.tables), Deleted.PUBLISH_AGAIN) == {}
    assert [offset for offset, _ in lake.published("new")] == [0, 4]
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    waiting = count_unpublished(View.of(spark, settings))
    assert {one.topic: one.messages for one in waiting} == {"file": 2, "damaged": 1, "_delta_log": 2}
    assert all(one.reason for one in waiting)
    (tmp_path / "topics/file").unlink()
    shutil.rmtree(tmp_path / "topics/damaged")
    lake.start()
    assert lake.publish(3) == 0
    assert [offset for offset, _ in lake.published("file")] == [1, 5]
    assert [offset for offset, _ in lake.published("damaged")] == [6]
    assert sorted(lake.unpublished()) == [1, 3, 5, 6, 7]
    assert [row["queue_offset"] for row in Frames(settings, spark).unpublished().collect()] == [3, 7]
    events = [row["event"] for row in Frames(settings, spark).lineage("tx-5").collect()]
    assert sorted(events) == ["DECISION", "HALF", "PUBLISHED", "UNPUBLISHED"]


def test_rebuild_publishes_again_what_was_published_late_and_deleted(lake: Lakehouse) -> None:
    """Their rows of `unpublished` are noted as published: nobody else will. What waits is left where it is."""
    lake.land({**dict.fromkeys(range(4), "t"), 4: "file"})
    place = lake.root / "topics/t"
    place.parent.mkdir()
    place.write_text("in the way")
    (lake.root / "topics/file").write_text("in the way")
    assert lake.conclude(0, 0, 1) == 2
    place.unlink()
    lake.start()
    lake.conclude(1, 2, 3, 4)
    assert lake.published("t") == [(0, 1), (1, 1), (2, 1), (3, 1)]
    DeltaTable(str(place)).delete("half_queue_offset IN (1, 2)")
    with pytest.raises(StateError, match="topics/t lacks 2"):
        finish(lake.spark, lake.tables, find(lake.spark, lake.tables))
    assert finish(lake.spark, lake.tables, None, Deleted.PUBLISH_AGAIN) == {"topics/t": 2}
    assert finish(lake.spark, lake.tables, None) == {}
    # Each is of the batch that decided it.
    assert lake.published("t") == [(0, 1), (1, 0), (2, 1), (3, 1)]
    lake.start()
    lake.conclude(2)
    assert len(lake.published("t")) == 4


@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_rebuild_refuses_what_only_a_table_that_cannot_be_read_has_published(
    spark: SparkSession, tmp_path: Path, dying: Callable[..., None], first: bool
) -> None:
    """The batch that was interrupted has committed to it, and no decision: its ops would be applied once more."""
    lake = Lakehouse(spark, tmp_path, by_files=True)
    lake.land(dict.fromkeys(range(4), "pay"))
    if not first:
        lake.conclude(0, 0, 1)
        lake.start()
    dying("decisions", False)
    with pytest.raises(Killed):
        lake.publish(int(not first), 2, 3)
    dying()
    lake.start()
    file = Path(DeltaTable(str(tmp_path / "topics/pay")).file_uris()[-1].removeprefix("file://"))
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(StateError, match=r"topics/pay: cannot be read.*put its files back"):
        finish(spark, lake.tables, find(spark, lake.tables))
    file.write_bytes(content)
    assert finish(spark, lake.tables, find(spark, lake.tables)) == {"decisions": 2}
    assert finish(spark, lake.tables, find(spark, lake.tables)) == {}
    assert [offset for offset, _ in lake.published("pay")] == ([2, 3] if first else [0, 1, 2, 3])


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(24, "Too many open files"),
        StorageError("the commit failed: Generic LocalFileSystem error: No space left on device (os error 28)", "/x"),
        MemoryError(),
        FencedError("another process writes the same batches", "/x"),
        ConnectionRefusedError(),
        Py4JNetworkError(),
        SparkConnectGrpcException("failed to connect", grpc_status_code=StatusCode.UNAVAILABLE),
        UnknownException(
            "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid.", reason="org.apache.spark.SparkSQLException"
        ),
        KeyboardInterrupt(),
        RuntimeError("SparkContext was shut down"),
    ],
)
def test_error_of_the_machine_is_no_tables_own(error: BaseException) -> None:
    """The batch fails, and is run again: nothing is put aside that would have been published a minute later."""
    with pytest.raises(type(error)):
        own_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        StorageError("the table cannot be created: Not a directory (os error 20)", "/topics/No-space-left-on-device"),
        FileExistsError(17, "File exists"),
        PermissionError(13, "Permission denied"),
        StorageError("its log cannot be read", "/topics/java_lang_OutOfMemoryError"),
        RuntimeError("CHECK constraint few violated by row with values:\n - tags : No space left on device"),
        RuntimeError(
            "CHECK constraint few violated by row with values:\n - tags : Traceback (most recent call last):\nErrno 28"
        ),
    ],
)
def test_error_of_a_table_is_its_reason(error: BaseException) -> None:
    """In one line, whatever a message or a topic's name says."""
    assert "values:" not in own_failure(error) or own_failure(error).endswith("values:")
    assert own_failure(error).isprintable()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "[CAST_INVALID_INPUT] The value 'ann's' of the type STRING cannot be cast to INT",
            "[CAST_INVALID_INPUT] The value ... of the type STRING cannot be cast to INT",
        ),
        ("The value 'ann\n17' of the type", "The value ..."),
        ("Text 'ann' could not be parsed at index 0", "Text ... could not be parsed at index 0"),
    ],
)
def test_reason_quotes_no_value_of_a_message(line: str, shown: str) -> None:
    """It is in the rows of all messages that wait with this one, and is shown to everybody."""
    assert own_failure(RuntimeError(line)) == shown


def test_table_moved_away_in_the_middle_of_a_batch(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files went along: the new table does not name them, and the message waits, and is published."""
    lake.land({0: "a", 1: "a"})
    assert lake.conclude(0, 0) == 0
    put_off = topic_tables.TopicTables.put_off

    def moved(*args: Any) -> dict[str, str]:
        shutil.move(lake.root / "topics/a", lake.root / "away")
        return put_off(*args)

    with monkeypatch.context() as patch:
        patch.setattr(topic_tables.TopicTables, "put_off", moved)
        waiting = lake.conclude(1, 1)
    monkeypatch.setattr("checkback.reconcile.publish.publisher._now", lambda: 2 * 10**12)
    if waiting:
        assert "the table was moved away" in lake.unpublished()[1]
        lake.publish(2)
    assert [offset for offset, _ in lake.published("a")] == [1]


@pytest.mark.parametrize("commits", [1, 4])
def test_table_made_anew_in_the_middle_of_a_batch(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """As a reload does, with fewer versions than the one before or more: none of them names a file that is gone."""
    lake.land({0: "a", 1: "a", 2: "a"})
    for offset in range(2):
        assert lake.conclude(offset, offset) == 0
    put_off, place = topic_tables.TopicTables.put_off, lake.root / "topics/a"

    def reloaded(*args: Any) -> dict[str, str]:
        rows = DeltaTable(str(place)).to_pyarrow_table()
        shutil.rmtree(place)
        DeltaLog.create("topics/a", str(place))
        for number in range(commits):
            write_deltalake(str(place), rows if number == 0 else rows.slice(0, 0), mode="append")
        return put_off(*args)

    with monkeypatch.context() as patch:
        patch.setattr(topic_tables.TopicTables, "put_off", reloaded)
        lake.conclude(2, 2)
    monkeypatch.setattr("checkback.reconcile.publish.publisher._now", lambda: 2 * 10**12)
    lake.publish(3)
    assert [offset for offset, _ in lake.published("a")] == [0, 1, 2]


def test_constraint_added_between_two_batches_holds_from_the_next_one_on(lake: Lakehouse) -> None:
    """Files of their own would break it: they are appended to no table that was altered since the last batch."""
    lake.land({0: "a", 1: "a"})
    assert lake.conclude(0, 0) == 0
    lake.sql("ALTER TABLE {} ADD CONSTRAINT few CHECK (half_queue_offset < 1)", "a")
    assert lake.conclude(1, 1) == 1
    assert lake.published("a") == [(0, 0)]
    assert "few" in lake.unpublished()[1]


@pytest.mark.parametrize("batches", [1, 2])
def test_topic_that_is_newer_than_the_rest_is_refused(spark: SparkSession, tmp_path: Path, batches: int) -> None:
    """All but the topics were put back: it has batches of the query that the checkpoint does not know of."""
    lake = Lakehouse(spark, tmp_path / "lake", by_files=True)
    lake.land(dict.fromkeys(range(5), "a"))
    lake.conclude(0, 0)
    shutil.copytree(lake.root, tmp_path / "copy")
    for batch_id in range(1, batches + 1):
        lake.conclude(batch_id, batch_id)
    shutil.rmtree(tmp_path / "copy/topics")
    shutil.copytree(lake.root / "topics", tmp_path / "copy/topics")
    shutil.rmtree(lake.root)
    shutil.copytree(tmp_path / "copy", lake.root)
    lake.tables.forget("half")
    lake.start()
    batch = actions(action(Action.COMMIT, 3))
    with pytest.raises(StateError, match="the table is newer than the checkpoint"):
        lake.publisher.publish(spark, Actions(batch.records, batch.batch_time + 1), 1, APP)
