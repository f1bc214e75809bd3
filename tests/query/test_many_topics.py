"""What thousands of topics cost: each log is opened once, none stays open, and all files are one scan."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from checkback.query.answers import Answers
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.files.table_files import commit_file
from checkback.storage.log import delta_log, snapshot_files
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.tables import Tables
from support.stories import Row, Transaction, in_batches, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow
TOPICS = 12
#: topics whose logs were cleaned up after a checkpoint: delta-rs reads them
LONG = ["t4", "t5", "t6", "t7"]
_ASK: dict[str, Callable[[Answers], Any]] = {
    "audit": lambda answers: answers.audit(),
    "topics": lambda answers: answers.topics(),
    "lineage": lambda answers: answers.lineage("tx-0-0"),
}


def _committed(one: Transaction, topic: str) -> list[Row]:
    of = {"real_topic": topic}
    return [one.half(**of), one.op(), one.decision(**of), one.published(topic)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A message in each topic, and one in a topic's name that SQL would take for something else."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path_factory.mktemp("many"))}})
    topics = ["o'hare", *(f"t{number}" for number in range(TOPICS - 1))]
    rows, _ = in_batches([row for number, topic in enumerate(topics) for row in _committed(Transaction(number), topic)])
    write(None, Tables.of(settings.storage), rows)
    for topic in LONG:
        place = f"{settings.storage.root}/topics/{topic}"
        DeltaTable(place).create_checkpoint()
        os.remove(commit_file(place, 0))
    return settings


@pytest.mark.parametrize("ask", _ASK)
def test_a_topic_is_opened_once_at_most_and_is_no_view_of_its_own(
    lake: Settings, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short logs are read without delta-rs."""
    opened: Counter[str] = Counter()
    views = []
    known, view = snapshot_files.open_listed, DuckDBEngine._view

    def counted(place: str, version: int) -> DeltaTable:
        opened[place.rpartition("/")[2]] += "/topics/" in place
        return known(place, version)

    def viewed(engine: DuckDBEngine, name: str, *more: Any, **others: Any) -> str:
        views.append(name)
        return view(engine, name, *more, **others)

    monkeypatch.setattr(delta_log, "open_listed", counted)
    monkeypatch.setattr(DuckDBEngine, "_view", viewed)
    _ASK[ask](Answers(lake))
    assert {name: number for name, number in opened.items() if number} == dict.fromkeys(LONG, 1)
    assert views.count("topics/") < TOPICS / 2
    assert not [name for name in views if name.startswith("topics/") and name != "topics/"]


def test_logs_of_topics_do_not_stay_open(lake: Settings) -> None:
    """Without a run of the garbage collector, which does not see how much memory they take."""
    gc.collect()
    gc.disable()
    try:
        with DuckDBEngine(Tables.of(lake.storage)) as engine:
            assert len(engine.topics()) == TOPICS
            open_ones = [each for each in gc.get_objects() if isinstance(each, DeltaLog)]
            assert not [log for log in open_ones if log._place.startswith(f"{lake.storage.root}/topics/")]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["more", "topic", "Topic", "_file"])
def test_columns_that_two_topics_have_in_other_types_are_no_matter(lake: Settings, tmp_path: Path, name: str) -> None:
    """Somebody has added them, perhaps by a name that a question uses. What is the topics' own is read all the same."""
    root = tmp_path / "lake"
    shutil.copytree(lake.storage.root, root)
    for topic, value in (("t0", pa.array([7])), ("t1", pa.array(["text"])), ("t2", pa.array([[{"a": 1}]]))):
        place = f"{root}/topics/{topic}"
        (file,) = DeltaTable(place).file_uris()
        more = pq.read_table(file).append_column(name, value)
        write_deltalake(place, more, mode="overwrite", schema_mode="merge")
    settings = Settings.model_validate({"storage": {"root": str(root)}})
    answers = Answers(settings)
    assert answers.audit().kept
    assert answers.topics().column("messages").to_pylist() == [1] * TOPICS
    assert not any(answers.topics().column("unreadable").to_pylist())
    published = answers.lineage("tx-2-0").filter(pc.field("event") == "PUBLISHED")
    assert published.select(["table", "table_version"]).to_pylist() == [{"table": "topics/t1", "table_version": 2}]


def test_a_topic_that_is_written_meanwhile_is_read_as_it_was(lake: Settings, tmp_path: Path) -> None:
    """And as it is, if it is looked at again."""
    root = tmp_path / "lake"
    shutil.copytree(lake.storage.root, root)
    name, table = "topics/t3", Tables(root=str(root), by_files=True)
    with DuckDBEngine(table) as engine:
        engine.topics()
        before = engine.look([name])[name]
        assert before is not None
        read = {"t": engine.read_topics({name: before})}
        row = engine.arrow(engine.query("SELECT * EXCLUDE (topic) FROM {t}", read, {}))
        write_deltalake(f"{root}/{name}", row, mode="append")
        count = "SELECT count(*) AS n FROM {t}"
        now = engine.look([name])[name]
        assert now == before + 1
        for version, rows in ((before, 1), (now, 2), (None, 2)):
            found = engine.arrow(engine.query(count, {"t": engine.read_topics({name: version})}, {}))
            assert found.column("n").to_pylist() == [rows]
