"""Audits whether the tables keep the protocol's promises, on Spark or DuckDB (`engine`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from checkback.errors import SettingsError
from checkback.query.audit.batches import audit_batches
from checkback.query.audit.conditions import MARGIN
from checkback.query.audit.labels import labelled, last_done_batch
from checkback.query.audit.ordinary import sources
from checkback.query.audit.promises import FINDINGS, Finding
from checkback.query.audit.removed_rows import removed_rows
from checkback.query.engines.question import Question
from checkback.query.unreadable_topics import beside_unreadable
from checkback.query.versions.published_notes import read_notes
from checkback.query.versions.table_versions import TOPICS, FixedTables
from checkback.storage.checkpoints.checkpoint import Batch
from checkback.storage.horizon import BODIES, horizon
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX
from checkback.storage.timestamps import ms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from checkback.query.audit.batches import BatchAudit
    from checkback.query.engines.engine import Engine
    from checkback.settings import Settings

#: Samples per finding.
SAMPLES = 5
_Samples: TypeAlias = "tuple[tuple[int | None, int | None] | str, ...]"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Found:
    """A finding, the number of transactions, batches or commits that have it, and a few of them as ``samples``.

    Samples are (queue_id, queue_offset); for batches (batch_id, time in ms), for commits (version, time in ms). None
    where the row lacks the value. For topics the name.
    """

    finding: Finding
    count: int
    samples: _Samples


@dataclass(frozen=True)
class Report:
    """The result of an audit: all figures, and the other findings with at least one transaction or batch.

    ``done``: the last completed batch; ``under_way``: batches in progress, whose rows were left out.
    ``oldest_pending``: its born_timestamp, ms. ``first``: the first batch with a row in `batches`, None = none has one;
    ``past``: whether there were batches before it. ``unread``: topics whose tables cannot be read, with the reason.
    ``since``: what ended before it was removed by retention (ms), None = nothing was. ``bodies_since``: bodies of what
    landed before it are not compared; ``topics_since``: by topic, what was published before is not looked for.
    ``asked``: transactions that had ended by then, and have no row since, are not judged (ms); None = all are.
    """

    found: tuple[Found, ...]
    done: Batch | None
    under_way: tuple[Batch, ...]
    oldest_pending: int | None
    first: Batch | None = None
    past: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)
    since: int | None = None
    bodies_since: int | None = None
    topics_since: Mapping[str, int] = field(default_factory=dict)
    asked: int | None = None

    @property
    def broken(self) -> bool:
        """Whether a promise is broken."""
        return any(found.finding.level == "broken" for found in self.found)

    @property
    def kept(self) -> bool:
        """Whether every promise is kept, as far as all tables could be read."""
        return not self.broken and not self.unread


def audit_on(engine: Engine, settings: Settings, *, since: datetime | None = None, whole: bool | None = None) -> Report:
    """Audit the current tables; batches may run meanwhile. ``whole``: see `labels.labelled`.

    ``since``: without the transactions that had ended by then, and of which no row has come since.

    Each batch is judged by the rules recorded for it in `batches`; of the settings only those of storage are used.
    Raises SettingsError if there are no tables at all, StorageError if tables or checkpoint cannot be read.
    """
    report = _beside_unread(engine, lambda tables: _report(tables, settings, whole), since)
    return report if since is None else replace(report, asked=ms_of(since))


def _report(tables: FixedTables, settings: Settings, whole: bool | None) -> Report:
    accounted = audit_batches(tables, SAMPLES)
    fixed = accounted.fixed
    unread = {name.removeprefix(TOPIC_PREFIX): why for name, why in sorted(fixed.unread.items())}
    others: dict[str, tuple[int, _Samples]] = {**accounted.found, **removed_rows(fixed, SAMPLES)}
    others["topic_not_read"] = len(unread), tuple(islice(unread, SAMPLES))
    rows = _summary(accounted, settings, whole)
    found = []
    for name, finding in FINDINGS.items():
        row = rows.get(name, _NOTHING)
        count: int = row.count
        samples: _Samples = row.samples
        if finding.about != "transaction":
            count, samples = others.get(name, (0, ()))
        elif name == "offset_gap":
            if fixed.since is not None or fixed.only is not None:  # what is not there has left gaps
                continue
            count, samples = rows.get("halves", _NOTHING).gaps, ()
        if count or finding.level == "figure":
            found.append(Found(finding, int(count), samples))
    return Report(
        tuple(found),
        last_done_batch(fixed),
        fixed.under_way,
        rows.get("pending", _NOTHING).oldest,
        None if accounted.first is None else Batch(*accounted.first),
        accounted.past,
        unread,
        fixed.since,
        fixed.bodies_since,
        fixed.topics_since,
    )


def findings_on(engine: Engine, settings: Settings, *, whole: bool | None = None) -> pa.Table:
    """One row per finding and transaction, without figures. ``whole``: see `labels.labelled`.

    Columns: level (broken, warning), promise (P1 .. P5, or empty), finding, queue_id INT, queue_offset BIGINT, meaning.
    Findings about batches and commits are in `audit_on` only. A topic that cannot be read has a row without a place,
    whose meaning names it. Raises as `audit_on`.
    """
    return _beside_unread(engine, lambda tables: _findings(tables, settings, whole))


def _findings(tables: FixedTables, settings: Settings, whole: bool | None) -> pa.Table:
    accounted = audit_batches(tables, SAMPLES)
    rows = labelled(accounted, settings, lambda question: question.unlike("labels", ""), figures=False, whole=whole)
    found = [
        (finding, row["queue_id"], row["queue_offset"], finding.meaning)
        for row in rows
        for finding in map(FINDINGS.__getitem__, row["labels"].split(","))
    ]
    for name, why in sorted(accounted.fixed.unread.items()):
        finding = FINDINGS["topic_not_read"]
        found.append((finding, None, None, f"{name}: {finding.meaning}: {why}"))
    return pa.table(
        {
            "level": pa.array([finding.level for finding, *_ in found], pa.string()),
            "promise": pa.array([finding.promise for finding, *_ in found], pa.string()),
            "finding": pa.array([finding.name for finding, *_ in found], pa.string()),
            "queue_id": pa.array([queue_id for _, queue_id, _, _ in found], pa.int32()),
            "queue_offset": pa.array([queue_offset for _, _, queue_offset, _ in found], pa.int64()),
            "meaning": pa.array([meaning for *_, meaning in found], pa.string()),
        }
    )


def _beside_unread(engine: Engine, answer: Callable[[FixedTables], _Answer], since: datetime | None = None) -> _Answer:
    """What is found of the tables, without those of topics that cannot be read. Raises as `audit_on`."""
    tables = taken(engine, since)
    of_topics = sources(ignore_case=tables.ignores_case)["topics"]
    everything = Question(f"SELECT max(content) AS content, max(batch) AS batch FROM ({of_topics}) AS read")

    def look(topics: Sequence[str]) -> None:
        some = {name: tables.versions[name] for name in topics}
        engine.arrow(engine.query(everything.text, {TOPICS: engine.read_topics(some)}, {}))

    found, _ = beside_unreadable(tables.topics, lambda unread: answer(tables.without_topics(unread)), look)
    return found


def taken(engine: Engine, since: datetime | None = None) -> FixedTables:
    """The tables to audit. Raises as `audit_on`."""
    notes = read_notes(engine)  # before all else: what is noted as published is in its topic then
    fixed = FixedTables.take(engine)
    fixed = replace(fixed, notes=notes, bodies_since=horizon(engine.session, fixed.tables, of=BODIES)).begun_at_horizon(
        MARGIN
    )
    fixed = fixed if since is None else fixed.touched_since(ms_of(since))
    # If some tables exist, a missing one counts as empty: what it should hold is then reported as lost.
    if not set(fixed.versions) & set(SCHEMAS):
        where = fixed.tables.location("half")
        raise SettingsError("there is no such table", where, "run `checkback reconcile` first")
    return fixed


@dataclass(frozen=True)
class _Summary:
    """Of a finding: count, the oldest born (ms), gaps (missing offsets between the first and last of a queue).

    Samples are (queue_id, queue_offset), None where the rows lack it.
    """

    count: int = 0
    oldest: int | None = None
    gaps: int = 0
    samples: tuple[tuple[int | None, int | None], ...] = ()


_NOTHING = _Summary()
#: in place of null, where an aggregate would skip a null
_NONE = -9_000_000_000_000_000_000
_BORN, _OFFSET = (f"coalesce({column}, {_NONE})" for column in ("born", "queue_offset"))
_SUMMARY = f"""
SELECT labels, queue_id, count(*) AS count, count(queue_offset) AS placed, min(born) AS oldest,
    min(queue_offset) AS first, max(queue_offset) AS last,
    min_by({_OFFSET}, ({_BORN}, {_OFFSET}), SAMPLES) AS samples, min_by({_BORN}, ({_BORN}, {_OFFSET}), SAMPLES) AS born
FROM (LABELLED) AS labelled WHERE labels <> '' GROUP BY labels, queue_id
"""


def summary_question(question: Question) -> Question:
    """By labels and queue: how many transactions, the oldest, and the first and last offset. A form of `labelled`."""
    sql = _SUMMARY.replace("SAMPLES", str(SAMPLES)).replace("LABELLED", question.sql)
    return Question(sql, "queue_id, labels", question.values)


def _summary(accounted: BatchAudit, settings: Settings, whole: bool | None) -> dict[str, _Summary]:
    """By name of each finding that occurs. Samples are the oldest.

    Memory does not grow with the number of transactions: a row for each queue and set of findings.
    """
    of_name: dict[str, list[dict[str, Any]]] = {}
    for row in labelled(accounted, settings, summary_question, whole=whole):
        for name in row["labels"].split(","):
            of_name.setdefault(name, []).append(row)
    return {name: _summed(rows) for name, rows in of_name.items()}


def _summed(rows: list[dict[str, Any]]) -> _Summary:
    places = sorted(
        (born, _NONE if row["queue_id"] is None else row["queue_id"], offset)
        for row in rows
        for born, offset in zip(row["born"], row["samples"], strict=True)
    )
    queues: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["placed"]:  # rows without an offset are no gaps
            queues.setdefault(row["queue_id"], []).append(row)
    gaps = sum(
        max(one["last"] for one in of) - min(one["first"] for one in of) + 1 - sum(one["placed"] for one in of)
        for of in queues.values()
    )
    oldest = min((row["oldest"] for row in rows if row["oldest"] is not None), default=None)
    samples = tuple((_known(queue_id), _known(offset)) for _, queue_id, offset in places[:SAMPLES])
    return _Summary(sum(row["count"] for row in rows), oldest, gaps, samples)


def _known(number: int) -> int | None:
    return None if number == _NONE else number
