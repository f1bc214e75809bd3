"""Audits whether the tables keep the protocol's promises, on Spark or DuckDB (`engine`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.errors import SettingsError
from checkback.inspect.audit_facts import WHO, facts
from checkback.inspect.audit_findings import FINDINGS, Finding
from checkback.inspect.audit_rules import RulesInForce, conditions
from checkback.inspect.batch_audit import BatchAudit, audit_batches, rules, rules_history, rules_values
from checkback.inspect.batches import epochs
from checkback.inspect.question import Question
from checkback.inspect.table_versions import FixedTables
from checkback.messages import RESUMED_FROM
from checkback.reconcile.segment import CHECKS_AT_LEAST
from checkback.storage.checkpoint import Batch
from checkback.storage.schemas import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.inspect.check_intervals import RulesHistory
    from checkback.inspect.engine import Engine
    from checkback.settings import Settings

#: Samples per finding.
SAMPLES = 5


@dataclass(frozen=True)
class Found:
    """A finding, the number of transactions or batches that have it, and a few of them as ``samples``.

    Samples are (queue_id, queue_offset); for batches (batch_id, time in ms), None where the row lacks the value.
    """

    finding: Finding
    count: int
    samples: tuple[tuple[int | None, int | None], ...]


@dataclass(frozen=True)
class Report:
    """The result of an audit: all figures, and the other findings with at least one transaction or batch.

    ``done``: the last completed batch; ``under_way``: batches in progress, whose rows were left out.
    ``oldest_pending``: its born_timestamp, ms. ``first``: the first batch with a row in `batches`, None = none has one;
    ``past``: whether there were batches before it.
    """

    found: tuple[Found, ...]
    done: Batch | None
    under_way: tuple[Batch, ...]
    oldest_pending: int | None
    first: Batch | None = None
    past: bool = False

    @property
    def broken(self) -> bool:
        """Whether a promise is broken."""
        return any(found.finding.level == "broken" for found in self.found)


def audit(spark: SparkSession, settings: Settings) -> Report:
    """Audit the current tables on Spark; batches may run meanwhile.

    Each batch is judged by the rules recorded for it in `batches`; of the settings only those of storage are used.
    Raises SettingsError if there are no tables at all, StorageError if tables or checkpoint cannot be read.
    """
    from checkback.inspect.spark_engine import SparkEngine
    from checkback.storage.tables import Tables

    return audit_on(SparkEngine(spark, Tables.of(settings.storage)), settings)


def audit_on(engine: Engine, settings: Settings) -> Report:
    """As `audit`."""
    accounted = _account(engine)
    fixed = accounted.fixed
    rows = _summary(accounted, settings)
    found = []
    for name, finding in FINDINGS.items():
        row = rows.get(name, _NOTHING)
        count, samples = row.count, row.samples
        if finding.about == "batch":
            count, samples = accounted.found.get(name, (0, ()))
        elif name == "offset_gap":
            count, samples = rows.get("halves", _NOTHING).gaps, ()
        if count or finding.level == "figure":
            found.append(Found(finding, int(count), samples))
    return Report(
        tuple(found),
        _done(fixed),
        fixed.under_way,
        rows.get("pending", _NOTHING).oldest,
        None if accounted.first is None else Batch(*accounted.first),
        accounted.past,
    )


def _done(fixed: FixedTables) -> Batch | None:
    """The last completed batch: from the checkpoint, otherwise from `batches`."""
    batches = fixed.whole.batches
    if fixed.logged or not len(batches):
        return fixed.done
    return Batch(int(batches["batch_id"][-1]), int(batches["time"][-1]))


def findings(spark: SparkSession, settings: Settings) -> DataFrame:
    """One row per finding and transaction, without figures: for notebooks.

    Columns: level (broken, warning), promise (P1 .. P5, or empty), finding, queue_id INT, queue_offset BIGINT, meaning.
    Findings about batches are in `audit` only. Raises as `audit`.
    """
    from checkback.inspect.spark_engine import SparkEngine
    from checkback.storage.dataframes import frame
    from checkback.storage.tables import Tables

    return frame(spark, findings_on(SparkEngine(spark, Tables.of(settings.storage)), settings))


def findings_on(engine: Engine, settings: Settings) -> pa.Table:
    """As `findings`."""
    accounted = _account(engine)
    fixed = accounted.fixed
    told = labelled_question(accounted, figures=False).unlike("labels", "")
    asked = [*((part, told) for part in fixed.parts()), (fixed, repeated_question(fixed, settings))]
    rows = [row for tables, question in asked for row in engine.arrow(tables.ask(question)).to_pylist()]
    found = [(FINDINGS[name], row) for row in rows for name in row["labels"].split(",")]
    return pa.table(
        {
            "level": pa.array([finding.level for finding, _ in found], pa.string()),
            "promise": pa.array([finding.promise for finding, _ in found], pa.string()),
            "finding": pa.array([finding.name for finding, _ in found], pa.string()),
            "queue_id": pa.array([row["queue_id"] for _, row in found], pa.int32()),
            "queue_offset": pa.array([row["queue_offset"] for _, row in found], pa.int64()),
            "meaning": pa.array([finding.meaning for finding, _ in found], pa.string()),
        }
    )


def _account(engine: Engine) -> BatchAudit:
    fixed = FixedTables.take(engine)
    # If some tables exist, a missing one counts as empty: what it should hold is then reported as lost.
    if not set(fixed.versions) & set(SCHEMAS):
        where = fixed.tables.location("half")
        raise SettingsError("there is no such table", where, "run `checkback reconcile` first")
    return audit_batches(fixed, SAMPLES)


def labelled_question(accounted: BatchAudit, *, figures: bool = True) -> Question:
    """The findings of each transaction: labels (their names, with commas), queue_id, queue_offset, born (ms)."""
    fixed = accounted.fixed
    ever = rules_history(fixed)
    found = conditions(_in_force(accounted, ever))
    labels = ", ".join(
        f"CASE WHEN {condition} THEN '{name}' END"
        for name, condition in found.items()
        if figures or FINDINGS[name].level != "figure"
    )
    sql = f"""
        WITH {rules(fixed)}, {facts(ever, ignore_case=fixed.ignores_case)}
        SELECT concat_ws(',', {labels}) AS labels, queue_id, queue_offset, born FROM facts"""
    return Question(sql, "queue_id, queue_offset, labels", rules_values(fixed))


def repeated_question(fixed: FixedTables, settings: Settings) -> Question:
    """As `labelled_question`: the first offset of each (producer_group, transaction_id) published under several.

    If these are one discarded message resumed twice, a promise is broken.
    """
    ids = f"SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, {WHO} AS who FROM {{topics}}"
    queues = ", ".join(map(str, _resumed_queues(fixed, settings)))
    origins = f"""
        SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, properties['{RESUMED_FROM}'] AS who
        FROM {{topics}} WHERE half_queue_id IN ({queues}) AND properties['{RESUMED_FROM}'] IS NOT NULL"""
    sql = f"{_several(ids, 'id_published_twice')} UNION ALL {_several(origins, 'resumed_twice')}"
    return Question(sql, "queue_id, queue_offset, labels")


def _in_force(accounted: BatchAudit, ever: RulesHistory) -> RulesInForce:
    fixed, batches = accounted.fixed, accounted.fixed.whole.batches
    done = _done(fixed)
    known = RulesInForce(
        batch_time=None if done is None else done.time,
        half_until=fixed.half_read_until(),
        epochs=epochs(batches),
        past=accounted.past,
        uncounted=ever.uncounted,
    )
    if not len(batches):
        return known
    interval, jitter, reserved, most = (
        int(batches[name][-1]) for name in ("check_interval", "jitter", "reserved", "check_max")
    )
    enough = min(most, CHECKS_AT_LEAST, reserved // max(1, interval) + 1)
    return replace(known, longest=interval + max(0, jitter), enough=enough)


def _resumed_queues(fixed: FixedTables, settings: Settings) -> list[int]:
    """Half queues of resumed messages: those named in `operations`, and operator.queue of the settings."""
    sql = "SELECT DISTINCT new_queue_id FROM {all_operations} WHERE new_queue_id IS NOT NULL"
    rows = fixed.engine.arrow(fixed.ask(Question(sql, "new_queue_id")))
    return sorted({settings.operator.queue, *rows.column("new_queue_id").to_pylist()})


def _several(rows: str, name: str) -> str:
    """SQL: the first place of each ``who`` that has several. If these are one message resumed, a promise is broken."""
    return f"""
        SELECT '{name}' AS labels, queue_id, queue_offset, CAST(NULL AS BIGINT) AS born FROM (
            SELECT queue_id, queue_offset, row_number() OVER (PARTITION BY who ORDER BY queue_id, queue_offset) AS turn
            FROM (SELECT DISTINCT who, queue_id, queue_offset FROM ({rows}) WHERE who IN (
                SELECT who FROM ({rows}) GROUP BY who
                HAVING min(queue_id) <> max(queue_id) OR min(queue_offset) <> max(queue_offset))))
        WHERE turn = 1"""


@dataclass(frozen=True)
class _Summary:
    """Of a finding: count, the oldest born (ms), gaps (missing offsets between the first and last of a queue)."""

    count: int = 0
    oldest: int | None = None
    gaps: int = 0
    samples: tuple[tuple[int | None, int | None], ...] = ()


_NOTHING = _Summary()
_SUMMARY = """
SELECT labels, queue_id, count(*) AS count, min(born) AS oldest, min(queue_offset) AS first, max(queue_offset) AS last,
    min_by(queue_offset, (coalesce(born, -9000000000000000000), queue_offset), SAMPLES) AS samples,
    min_by(coalesce(born, -9000000000000000000), (coalesce(born, -9000000000000000000), queue_offset), SAMPLES) AS born
FROM (LABELLED) AS labelled WHERE labels <> '' GROUP BY labels, queue_id
"""


def _summary(accounted: BatchAudit, settings: Settings) -> dict[str, _Summary]:
    """By name of each finding that occurs. Samples are the oldest.

    Memory does not grow with the number of transactions: a row for each queue and set of findings.
    """
    labelled, fixed = labelled_question(accounted), accounted.fixed
    found = [_found(part, labelled) for part in fixed.parts()]
    found.append(_found(fixed, repeated_question(fixed, settings)))
    of_name: dict[str, list[dict[str, Any]]] = {}
    for row in chain.from_iterable(found):
        for name in row["labels"].split(","):
            of_name.setdefault(name, []).append(row)
    return {name: _summed(rows) for name, rows in of_name.items()}


def _found(fixed: FixedTables, labelled: Question) -> list[dict[str, Any]]:
    sql = _SUMMARY.replace("SAMPLES", str(SAMPLES)).replace("LABELLED", labelled.sql)
    rows = fixed.engine.arrow(fixed.ask(Question(sql, "queue_id, labels", labelled.values)))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def _summed(rows: list[dict[str, Any]]) -> _Summary:
    places = sorted(
        (born, row["queue_id"], offset)
        for row in rows
        for born, offset in zip(row["born"], row["samples"], strict=True)
    )
    queues: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        queues.setdefault(row["queue_id"], []).append(row)
    gaps = sum(
        max(one["last"] for one in of) - min(one["first"] for one in of) + 1 - sum(one["count"] for one in of)
        for of in queues.values()
    )
    oldest = min((row["oldest"] for row in rows if row["oldest"] is not None), default=None)
    samples = tuple((queue_id, offset) for _, queue_id, offset in places[:SAMPLES])
    return _Summary(sum(row["count"] for row in rows), oldest, gaps, samples)
