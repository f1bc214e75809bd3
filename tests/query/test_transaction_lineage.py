"""What the lineage of a transaction says of its checks."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.errors import StorageError
from checkback.query.answers import Answers
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.batch_runs import runs_of
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.stories import CHECK_MAX, DECIDED, Transaction, in_batches, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def _checks(settings: Settings, spark: SparkSession | None = None) -> list[str]:
    events = Answers(settings, spark).lineage("tx-0-0").to_pylist()
    return [row["detail"] for row in events if row["event"] == "CHECK"]


def test_a_check_is_one_of_as_many_as_its_batch_allowed(tmp_path: Path) -> None:
    """By the rules in force; without the batch's row, or without any, the number is not known."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    checked = Transaction(0)
    rows, _ = in_batches([checked.half(), *checked.checks(2)])
    ruled = [row for row in rows if row[0] == "batches"]
    write(None, tables, [row for row in rows if row[0] != "batches"])
    assert _checks(settings) == ["check 1", "check 2"]
    first, second = ruled[0], (ruled[1][0], ruled[1][1] | {"check_max": CHECK_MAX + 1})
    write(None, tables, [first, first])  # `audit` reports that there are two
    assert _checks(settings) == [f"check 1 of {CHECK_MAX}", "check 2"]
    write(None, tables, [second])
    assert _checks(settings) == [f"check 1 of {CHECK_MAX}", f"check 2 of {CHECK_MAX + 1}"]


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_check_has_the_rules_of_the_run_of_its_batch(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """Retention has merged its batch with others: into a run, in which all were decided by the same rules."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    checked = Transaction(0)
    rows, _ = in_batches([checked.half(), *checked.checks(2)])
    batches = pa.Table.from_pylist([row for name, row in rows if name == "batches"], arrow_schema("batches"))
    runs = runs_of(batches).to_pylist()
    assert [(row["first_batch_id"], row["batch_id"]) for row in runs] == [(0, 2)]
    other = {**runs[0], "application": "rebuilt", "first_batch_id": None, "first_batch_time": None, "check_max": 99}
    rows = [row for row in rows if row[0] != "batches"]
    write(None, Tables.of(settings.storage), [*rows, ("batches", runs[0]), ("batches", other)])
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    assert _checks(settings, spark) == [f"check {number} of {CHECK_MAX}" for number in (1, 2)]


def test_an_op_that_says_that_a_check_counts_is_told_as_such(tmp_path: Path) -> None:
    """It ends nothing, and is there also if the check was held back and reached nobody."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    one = Transaction(0)
    rows = [one.half(), one.op("COUNTED", source="check", remark="check 1"), one.decision(check_times=1)]
    write(None, Tables.of(settings.storage), rows)
    details = [row["detail"] for row in Answers(settings).lineage("tx-0-0").to_pylist()]
    assert details[1] == "COUNTED by check of tx-0-0 - check 1 (counts towards check_max)"
    assert details[2].endswith(" after 1 check")


@pytest.mark.parametrize("topic", ["PRICING_RULES", "UNNAMED", "OPERATORS", "TABLE", "half", "table_1", "%notify"])
def test_a_topic_may_have_any_name(tmp_path: Path, topic: str) -> None:
    """Also one with words that the question is made of."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    mine, other = Transaction(0), Transaction(1)
    rows = [row for one in (mine, other) for row in (one.half(), one.op(), one.decision(), one.published(topic))]
    write(None, Tables.of(settings.storage), in_batches(rows)[0])
    events = Answers(settings).lineage("tx-0-0").to_pylist()
    assert [row["event"] for row in events] == ["HALF", "OP", "DECISION", "PUBLISHED"]
    assert events[-1]["table"] == f"topics/{topic}"


def _damage(root: Path, how: str) -> None:
    if how == "log":
        (root / "_delta_log" / f"{1:020}.json").write_text("{")
        (root / "_delta_log" / f"{0:020}.json").write_text("{")
    elif how == "no log":
        for commit in (root / "_delta_log").iterdir():
            commit.write_bytes(b"")
    elif how == "no file":
        next(root.glob("*.parquet")).unlink()
    else:
        next(root.glob("*.parquet")).write_bytes(b"PAR1 no more")


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("how", [("log", "no log"), ("no file", "file")], ids=" and ".join)
def test_a_topic_that_cannot_be_read_is_named_and_the_others_told(
    tmp_path: Path, how: tuple[str, str], engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On DuckDB without Spark's packages."""
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    rows = [row for one in (0, 1) for row in Transaction(one).committed()]
    others = [Transaction(number).published(f"t{number}") for number in range(2, 5)]
    write(None, Tables.of(settings.storage), in_batches([*rows, *others])[0])
    for topic, fault in zip(("t2", "t4"), how, strict=True):
        _damage(tmp_path / "topics" / topic, fault)
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    if engine == "duckdb":
        monkeypatch.setitem(sys.modules, "pyspark", None)
    events = Answers(settings, spark).lineage("tx-0-0").to_pylist()
    *told, first, second = events
    assert [row["event"] for row in told] == ["HALF", "OP", "DECISION", "PUBLISHED"]
    for row, topic in ((first, "t2"), (second, "t4")):
        assert (row["event"], row["table"], row["at"]) == ("UNREADABLE", f"topics/{topic}", None)
        assert row["detail"]
        assert "\n" not in row["detail"]
    nobody = Answers(settings, spark).lineage("nobody").to_pylist()
    assert [row["event"] for row in nobody] == ["UNREADABLE"] * 2


def test_a_table_of_all_transactions_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    write(None, Tables.of(settings.storage), in_batches(Transaction(0).committed())[0])
    for name in ("half", "topics/a"):
        _damage(tmp_path / name, "file")
    with pytest.raises(StorageError):
        Answers(settings).lineage("tx-0-0")


def test_topics_are_asked_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for ten thousand of them takes gigabytes. What they tell is in the order of time."""
    monkeypatch.setattr("checkback.query.transaction_lineage._AT_ONCE", 2, raising=False)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    mine = Transaction(0)
    times = {f"t{number}": DECIDED - timedelta(seconds=number) for number in range(5)}
    rows = [mine.half(), *(mine.published(topic, published_at=at) for topic, at in times.items())]
    write(None, Tables.of(settings.storage), rows)
    asked, read = [], DuckDBEngine.read_topics

    def counted(engine: DuckDBEngine, versions: Mapping[str, int], *more: Any, **others: Any) -> str:
        asked.append(len(versions))
        return read(engine, versions, *more, **others)

    monkeypatch.setattr(DuckDBEngine, "read_topics", counted)
    events = Answers(settings).lineage("tx-0-0").to_pylist()
    assert [row["table"] for row in events] == ["half", *(f"topics/t{number}" for number in (4, 3, 2, 1, 0))]
    assert {row["table_version"] for row in events} == {1}
    assert asked == [2, 2, 1]
