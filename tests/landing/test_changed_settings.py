"""Settings that change between two runs of `land`: what would lose or repeat messages is refused in one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.errors import CheckbackError, SettingsError, StateError
from checkback.landing.landing_queries import Landed
from checkback.settings import Settings
from landing.fixtures import Lakehouse, half, killed_before, op
from landing.test_kafka_query import take, unplaced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landing.broker import Kafka

_SCHEMAS = ("land_dev", "land_prod")


@pytest.fixture
def schemas(spark: SparkSession) -> Iterator[None]:
    for schema in _SCHEMAS:
        spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    yield
    for schema in _SCHEMAS:
        spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")


@pytest.mark.usefixtures("schemas")
def test_tables_of_another_schema_are_not_landed_in_with_the_same_checkpoints(lake: Lakehouse, inbox: Path) -> None:
    """The files count as landed there, and would never come into these tables."""

    def of(schema: str) -> Lakehouse:
        storage = {"catalog": "spark_catalog", "schema": schema, "checkpoints": str(lake.root)}
        return replace(lake, settings=Settings.model_validate({"storage": storage}))

    dev, prod = map(of, _SCHEMAS)
    for name, line in (("half", half(0)), ("op", op(0))):
        (inbox / name).write_text(line)
    assert dev.land(inbox / "half") == Landed(half=1)
    with pytest.raises(StateError) as caught:
        prod.land(inbox / "half")
    told = f"{lake.root}/land-half: the table half is another one than the checkpoint was made with; move this"
    assert str(caught.value).startswith(told)
    assert dev.land(inbox / "half", inbox / "op") == Landed(op=1)
    for query in ("half", "op"):
        shutil.move(lake.root / f"land-{query}", lake.root / f"aside-{query}")
    assert prod.land(inbox / "half", inbox / "op") == Landed(half=1, op=1)


def test_batch_that_was_begun_is_landed_though_the_next_run_has_another_folder(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are not in that folder. Killed twice: it is finished by what it was begun with."""
    for day in range(3):
        (inbox / f"{day}").mkdir()
        (inbox / f"{day}/a.jsonl").write_text(half(day))
    (inbox / "0/link").symlink_to(inbox / "1/a.jsonl")
    with monkeypatch.context() as patch:
        killed_before(patch, "half")
        for day in (0, 1):
            with pytest.raises(CheckbackError):
                lake.land(inbox / f"{day}")
    assert lake.land(inbox / "2") == Landed(half=2, rejected=1)
    assert lake.rows("half", "queue_offset") == [(0,), (2,)]
    link = "file: is a link that leads out of the folder that is landed; put the file itself there"
    assert lake.rows("rejected", "reason") == [(link,)]
    assert lake.land(inbox / "1") == Landed(half=1)


def test_topic_keeps_its_half_queues(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    """In others its messages would be published twice, or taken for repeated ones where the queues overlap."""
    kafka.send(topics[0], unplaced(0))
    assert take(lake, kafka, topics[0], base=5) == Landed(half=1)
    for partition in (0, 1):
        kafka.send(topics[0], unplaced(1, transaction_id=f"t{partition}"), partition=partition)
    checkpoint = lake.tables.checkpoint("land-kafka-half")
    with pytest.raises(SettingsError) as caught:
        take(lake, kafka, topics[0], base=4)
    told = f"kafka.queue_base: is 4, but the checkpoint {checkpoint} was made with 5; set it to 5"
    assert str(caught.value) == f"{told}: ops name what has landed by it"
    shutil.move(checkpoint, f"{checkpoint}.lost")
    with pytest.raises(SettingsError) as caught:
        take(lake, kafka, topics[0], base=6)
    told = f"kafka.queue_base: messages of {topics[0]} have landed in half queue 5: they would land again, in other "
    assert str(caught.value) == f"{told}queues; set it to what it was then"
    assert take(lake, kafka, topics[0], base=5) == Landed(half=2, rejected=1)
    # A checkpoint without a record takes the first base, whatever has landed.
    shutil.rmtree(checkpoint)
    shutil.move(f"{checkpoint}.lost", checkpoint)
    Path(checkpoint, "queue_base").unlink()
    assert take(lake, kafka, topics[0], base=6) == Landed(half=2)
    assert take(lake, kafka, topics[0], base=6) == Landed()
