"""docs/tables.md: every table, from lib/checkback/storage/schemas.py, with its writers."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from checkback.storage.schemas import GROUP_PREFIX, SCHEMAS, TOPIC_PREFIX, properties_of
from checkback.storage.spark_schemas import schema_of
from docs.markdown import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPIC, _GROUP = f"{TOPIC_PREFIX}<topic>", f"{GROUP_PREFIX}<group>"

_HEAD = """# Tables

<!-- Made by `make docs` from lib/checkback/storage/schemas.py: change that. -->

Delta tables, in folders below `storage.root` or in a catalog ([deploy.md](deploy.md)). Times are in UTC. All columns
are nullable. `DESCRIBE TABLE` shows the comments.

Join on (queue_id, queue_offset), which identify a transaction, not on transaction_id, which a producer may reuse.

The checks of a transaction are numbered from 1. `check_times`, RocketMQ's name, is this number in `check_requests` and
`check_answers`; the number of a check that does not count is used again ([checks.md](checks.md#undelivered-checks)). In
`decisions` and `discarded` it is how many checks counted.

## Who may change what

**Rows.** Checkback appends rows and never updates them; neither should you. `maintain` removes old ones
([retention](runbook.md#maintenance)), `erase` empties messages ([erasure](runbook.md#erasure)). Append-only tables
(`delta.appendOnly`) reject UPDATE and DELETE, but not RESTORE: if it removes rows of `half` or `op`, `reconcile` and
`land` stop ([faults.md](faults.md#backups)). The sections of the other tables say what deleting rows does. In local
folders delete with delta-rs (`DeltaTable(path).delete("...")`), or while nothing else runs.

**Columns.** You may add nullable columns without a default, constraint or expression. Checkback leaves them null. A
stream that reads the table stops once and resumes when restarted. `maintain` and `erase` keep their values, also those
of erased messages: empty these yourself; with a nested column they leave the table alone, as below. Keep names, types
and nullability of Checkback's columns, and `delta.dataSkippingStatsColumns` ("Statistics" below).

**Table features.** Clustering, partitions, change data feed, row tracking, column mapping, deletion vectors,
constraints, and columns of type VARIANT or TIMESTAMP_NTZ have a cost:

- `reconcile` and `land` write that table with Spark, which in a local folder is safe only while nothing else commits.
- The gateway ends with an error that names the table.
- Readers without Spark, such as push consumers, may refuse it.
- `maintain` neither compacts it nor removes rows of it; of `half`, `decisions`, `deliveries`, `unpublished`,
  `discarded` or `batches`, nothing of the history. It says so. `erase` refuses messages of such a table.

To undo it, set the property to `false`, drop the constraint, or use `ALTER TABLE ... DROP FEATURE`. Clustering cannot
be undone.

**Properties.** All tables have `delta.checkpointInterval` = `20` and `checkback.format` = `1`. A release refuses a
table of another format, or without one: `CREATE TABLE ... AS SELECT` does not copy the property.

| table | written by |
|---|---|
"""
_COMMON = {"delta.checkpointInterval": "20", "checkback.format": "1"}


class _About(NamedTuple):
    """The description of a table beyond its schema."""

    row: str
    written: str
    deleted: str = ""  #: what deleting rows does; empty = Delta rejects it


ABOUT = {
    "half": _About(
        "a half message, as it landed. Of two rows with the same offset the first counts; the other is in `rejected`.\n"
        "`body` is null where `retention.bodies` has removed it: then the row in the topic, or in `discarded`, has\n"
        "it, while that is kept. Of what was rolled back, or rejected as a repetition of an offset, nothing has it.",
        "`land`, `gateway`, `tx resume`",
    ),
    "op": _About(
        "an op, as it landed: from a producer, a producer's answer to a check, or an operator. A COUNTED row is no op: "
        "it records that a check counts.",
        "`land`, `gateway`, `reconcile` (answers to checks), `tx resolve`",
    ),
    _TOPIC: _About(
        "a committed message of the topic, exactly once. The table is created with its first message. If it cannot be "
        "created or written, messages wait in [`unpublished`](#unpublished).",
        "`reconcile`, `rebuild` (interrupted batch)",
        "the audit reports `commit_not_published`, and a `rebuild` requires `--leave-out` or `--publish-again` "
        "([runbook.md](runbook.md#rebuild)). `retention.topics` removes old messages.",
    ),
    "decisions": _About(
        "the outcome of a transaction. Without a row it is pending. A cancelled message has two: COMMIT, then CANCEL.",
        "`reconcile`, `rebuild` (interrupted batch)",
    ),
    "deliveries": _About(
        "a scheduled message that was published. A COMMIT with `deliver_at`, without such a row or a CANCEL, is still "
        "scheduled.",
        "`reconcile`, `rebuild` (interrupted batch)",
    ),
    "discarded": _About(
        "a discarded or cancelled message, complete with its body.",
        "`reconcile`, `rebuild` (interrupted batch)",
        "the audit reports `discard_not_kept`, the message can no longer be resumed, and a `rebuild` requires "
        "`--leave-out` or `--publish-again`.",
    ),
    "check_requests": _About(
        "a check that came due.",
        "`reconcile`",
        "the check query stops with an error. A `rebuild` counts the remaining rows.",
    ),
    "check_answers": _About(
        "the [outcome](checks.md#what-is-recorded) of a check, including failures.",
        "the check query (in `reconcile`)",
        "`tx describe` shows less. Old rows (`answered_at`) may be deleted.",
    ),
    "rejected": _About(
        "a rejected input, and the reason.",
        "`land`, `reconcile`, `rebuild` (half messages that no batch has read)",
        "reviewed rows may be deleted, except ops (source op, file null) of transactions that are not decided or have "
        "not landed: such an op would seem to decide. The audit warns (`op_not_rejected`, `half_not_rejected`), and a "
        "`rebuild` rejects them again.",
    ),
    "operations": _About(
        "an operator action ([runbook.md](runbook.md#resolve-resume-cancel)).",
        "`tx resolve`, `tx cancel`, `tx resume`, `group` (changes)",
    ),
    "unpublished": _About(
        "a committed message that could not be written to its topic table, and why. A retry that succeeds publishes it "
        "with the retry's batch_id; the row stays, and this table's log records the retry "
        "([runbook.md](runbook.md#checkbackunpublished)).",
        "`reconcile`, `rebuild`",
        "retention and the audit no longer know that a message was published late (`published_in_other_batch`): leave "
        "them to `retention.history`. Deleting those that wait loses messages (`commit_not_published`) until a "
        "`rebuild`.",
    ),
    "batches": _About(
        "a completed batch of `reconcile`, committed last: if the row exists, so do all other rows of the batch, which "
        "carry its batch_id and batch_time.",
        "`reconcile`, `rebuild`",
    ),
    "dead_letters": _About(
        "a message that a consumer group could not consume ([consumer.md](consumer.md)), and why.",
        "consumers",
        "they can no longer be reconsumed.",
    ),
    _GROUP: _About(
        "a member of a consumer group, a subscription, a queue with its position, or a message to be consumed again "
        "([consumer.md](consumer.md#groups)). Each commit replaces all rows; the history is kept for an hour.",
        "consumers, `group` (changes)",
        "the group forgets what they say. Without its QUEUE rows a topic is new to the group, and its retries are "
        "forgotten. Stop the group first.",
    ),
    "ticks": _About(
        "a request for a batch of `reconcile`: timers fire only in a batch, and a batch needs new data.",
        "`reconcile`, `rebuild`",
        "`reconcile` stops with an error, as for `check_requests`.",
    ),
}


def page() -> str:
    """The page. Raises KeyError if a table has no description here."""
    names = ["half", "op", _TOPIC, *(name for name in SCHEMAS if name not in ("half", "op")), _GROUP]
    index = table(("", ""), [(f"[`{name}`](#{_anchor(name)})", ABOUT[name].written) for name in names])
    rows = "\n".join(index.splitlines()[2:])
    return "\n".join([_HEAD + rows, "", *(line for name in names for line in _section(name))])


def _anchor(name: str) -> str:
    return "".join(char for char in name if char.isalnum() or char == "_")


def _section(name: str) -> Iterator[str]:
    about = ABOUT[name]
    yield f"## {name}" if name in SCHEMAS else f"## `{name}`"
    yield ""
    yield prose(f"One row is {about.row}")
    yield ""
    yield table(("column", ""), _columns(name))
    yield ""
    properties = {key: value for key, value in properties_of(name).items() if _COMMON.get(key) != value}
    statistics = properties.pop("delta.dataSkippingStatsColumns", "").replace(",", ", ")
    append_only = properties.pop("delta.appendOnly", None) is not None
    assert append_only == (not about.deleted)
    told = [f"Property `{key}` = `{value}`." for key, value in properties.items()]
    told += [f"Statistics: {statistics}."] if statistics else []
    told += ["Append-only."] if append_only else [f"If rows are deleted: {about.deleted}"]
    yield prose(" ".join(told))
    yield ""


def _columns(name: str) -> Iterator[tuple[str, str]]:
    """A row for each column; neighbours that stand in `half` or the topics with the same words are one row."""
    told = {field.name: field for field in schema_of(name).fields}
    bases = [base for base in ("half", _TOPIC) if base != name and (base, name) != (_TOPIC, "half")]
    homes = {
        key: next((base for base in bases if field in schema_of(base).fields), None) for key, field in told.items()
    }
    for home, keys in groupby(told, lambda key: homes[key]):
        names = [*keys]
        if home is not None and len(names) == len(schema_of(home).fields):
            yield f"all of [`{home}`](#{_anchor(home)})", ""
            continue
        if home is not None and len(names) > 1:
            yield ", ".join(f"`{key}`" for key in names), f"as in [`{home}`](#{_anchor(home)})"
            continue
        for key in names:
            yield f"`{key} {told[key].dataType.simpleString()}`", (told[key].metadata or {})["comment"]
