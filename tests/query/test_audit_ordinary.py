"""Sorting out the ordinary transactions changes nothing that the audit finds, whatever is in the tables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pytest

from checkback.query.audit import facts as audit_facts
from checkback.query.audit import labels as audit_labels
from checkback.query.audit import ordinary
from checkback.query.audit.findings import audit_on, findings_on
from checkback.query.engines import duckdb_engine
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.reconcile.records.segment_records import Reason
from checkback.settings import Settings
from checkback.storage.schemas import arrow_schema, columns_of
from checkback.storage.tables import Tables
from support.audit_cases import BROKEN, CLEAN, NUMBER, RESUMED
from support.stories import BORN, COUNTED, DECIDED, DONE, UNDER_WAY, Row, Transaction, checkpoint, in_batches, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: offsets of a queue
_MANY = 1_000
_QUEUES = 10
#: cases whose places or ids are of offset 0
_FIRST = (RESUMED, "one id, published under two offsets", "resumed: given up here, committed under its id elsewhere")
_BEFORE_1970 = datetime(1960, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many more transactions."""
    monkeypatch.setattr(duckdb_engine, "_BRIEF_PART", 400)
    monkeypatch.setattr(duckdb_engine, "_PART", 300)
    monkeypatch.setattr(audit_labels, "_SHARE", 100)


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}, "operator": {"queue": NUMBER[RESUMED]}})


def _findings(settings: Settings, whole: bool) -> list[tuple[int, int, str]]:
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        found = findings_on(engine, settings, whole=whole).select(["queue_id", "queue_offset", "finding"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def _same(settings: Settings) -> None:
    """The findings of each transaction, and the report."""
    assert _findings(settings, whole=False) == _findings(settings, whole=True)
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        assert audit_on(engine, settings, whole=False) == audit_on(engine, settings, whole=True)


@pytest.mark.slow
def test_every_fault_is_found_among_many_ordinary_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_engine, "_BRIEF_PART", 3_000)
    monkeypatch.setattr(duckdb_engine, "_PART", 40)
    settings = _settings(tmp_path)
    stories = CLEAN | {name: story for name, (_, story) in BROKEN.items()}
    places = {
        name: Transaction(number, 0 if name in _FIRST else number * 97 % _MANY) for name, number in NUMBER.items()
    }
    rows, done = in_batches([row for name, story in stories.items() for row in story(places[name])])
    ordinary = _MANY * _QUEUES
    (decided,) = (row for name, row in rows if name == "batches" and row["batch_time"] == DECIDED)
    decided["committed"] += ordinary
    tables, spark = Tables.of(settings.storage), cast("SparkSession", None)
    write(None, tables, rows)
    for name, row in Transaction(0).committed():
        tables.append_arrow(spark, _copies(name, row | {"batch_id": decided["batch_id"]}), name)
    checkpoint(tmp_path, batch_id=done)
    found: dict[int, set[str]] = {}
    for queue_id, queue_offset, finding in _findings(settings, whole=False):
        found.setdefault(queue_id, set()).add(finding)
        assert queue_offset == places[next(name for name in NUMBER if NUMBER[name] == queue_id)].offset
    assert found == {NUMBER[name]: names for name, (names, _) in BROKEN.items()}
    with DuckDBEngine(tables) as engine:
        report = audit_on(engine, settings)
        monkeypatch.setattr(duckdb_engine, "_PART", 200_000)
        assert report == audit_on(engine, settings, whole=True)
    figures = {each.finding.name: each.count for each in report.found}
    assert figures["published"] > ordinary
    assert "batch_differs" not in figures


def _copies(name: str, row: dict[str, Any]) -> pa.Table:
    """A row of a committed transaction, for each offset of the queues."""
    numbers = np.arange(_MANY * _QUEUES)
    queue, offset = ("half_queue_id", "half_queue_offset") if name == "topics/a" else ("queue_id", "queue_offset")
    own = {
        queue: pa.array(numbers % _QUEUES).cast(pa.int32()),
        offset: pa.array(numbers // _QUEUES),
        "transaction_id": pa.array([f"ordinary-{number}" for number in numbers]),
    }
    columns = [
        own.get(field.name, pa.repeat(pa.scalar(row.get(field.name), field.type), len(numbers)))
        for field in arrow_schema(name)
    ]
    return pa.table(columns, schema=arrow_schema(name))


_VALUES: dict[str, tuple[Any, ...]] = {
    "state": ("COMMIT", "ROLLBACK", "DISCARD", "CANCEL", "COUNTED", "commit"),
    "source": ("producer", "check", "operator", "checkback", "other"),
    "transaction_id": ("", "other"),
    "producer_group": ("", "pay"),
    "real_topic": ("b", "A", ""),
    "properties": ([], [("a", "1")], [("a", "1"), ("b", "3")], [("a", "2"), ("b", "1")], [("b", "2"), ("a", "1")]),
    "body": (b"", b"bodY"),
    "committed": (True, False),
    "check_immunity_s": (0, -1, 10**6),
    "delay_ms": (0, -5, 1_000),
    "check_times": (0, 1, 100),
    "tags": ("", "key"),
    "keys": ("",),
}
_TIMES = (_BEFORE_1970, BORN, DECIDED, DECIDED + timedelta(microseconds=1), DONE, UNDER_WAY)


def _others(name: str, kind: pa.DataType) -> tuple[Any, ...]:
    if name in _VALUES:
        return (None, *_VALUES[name])
    if pa.types.is_timestamp(kind):
        return (None, *_TIMES)
    return (None, 0, 1, 2) if pa.types.is_integer(kind) else (None, "x")


_USUAL: tuple[Callable[[Transaction], list[Row]], ...] = (
    Transaction.committed,
    Transaction.rolled_back,
    lambda t: [t.half()],
)
_MORE: tuple[Callable[[Transaction], Row], ...] = (
    Transaction.half,
    Transaction.op,
    lambda t: t.op("ROLLBACK"),
    lambda t: t.op(transaction_id=None),
    lambda t: t.op(producer_group="pay"),
    lambda t: t.op("CANCEL", source="operator"),
    lambda t: t.op("COUNTED", source="check", remark="check 1"),
    Transaction.decision,
    lambda t: t.decision("ROLLBACK"),
    lambda t: t.decision("DISCARD"),
    lambda t: t.decision("CANCEL", source="operator"),
    Transaction.published,
    lambda t: t.published("b"),
    Transaction.unpublished,
    Transaction.discarded,
    Transaction.check,
    Transaction.rejected_half,
    lambda t: t.rejected_op(Reason.WRONG_GROUP),
    # another transaction that took the same offset, before it or after it
    lambda t: t.half(transaction_id="other", store_timestamp=BORN),
    lambda t: t.half(producer_group="pay", store_timestamp=DECIDED),
    lambda t: t.op(transaction_id="other"),
    lambda t: t.decision(transaction_id="other"),
    lambda t: t.published(transaction_id="other"),
    lambda t: ("deliveries", t.key | {"deliver_at": DECIDED, "delivered_at": DECIDED, "batch_id": 0}),
)


#: what is done to the rows of a transaction
Edit: TypeAlias = Callable[[Transaction, list[Row]], list[Row]]


def _edits(usual: list[Row]) -> list[Edit]:
    """Each of the rows missing, twice, and with each other value of each column; and each row more."""
    edits: list[Edit] = [lambda t, rows, more=more: [*rows, more(t)] for more in _MORE]  # type: ignore[misc]
    for number, (name, _) in enumerate(usual):
        edits.append(partial(_without, number))
        edits.append(partial(_again, number))
        edits += [
            partial(_changed, number, {column.name: value})
            for column in columns_of(name)
            for value in _others(column.name, column.kind)
        ]
    return edits


def _without(number: int, _: Transaction, rows: list[Row]) -> list[Row]:
    return rows[:number] + rows[number + 1 :]


def _again(number: int, _: Transaction, rows: list[Row]) -> list[Row]:
    return [*rows, *rows[number : number + 1]]


def _changed(number: int, values: dict[str, Any], _: Transaction, rows: list[Row]) -> list[Row]:
    return [(name, row | values) if at == number else (name, row) for at, (name, row) in enumerate(rows)]


def _write(settings: Settings, rows: list[Row]) -> None:
    """Decisions of a state that no batch counts are in none."""
    counted: list[Row] = []
    odd: list[Row] = []
    for name, row in rows:
        (odd if name == "decisions" and row["state"] not in COUNTED else counted).append((name, row))
    told, done = in_batches(counted)
    write(None, Tables.of(settings.storage), told + odd)
    checkpoint(Path(settings.storage.root), batch_id=done)


@pytest.mark.slow
def test_one_fault_of_any_kind_is_judged_as_by_all_facts(tmp_path: Path) -> None:
    """Every column of every row of a transaction, with other values, null among them."""
    settings = _settings(tmp_path)
    rows: list[Row] = []
    for queue, usual in enumerate(_USUAL, 10):
        for number, edit in enumerate(_edits(usual(Transaction(queue)))):
            t = Transaction(queue, 10 * number)
            rows += edit(t, usual(t))
    _write(settings, rows)
    _same(settings)


@pytest.mark.slow
def test_one_fault_is_judged_by_the_rows_that_its_part_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few transactions in each part: tables have no row of these, and are not read for them."""
    monkeypatch.setattr(duckdb_engine, "_BRIEF_PART", 8)
    settings = _settings(tmp_path)
    rows: list[Row] = []
    for queue, usual in enumerate(_USUAL, 10):
        told = usual(Transaction(queue))
        rare = [edit for edit in _edits(told) if not (isinstance(edit, partial) and edit.func is _changed)]
        for number, edit in enumerate(rare):
            t = Transaction(queue, 100 * queue + number)
            rows += edit(t, usual(t))
    _write(settings, rows)
    _same(settings)


@pytest.mark.slow
def test_rows_of_half_messages_that_are_all_gone_are_judged(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    _write(settings, [row for row in Transaction(10).committed() if row[0] != "half"])
    assert _findings(settings, whole=False)
    _same(settings)


def test_facts_are_computed_from_the_rows_that_they_name() -> None:
    """What no row could tell is left out: a fact that names too few kinds would be lost."""
    for name, one in audit_facts._AGGREGATES.items():
        named = re.findall(r"kind (?:IN \(([\d, ]+)\)|= (\d+))", one.sql)
        assert {int(kind) for pair in named for kind in "".join(pair).split(",")} == set(one.kinds), name


@pytest.mark.slow
@pytest.mark.parametrize("spare", [ordinary._SPARE, -1_000_000_000])
def test_faults_at_random_are_judged_as_by_all_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    """Up to three in a transaction, or in two that share a place. SEED=n for the same rows again.

    Once with places of their own for all offsets, once as if those were far apart.
    """
    monkeypatch.setattr(ordinary, "_SPARE", spare)
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    print(f"SEED={seed}")
    random = Random(seed)
    settings = _settings(tmp_path)
    edits = [_edits(usual(Transaction(0))) for usual in _USUAL]
    rows: list[Row] = []
    for _ in range(1_000):
        kind, t = random.randrange(len(_USUAL)), Transaction(random.randrange(3), random.randrange(500))
        told = _USUAL[kind](t)
        for _ in range(random.randrange(4)):
            told = random.choice(edits[kind])(t, told)
        rows += told
    _write(settings, rows)
    _same(settings)
