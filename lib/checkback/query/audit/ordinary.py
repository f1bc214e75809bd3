"""Transactions that took one of the usual courses, recognized in bulk: the audit need not look closer at them.

`facts` computes some sixty facts of each transaction, which takes many times as long as reading the tables. Most
transactions have one half message, one op of their own, one decision that says the same, one row in their topic with
the same content, and nothing else: then that alone tells the findings. All others go through the facts.

An ordinary transaction is one of which the facts could give no findings but those of its course. Therefore each
comparison here is the one of `rules`: of contents by the same hashes, of names by the names themselves; whatever
is out of the ordinary about a row, if only that a value is missing, makes the transaction one that is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.query.audit.facts import COMMITS, OF_HALF, OF_TOPIC, ROLLBACKS, STATE_BITS, batch_of, content, topic_of
from checkback.reconcile.records.segment_records import find

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

#: Places that the index may have for each row, besides some for all: offsets follow one another, mostly.
_SPARSE, _SPARE = 8, 1024
KEY = ["queue_id", "queue_offset"]


class HalfIndex:
    """An index of ``half``: rows with queue_id and queue_offset, both possibly null."""

    def __init__(self, half: pa.Table) -> None:
        known = half.select(KEY).drop_null()
        self._queues = known.column("queue_id").unique()
        offsets = known.column("queue_offset").to_numpy()
        self._least, self._most = (int(offsets.min()), int(offsets.max())) if len(offsets) else (0, -1)
        self._width = self._most - self._least + 1
        self._offsets = self._keys = None
        if self._width * len(self._queues) > _SPARSE * len(offsets) + _SPARE:
            self._offsets = np.unique(offsets)
            self._width = len(self._offsets)
            self._keys = np.unique(self._numbered(known))
        places = self._places(half)
        self._rows = np.full(self._width * len(self._queues) if self._keys is None else len(self._keys), -1)
        self._rows[places[places >= 0]] = np.flatnonzero(places >= 0)

    def find(self, rows: pa.Table) -> Numbers:
        """Of each row the number of a half message with its queue_id and queue_offset; -1: there is none."""
        places = self._places(rows)
        if not len(self._rows):
            return places
        return np.where(places >= 0, self._rows[places], -1)

    def _places(self, rows: pa.Table) -> Numbers:
        """The place of each row in `_rows`; -1: it has none."""
        numbers = self._numbered(rows)
        return numbers if self._keys is None else _ranks(numbers, self._keys)

    def _numbered(self, rows: pa.Table) -> Numbers:
        """A number for each queue id and offset; -1: no half message has it."""
        queue = pc.index_in(rows.column("queue_id"), value_set=self._queues).fill_null(-1).to_numpy().astype(np.int64)
        column = rows.column("queue_offset")
        offset, there = column.fill_null(0).to_numpy(), column.is_valid().to_numpy()
        if self._offsets is None:
            there &= (offset >= self._least) & (offset <= self._most)
            offset = offset - self._least
        else:
            offset = _ranks(offset, self._offsets)
            there &= offset >= 0
        return np.where(there & (queue >= 0), queue * self._width + offset, -1)


def _ranks(values: Numbers, of: Numbers) -> Numbers:
    """The place of each value in the sorted ``of``; -1: it is not there."""
    at, known = find(of, values)
    return np.where(known, at, -1)


_NAMES = ("producer_group", "transaction_id")
#: by table, the names that it has of a half message
_NAMED = {"op": _NAMES, "decisions": (*_NAMES, "real_topic")}
#: tables of which an ordinary transaction has no row
_OTHERS = ("unpublished", "check_requests", "deliveries", "discarded")
_SAID = "state IN ('COMMIT', 'ROLLBACK')"
#: ms
_NEVER = np.iinfo(np.int64).max
#: findings of an ordinary transaction
_LABELS = ("halves,published", "halves,rolled_back", "halves,pending")


class Sorted(NamedTuple):
    """``ordinary``: labels, queue_id, queue_offset, born (ms). ``others``: queue_id, queue_offset, each once.

    ``published``: rows of the topics. ``absent``: tables, and `topics`, that have no row of ``others``.
    """

    ordinary: pa.Table
    others: pa.Table
    published: int
    absent: frozenset[str] = frozenset()


def sources(*, ignore_case: bool, bodies_since: int | None = None) -> dict[str, str]:
    """SQL of the rows that `sort_out` takes: queue_id and queue_offset of each, and what an ordinary one tells.

    half: usual, born and landed (ms), content, names; op, decisions: state (bits, null = out of the ordinary), names
    (`_NAMED`); op: landed; decisions: decided (ms); decisions and topics: batch (hash); topics: content. An ordinary
    transaction has none of ``others``. What is in `rejected` of one with these rows alone means
    nothing. It reads the tables and `topics`, as `facts.facts`. ``bodies_since``: as `facts.content`.
    """
    of_half, of_message = (
        # Of two erased messages nothing is compared: they are alike.
        f"coalesce({content(*columns, ignore_case=ignore_case, bodies_since=bodies_since)}, CAST(0 AS BIGINT))"
        for columns in (OF_HALF, OF_TOPIC)
    )
    at_once = "delay_ms IS NULL AND deliver_at IS NULL AND NOT coalesce(committed, FALSE)"
    # A COMMIT from before 1970 would be due by its delay of 0 (rule 10).
    decided = f"{_SAID} AND deliver_at IS NULL AND coalesce(unix_millis(decided_at) >= 0, FALSE)"
    names = ", ".join(_NAMES)
    of_topic_too = f"{names}, {topic_of('real_topic', ignore_case=ignore_case)} AS real_topic"
    plain = ", ".join(KEY)
    of_topic = "half_queue_id AS queue_id, half_queue_offset AS queue_offset"
    others = [f"SELECT {plain}, {number} AS source FROM {{{name}}}" for number, name in enumerate(_OTHERS[1:], 1)]
    return {
        "half": f"""SELECT {plain}, {at_once} AS usual, unix_millis(least(born_timestamp, store_timestamp)) AS born,
            unix_millis(store_timestamp) AS landed, {of_half} AS content,
            {of_topic_too} FROM {{half}}""",
        "op": f"""SELECT queue_id, queue_offset, {_state(_SAID)}, {names},
            unix_millis(store_timestamp) AS landed FROM {{op}}""",
        "decisions": f"""SELECT {plain}, {_state(decided)}, {of_topic_too}, {batch_of("decided_at")} AS batch,
            unix_millis(decided_at) AS decided FROM {{decisions}}""",
        "topics": f"""SELECT {of_topic}, {of_message} AS content,
            {batch_of("published_at")} AS batch FROM {{topics}}""",
        "others": " UNION ALL ".join([f"SELECT {of_topic}, 0 AS source FROM {{{_OTHERS[0]}}}", *others]),
    }


def _state(usual: str) -> str:
    return f"CAST(CASE WHEN {usual} THEN {STATE_BITS} END AS BIGINT) AS state"


def sort_out(rows: Mapping[str, pa.Table]) -> Sorted:
    """The transactions of rows as `sources` gives them. Pure."""
    half = rows["half"].combine_chunks()
    index = HalfIndex(half)
    found = {name: index.find(table) for name, table in rows.items()}
    own = found["half"]
    usual = _flags(half.column("usual")) & (own == np.arange(len(own)))
    usual[_these(own, own != np.arange(len(own)))] = False  # several half messages
    usual[_these(found["others"])] = False
    said = {name: _said(rows[name].combine_chunks(), found[name], half, usual, of) for name, of in _NAMED.items()}
    published = _published(rows["topics"], found["topics"], half, usual)
    usual &= said["op"] == said["decisions"]
    decided, out = (_batches(rows[name], found[name], len(usual)) for name in ("decisions", "topics"))
    usual &= (~published | (decided == out)) & ~_late({**rows, "half": half}, found)
    course = np.full(len(own), -1)
    course[usual & published & ((said["op"] & COMMITS) != 0)] = 0
    course[usual & ~published & ((said["op"] & ROLLBACKS) != 0)] = 1
    course[usual & ~published & (said["op"] == 0)] = 2
    strange = [half.filter(pa.array(course < 0))]
    strange += [table.filter(pa.array(found[name] < 0)) for name, table in rows.items()]
    labels = pa.array(_LABELS).take(pa.array(course, mask=course < 0))
    ordinary = half.select([*KEY, "born"]).append_column("labels", labels).filter(pa.array(course >= 0))
    others = pa.concat_tables(table.select(KEY) for table in strange)
    taken = np.append(course >= 0, False)  # -1: there is no half message
    absent = {name for name in (*_NAMED, "topics") if taken[found[name]].all()}
    sources = pc.unique(rows["others"].column("source")).to_pylist()
    absent |= {name for number, name in enumerate(_OTHERS) if number not in sources}
    return Sorted(ordinary, others.group_by(KEY).aggregate([]), len(found["topics"]), frozenset(absent))


def _late(rows: Mapping[str, pa.Table], found: Mapping[str, Numbers]) -> Flags:
    """Whether by the clocks a half message or an op of it landed after a decision. Unknown times are such."""
    half, op, decisions = (rows[name] for name in ("half", "op", "decisions"))
    own, of_op = found["half"], found["op"]
    count = len(half) + 1  # -1: there is no half message
    first_decided = np.full(count, _NEVER)
    np.minimum.at(first_decided, found["decisions"], _filled(decisions, "decided", _NEVER))
    late = np.zeros(count, np.bool_)
    late[own[_filled(half, "landed", _NEVER) > first_decided[own]]] = True
    late[of_op[_filled(op, "landed", 0) > first_decided[of_op]]] = True
    return late[:-1]


def _filled(rows: pa.Table, name: str, unknown: int) -> Numbers:
    numbers: Numbers = rows.column(name).fill_null(unknown).to_numpy()
    return numbers


def _said(rows: pa.Table, found: Numbers, half: pa.Table, usual: Flags, names: Sequence[str]) -> Numbers:
    """Of each half message the state that its only row here says, 0 = none. Not ``usual``: one with any other rows."""
    state = rows.column("state").fill_null(0).to_numpy()
    same = state != 0
    for name in names:
        same &= _flags(pc.equal(rows.column(name), _beside(half.column(name), found)))
    usual[_these(found, ~same)] = False
    usual[_several(found, len(usual))] = False
    said = np.zeros(len(usual), np.int64)
    said[_these(found)] = state[found >= 0]
    return said


def _published(topics: pa.Table, found: Numbers, half: pa.Table, usual: Flags) -> Flags:
    """Whether a half message is in a topic. Not ``usual``: it is there twice, or with other content."""
    same = topics.column("content").to_numpy() == half.column("content").to_numpy()[found] if len(half) else found >= 0
    usual[_these(found, ~same)] = False
    usual[_several(found, len(usual))] = False
    published = np.zeros(len(usual), np.bool_)
    published[_these(found)] = True
    return published


def _batches(rows: pa.Table, found: Numbers, count: int) -> Numbers:
    """Of each half message the batch of its only row here."""
    batches = np.zeros(count, np.int64)
    batches[_these(found)] = rows.column("batch").to_numpy()[found >= 0]
    return batches


def _beside(column: pa.ChunkedArray, found: Numbers) -> pa.ChunkedArray:
    """The values of the half messages of some rows; null where there is none."""
    if len(found) == len(column) and (found == np.arange(len(found))).all():
        return column
    return column.take(pa.array(found, mask=found < 0))


def _these(found: Numbers, which: Flags | None = None) -> Numbers:
    """The numbers of the half messages of some rows."""
    return found[found >= 0] if which is None else found[which & (found >= 0)]


def _several(found: Numbers, count: int) -> Flags:
    """Of each half message whether several rows are its."""
    return np.bincount(_these(found), minlength=count) > 1


def _flags(column: pa.ChunkedArray) -> Flags:
    """The values; null is false."""
    flags: Flags = column.fill_null(False).to_numpy()
    return flags
