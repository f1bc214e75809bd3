"""Topics' tables that cannot be written, in every way: the others go on, and in the end each message is there, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.files import FileWriter
from checkback.reconcile.publish import Publisher
from checkback.reconcile.segment import Action
from checkback.schemas import SCHEMAS
from checkback.tables import Tables
from reconcile.messages import action, actions, half, halves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

APP = "query"


class House:
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

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table's rows, in the order of their offsets."""
        found = [row.asDict() for row in self.tables.read(self.spark, name).drop("body").collect()]
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
def house(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> House:
    """Both ways to write."""
    return House(spark, tmp_path, by_files=request.param == "by files")


def _newest(house: House, topic: str) -> Path:
    return max((house.root / "topics" / topic / "_delta_log").glob("*.json"))


def _damage(house: House) -> None:
    (house.root / "topics/damaged/_delta_log/00000000000000000000.crc").unlink(missing_ok=True)
    _newest(house, "damaged").write_text("{what is this?")


def _heal(house: House) -> None:
    shutil.rmtree(house.root / "topics/damaged")


def _too_new(house: House, back: bool = False) -> None:
    """The protocol of its first commit, as if a later Delta had made the table."""
    newest = _newest(house, "newer")
    for checksum in newest.parent.glob("*.crc"):
        checksum.unlink()
    old, new = '"minReaderVersion":1,"minWriterVersion":2', '"minReaderVersion":9,"minWriterVersion":99'
    newest.write_text(newest.read_text().replace(*((new, old) if back else (old, new))))


#: by topic: how its table is broken, what the reason says, and how it is mended
BROKEN: dict[str, tuple[Callable[[House], object], str, Callable[[House], object]]] = {
    "file": (
        lambda house: (shutil.rmtree(house.root / "topics/file"), (house.root / "topics/file").write_text("")),
        "",
        lambda house: (house.root / "topics/file").unlink(),
    ),
    "renamed": (
        lambda house: (
            house.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "renamed"),
            house.sql("ALTER TABLE {} RENAME COLUMN half_queue_offset TO place", "renamed"),
        ),
        "",
        lambda house: house.sql("ALTER TABLE {} RENAME COLUMN place TO half_queue_offset", "renamed"),
    ),
    "checked": (
        lambda house: house.sql("ALTER TABLE {} ADD CONSTRAINT few CHECK (tags <> 'tag')", "checked"),
        "few",
        lambda house: house.sql("ALTER TABLE {} DROP CONSTRAINT few", "checked"),
    ),
    "damaged": (_damage, "", _heal),
    "newer": (_too_new, "", lambda house: _too_new(house, back=True)),
}
_OTHERS: dict[str | None, str] = {
    "_delta_log": "no name of a topic",
    "../decisions": "no name of a topic",
    None: "null",
}


def test_tables_that_cannot_be_written_stop_no_other(house: House) -> None:
    """Broken in many ways at once, in a batch that is run again, and in the next; mended, all is published, once."""
    topics = ["good", *BROKEN, *_OTHERS]
    number = len(topics)
    for topic in BROKEN:
        Tables(root=str(house.root), by_files=True).create(house.spark, f"topics/{topic}")
        BROKEN[topic][0](house)
    house.land({offset: topics[offset % number] for offset in range(2 * number)})
    for _ in range(2):
        assert house.publish(1, *range(number)) == number - 1
        assert house.published("good") == [(0, 1)]
        assert [row["queue_offset"] for row in house.rows("decisions")] == [*range(number)]
        reasons = house.unpublished()
        assert sorted(reasons) == [*range(1, number)]
        house.start()
    for offset, topic in enumerate(topics[1:], 1):
        says = _OTHERS[topic] if topic in _OTHERS else BROKEN[topic or ""][1]
        assert says in reasons[offset], (topic, reasons[offset])
        assert reasons[offset], topic
        assert "\n" not in reasons[offset], topic
        assert "tx-" not in reasons[offset], topic
    assert house.publish(2, *range(number, 2 * number)) == number - 1
    assert house.published("good") == [(0, 1), (number, 2)]
    assert sorted(house.unpublished()) == [*range(1, number), *range(number + 1, 2 * number)]
    for _, _, mend in BROKEN.values():
        mend(house)
    house.start()
    for batch_id in (3, 3, 4):
        assert house.publish(batch_id) == 0
        for offset, topic in enumerate(BROKEN, 1):
            assert house.published(topic) == [(offset, 3), (offset + number, 3)], topic
    assert not (house.root / "topics/_delta_log").exists()
    assert sorted(path.name for path in (house.root / "topics").iterdir()) == sorted(["good", *BROKEN])
    house.land({2 * number: "renamed"})
    assert house.publish(5, 2 * number) == 0
    assert house.published("renamed")[-1] == (2 * number, 5)
