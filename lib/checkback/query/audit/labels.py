"""The names of an audit's findings, transaction by transaction: SQL, asked for some transactions at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages.half import FIRST_PLACE, RESUMED_FROM
from checkback.query.audit.batches import delivered_until, ever_uncounted, restores, rules, rules_values
from checkback.query.audit.conditions import RulesInForce, conditions
from checkback.query.audit.facts import WHO, facts
from checkback.query.audit.ordinary import sort_out, sources
from checkback.query.audit.promises import FINDINGS
from checkback.query.engines.question import Question
from checkback.query.restored_half import restored_half
from checkback.query.versions.batches import epochs
from checkback.reconcile.segment import CHECKS_AT_LEAST
from checkback.storage.checkpoints.checkpoint import Batch
from checkback.storage.horizon import floors, horizon
from checkback.storage.log.snapshot_files import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from concurrent.futures import Future

    from checkback.query.audit.batches import BatchAudit
    from checkback.query.audit.ordinary import Sorted
    from checkback.query.versions.table_versions import FixedTables
    from checkback.settings import Settings

_ORDER = "queue_id, queue_offset, labels"
_USUAL = "SELECT labels, queue_id, queue_offset, born FROM {ordinary}"
_LABELLED = "SELECT '{}' AS labels, queue_id, queue_offset, CAST(NULL AS BIGINT) AS born FROM {{rows}}"
#: as `WHO`, for a fifth of the time
_QUICK = "hash64(coalesce(producer_group, ''), coalesce(transaction_id, ''))"
#: rows whose hashes are in memory at a time, two of 8 bytes each
_SHARE = 10_000_000


def labelled(
    accounted: BatchAudit,
    settings: Settings,
    form: Callable[[Question], Question],
    *,
    figures: bool = True,
    whole: bool | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of a question about the findings of transactions, asked for some of them at a time.

    ``form`` makes the question of one whose rows are labels (names of findings, with commas), queue_id, queue_offset,
    born (ms); without ``figures`` those are left out. ``whole``: without sorting out the ordinary transactions
    (`ordinary`); None: on Spark, which would read the tables twice.
    """
    fixed = accounted.fixed
    engine = fixed.engine
    # A copy of what was published lately may be of any time.
    everything = fixed.everything()
    whole = engine.session is not None if whole is None else whole

    def ask(tables: FixedTables, question: Question, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = engine.arrow(tables.ask(question, more)).to_pylist()
        return found

    expiring = pa.table({"topic": pa.array(fixed.topics_since, pa.string()), "since": [*fixed.topics_since.values()]})
    horizons = {"topic_horizons": engine.keep("topic_horizons", expiring)} if fixed.topics_since else {}

    @cache  # it asks the tables, whichever part is looked at
    def judged_by() -> RulesInForce:
        return _in_force(accounted)

    def behind_horizon() -> Iterator[dict[str, Any]]:
        if fixed.since is not None:
            for name, rows in (("half_back", restored_half(engine)), ("published_twice", _copied_since(everything))):
                yield from ask(everything, form(Question(_LABELLED.format(name), _ORDER)), rows=engine.keep(name, rows))

    if whole:
        looked_at = form(_of_facts(fixed, judged_by(), figures=figures))
        for part in fixed.parts():
            yield from ask(part, looked_at, **horizons)
        yield from ask(everything, form(_repeated(fixed, settings)))
        yield from behind_horizon()
        return
    published = 0
    for part, found in _sorted_out(fixed):
        published += found.published
        if figures:
            yield from ask(part, form(Question(_USUAL)), ordinary=engine.keep("ordinary", found.ordinary))
        if found.others.num_rows:
            looked_at = form(_of_facts(fixed, judged_by(), figures=figures, absent=found.absent))
            for some in part.of(found.others).parts():
                yield from ask(some, looked_at, **horizons)
    twice = _several_times(fixed, published)
    sql = f"{_QUICK} IN (SELECT quick FROM {{twice}})" if twice.num_rows else "FALSE"
    yield from ask(everything, form(_repeated(fixed, settings, sql)), twice=engine.keep("twice", twice))
    yield from behind_horizon()


def _sorted_out(fixed: FixedTables) -> Iterator[tuple[FixedTables, Sorted]]:
    """Part by part, its transactions sorted out, while the next part is read."""
    ahead: tuple[FixedTables, Future[Sorted]] | None = None
    with ThreadPoolExecutor(1) as pool:
        for part in fixed.parts(brief=True):
            rows = {
                name: fixed.engine.arrow(part.ask(Question(sql)))
                for name, sql in sources(ignore_case=fixed.ignores_case, bodies_since=fixed.bodies_since).items()
            }
            before, ahead = ahead, (part, pool.submit(sort_out, rows))
            del rows  # two parts are in memory, not three
            if before is not None:
                yield before[0], before[1].result()
        if ahead is not None:
            yield ahead[0], ahead[1].result()


def _several_times(fixed: FixedTables, rows: int) -> pa.Table:
    """The hashes `_QUICK` that several of the topics' rows, so many, have: quick."""
    if fixed.only is not None:
        return _copies(fixed)
    sql = f"SELECT {_QUICK} AS quick FROM {{topics}} WHERE {_QUICK} % :shares = :share"
    shares = -(-rows // _SHARE)
    twice = []
    for share in range(shares):
        question = Question(sql, values={"shares": shares, "share": share})
        quick = np.sort(fixed.engine.arrow(fixed.ask(question)).column("quick").to_numpy())
        twice.append(np.unique(quick[1:][quick[1:] == quick[:-1]]))
    return pa.table({"quick": pa.array(np.concatenate([np.empty(0, np.int64), *twice]))})


def _copies(fixed: FixedTables) -> pa.Table:
    """The hashes of these transactions' messages that several rows of the topics have, of any transaction: quick."""
    mine = fixed.engine.arrow(fixed.ask(Question(f"SELECT DISTINCT {_QUICK} AS quick FROM {{topics}}")))
    sql = f"""
        SELECT {_QUICK} AS quick FROM {{topics}} WHERE {_QUICK} IN (SELECT quick FROM {{mine}})
        GROUP BY 1 HAVING count(*) > 1"""
    return fixed.engine.arrow(fixed.everything().ask(Question(sql), {"mine": fixed.engine.keep("mine", mine)}))


def _copied_since(fixed: FixedTables) -> pa.Table:
    """queue_id, queue_offset of what was published since the horizon, and has a row from before it in a topic, too.

    Looked for where retention has removed half messages, below their queues' floors: what is published there since is
    little, so that few files of older messages are read.
    """
    engine, place = fixed.engine, "half_queue_id AS queue_id, half_queue_offset AS queue_offset"
    queues = engine.arrow(fixed.ask(Question("SELECT DISTINCT half_queue_id AS queue_id FROM {topics}"))).drop_null()
    below = floors(engine.session, fixed.tables, queues.column("queue_id").to_pylist())
    where = " OR ".join(f"(half_queue_id = {queue} AND half_queue_offset < {at})" for queue, at in below.items())
    found = engine.arrow(fixed.ask(Question(f"SELECT DISTINCT {place} FROM {{topics}} WHERE {where or 'FALSE'}")))
    if not found.num_rows:
        return found
    offsets = pc.min_max(found.column("queue_offset")).as_py()
    within = Span("half_queue_offset", offsets["min"], offsets["max"] + 1)
    before = f"published_at < timestamp_millis({fixed.since}) AND {within.condition}"
    old = engine.read_topics({name: fixed.versions[name] for name in fixed.topics}, before, within)
    sql = f"""
        SELECT queue_id, queue_offset FROM {{copied}} AS c WHERE EXISTS (
            SELECT 1 FROM (SELECT {place} FROM {{old}}) AS o
            WHERE o.queue_id = c.queue_id AND o.queue_offset = c.queue_offset)"""
    return engine.arrow(engine.query(sql, {"copied": engine.keep("copied", found), "old": old}, {}))


def _of_facts(fixed: FixedTables, known: RulesInForce, *, figures: bool, absent: Collection[str] = ()) -> Question:
    """The findings of each transaction: labels (their names, with commas), queue_id, queue_offset, born (ms).

    ``absent``: see `facts`.
    """
    found = conditions(known)
    labels = ", ".join(
        f"CASE WHEN {condition} THEN '{name}' END"
        for name, condition in found.items()
        if figures or FINDINGS[name].level != "figure"
    )
    of_each = facts(
        known.uncounted,
        ignore_case=fixed.ignores_case,
        bodies_since=fixed.bodies_since,
        expiring=bool(fixed.topics_since),
        absent=absent,
    )
    sql = f"""
        WITH {rules(fixed)}, {of_each}
        SELECT concat_ws(',', {labels}) AS labels, queue_id, queue_offset, born FROM facts"""
    return Question(sql, _ORDER, rules_values(fixed))


def _repeated(
    fixed: FixedTables,
    settings: Settings,
    twice: str = f"{_QUICK} IN (SELECT {_QUICK} FROM {{topics}} GROUP BY {_QUICK} HAVING count(*) > 1)",
) -> Question:
    """As `_of_facts`: the first offset of each (producer_group, transaction_id) published under several.

    If these are one discarded message resumed twice, a promise is broken. ``twice``: whether another row has the
    same hash `_QUICK`. Few do: only of these a second hash is taken, which nobody can forge.
    """
    ids = f"""
        SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset, {WHO} AS who
        FROM {{topics}} WHERE {twice}"""
    queues = ", ".join(map(str, _resumed_queues(fixed, settings)))
    origins = f"""
        SELECT half_queue_id AS queue_id, half_queue_offset AS queue_offset,
            coalesce(properties['{FIRST_PLACE}'], properties['{RESUMED_FROM}']) AS who
        FROM {{topics}} WHERE half_queue_id IN ({queues}) AND properties['{RESUMED_FROM}'] IS NOT NULL"""
    sql = f"{_several(ids, 'id_published_twice')} UNION ALL {_several(origins, 'resumed_twice')}"
    return Question(sql, _ORDER)


def _in_force(accounted: BatchAudit) -> RulesInForce:
    fixed, batches = accounted.fixed, accounted.fixed.whole.batches
    done = last_done_batch(fixed)
    acted = done is not None and not restores(fixed, done)
    set_back = np.maximum.accumulate(batches["time"]) - batches["time"]
    known = RulesInForce(
        batch_time=done.time if done is not None and acted else None,
        half_until=fixed.half_read_until() if acted else None,
        delivered_until=delivered_until(fixed),
        set_back=int(set_back.max(initial=0)),
        epochs=epochs(batches),
        past=accounted.past,
        uncounted=ever_uncounted(fixed),
        discarded_since=horizon(fixed.engine.session, fixed.tables, "discarded"),
        floors=_floors(fixed),
    )
    if not len(batches):
        return known
    interval, jitter, max_age, most = (
        int(batches[name][-1]) for name in ("check_interval", "jitter", "max_age", "check_max")
    )
    enough = min(most, CHECKS_AT_LEAST, max_age // max(1, interval) + 1)
    return replace(known, longest=interval + max(0, jitter), enough=enough)


def _floors(fixed: FixedTables) -> dict[int, int]:
    """By half queue, where retention has removed half messages."""
    if fixed.since is None:
        return {}
    rows = fixed.engine.arrow(fixed.ask(Question("SELECT DISTINCT queue_id FROM {op} WHERE queue_id IS NOT NULL")))
    return floors(fixed.engine.session, fixed.tables, rows.column("queue_id").to_pylist())


def _resumed_queues(fixed: FixedTables, settings: Settings) -> list[int]:
    """Half queues of resumed messages: those named in `operations`, and operator.queue of the settings."""
    sql = "SELECT DISTINCT new_queue_id FROM {all_operations} WHERE new_queue_id IS NOT NULL"
    rows = fixed.engine.arrow(fixed.ask(Question(sql, "new_queue_id")))
    return sorted({settings.operator.queue, *rows.column("new_queue_id").to_pylist()})


def _several(rows: str, name: str) -> str:
    """SQL: the first place of each ``who`` that has several. If these are one message resumed, a promise is broken."""
    return f"""
        SELECT '{name}' AS labels, queue_id, queue_offset, CAST(NULL AS BIGINT) AS born FROM (
            SELECT queue_id, queue_offset, row_number() OVER (PARTITION BY who ORDER BY queue_id, queue_offset) AS turn,
                min(queue_id) OVER (PARTITION BY who) <> max(queue_id) OVER (PARTITION BY who)
                    OR min(queue_offset) OVER (PARTITION BY who) <> max(queue_offset) OVER (PARTITION BY who) AS several
            FROM ({rows}) AS named WHERE who IS NOT NULL) AS ordered
        WHERE turn = 1 AND several"""


def last_done_batch(fixed: FixedTables) -> Batch | None:
    """The last completed batch: from the checkpoint, otherwise from `batches`."""
    batches = fixed.whole.batches
    if fixed.logged or not len(batches):
        return fixed.done
    return Batch(int(batches["batch_id"][-1]), int(batches["time"][-1]))
