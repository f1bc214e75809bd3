"""The audit beside topics' tables that cannot be read: all else is judged, and no fault found with what is not seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from checkback.cli import main
from checkback.errors import StorageError
from checkback.query.audit.findings import Report, audit_on, findings_on
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.engines.spark_engine import SparkEngine
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.audit_cases import BROKEN, CLEAN, NUMBER, RESUMED
from support.stories import Row, Transaction, checkpoint, in_batches, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_Damage: TypeAlias = Callable[[Path], object]
_Found: TypeAlias = dict[int | None, set[str]]


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}, "operator": {"queue": NUMBER[RESUMED]}})


def _written(root: Path, told: list[Row]) -> Path:
    rows, done = in_batches(told)
    write(None, Tables.of(_settings(root).storage), rows)
    checkpoint(root, batch_id=done)
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables in which everything has happened, each in a queue of its own."""
    stories = CLEAN | {name: story for name, (_, story) in BROKEN.items()}
    told = [row for name, story in stories.items() for row in story(Transaction(NUMBER[name]))]
    return _written(tmp_path_factory.mktemp("audit") / "whole", told)


def _damaged(whole: Path, root: Path, damage: _Damage, topics: str = "a") -> Settings:
    shutil.copytree(whole, root)
    for topic in (root / "topics").glob(topics):
        damage(topic)
    return _settings(root)


def _cut_files(topic: Path) -> None:
    for file in topic.glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:100])


def _garble_log(topic: Path) -> None:
    for commit in (topic / "_delta_log").glob("*.json"):
        commit.write_text("{")


_DAMAGES = [pytest.param(_cut_files, id="files"), pytest.param(_garble_log, id="log")]


def _by_queue(engine: DuckDBEngine | SparkEngine, settings: Settings, whole: bool | None = None) -> _Found:
    found: _Found = {}
    for row in findings_on(engine, settings, whole=whole).to_pylist():
        found.setdefault(row["queue_id"], set()).add(row["finding"])
    return found


@pytest.mark.parametrize("damage", _DAMAGES)
@pytest.mark.parametrize("in_full", [False, True], ids=["sorted out", "in full"])
def test_nothing_is_found_that_was_not_found_before(
    whole: Path, tmp_path: Path, damage: _Damage, in_full: bool
) -> None:
    with DuckDBEngine(Tables.of(_settings(whole).storage)) as engine:
        before = _by_queue(engine, _settings(whole), in_full)
    settings = _damaged(whole, tmp_path / "root", damage, "*")
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        found = _by_queue(engine, settings, in_full)
    assert found.pop(None) == {"topic_not_read"}
    # What is not noted as published late may be in its topic, and may not; nor is it seen what was published undecided.
    unseen = {"unpublished", "pending_overdue"}
    new = {queue: names - before.get(queue, set()) - unseen for queue, names in found.items()}
    assert {queue: names for queue, names in new.items() if names} == {}
    # What breaks no promise of a topic is found as before.
    untouched = [name for name, (names, _) in BROKEN.items() if not any("publish" in one for one in names)]
    assert len(untouched) > 20
    assert {name: found.get(NUMBER[name]) for name in untouched} == {name: before[NUMBER[name]] for name in untouched}


def _committed(t: Transaction, topic: str) -> list[Row]:
    return [t.half(real_topic=topic), t.op(), t.published(topic), t.decision(real_topic=topic)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that keep every promise, and with which no message waited for its topic's table; three topics."""
    told = [story(Transaction(NUMBER[name])) for name, story in CLEAN.items()]
    told += [_committed(Transaction(9, offset), f"b{offset % 2}") for offset in range(40)]
    waited = ("unpublished" in dict(story) for story in told)
    rows = [row for story, late in zip(told, waited, strict=True) if not late for row in story]
    return _written(tmp_path_factory.mktemp("audit") / "clean", rows)


def _figures(report: Report) -> dict[str, int]:
    return {one.finding.name: one.count for one in report.found if one.finding.level == "figure"}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_figures_are_those_of_before(clean: Path, tmp_path: Path, damage: _Damage) -> None:
    with DuckDBEngine(Tables.of(_settings(clean).storage)) as engine:
        before = audit_on(engine, _settings(clean))
    assert before.kept
    settings = _damaged(clean, tmp_path / "root", damage)
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        report = audit_on(engine, settings)
    assert _figures(report) == _figures(before)
    assert (report.broken, report.kept, list(report.unread)) == (False, False, ["a"])
    assert [one.samples for one in report.found if one.finding.name == "topic_not_read"] == [("a",)]


def test_spark_finds_the_same(spark: SparkSession, clean: Path, tmp_path: Path) -> None:
    settings = _damaged(clean, tmp_path / "root", _cut_files)
    tables = Tables.of(settings.storage)
    with DuckDBEngine(tables) as engine:
        expected = audit_on(engine, settings)
    report = audit_on(SparkEngine(spark, tables), settings)
    assert _figures(report) == _figures(expected)
    assert (report.broken, list(report.unread)) == (False, ["a"])


def test_command_tells_it_and_exits_with_1(clean: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = _damaged(clean, tmp_path / "root", _garble_log)
    options = ["--set", f"storage.root={settings.storage.root}"]
    assert main(["audit", "-o", "json", *options]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["broken"] is False
    assert list(told["unread"]) == ["a"]
    (topic,) = (one for one in told["findings"] if one["finding"] == "topic_not_read")
    assert (topic["level"], topic["about"], topic["samples"]) == ("warning", "topic", ["a"])
    assert main(["audit", *options]) == 1
    out = capfd.readouterr().out
    assert "No promise is broken, but 1 of the topics could not be read." in out
    assert "not read: topics/a: " in out


def test_other_tables_that_cannot_be_read_end_it(clean: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(clean, root)
    _cut_files(root / "decisions")
    settings = _settings(root)
    with DuckDBEngine(Tables.of(settings.storage)) as engine, pytest.raises(StorageError):
        audit_on(engine, settings)


def test_an_audit_that_is_stopped_finds_no_topic_damaged(clean: Path) -> None:
    settings = _settings(clean)
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        engine.stop(StorageError("it took too long", ""))
        with pytest.raises(StorageError, match="it took too long"):
            audit_on(engine, settings)
