"""docs/tables.md: every table, from lib/checkback/storage/schemas.py, with its writers and readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.storage.schemas import GROUP_PREFIX, SCHEMAS, TOPIC_PREFIX, properties_of
from checkback.storage.spark_schemas import schema_of
from docs.markdown import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPIC, _GROUP = f"{TOPIC_PREFIX}<topic>", f"{GROUP_PREFIX}<group>"

_HEAD = """# Tables

<!-- Made by `make docs` from lib/checkback/storage/schemas.py: change that. -->

Delta tables, in folders below `storage.root` or in a catalog ([deploy.md](deploy.md)). Times are TIMESTAMPs, UTC. All
columns are nullable; the protocol ([protocol.md](protocol.md)) guarantees which ones are set. The column comments are
also in the tables: `DESCRIBE TABLE` shows them.

A transaction is identified by (queue_id, queue_offset) of its half message: join on these two, not on transaction_id,
which a producer may reuse.

## Who may change what

Checkback only appends rows. Never update them: they record what happened. `half`, `op`, `decisions`, `deliveries`,
`operations` and `batches` are `delta.appendOnly`: Delta rejects UPDATE and DELETE, but not delta-rs's RESTORE: if it
removes rows of `half` or `op`, `reconcile` and `land` stop ([faults.md](faults.md)). For the other tables, each section
states the effect of deleting rows. In local folders delete with delta-rs (`DeltaTable(path).delete("...")`), or while
nothing else runs: Spark's commits there are safe within one JVM only. The Arrow types of the files that remain do not
matter (delta-rs rewrites text as views): Checkback reads text, binary, maps and times of any of them.

You may add columns: `ALTER TABLE ... ADD COLUMN`, nullable, without a default, a constraint or an expression, of any
name and of a type that needs no table feature: Checkback does not read them. It leaves them null, and in local folders
it appends as before; a stream that reads the table stops once, and resumes when restarted. `maintain` then no longer
compacts the table. Checkback's own columns must keep their names, types and nullability. Leave
`delta.dataSkippingStatsColumns` as it is: deltalake's datasets skip files without statistics of a column named there.

A column of type VARIANT or TIMESTAMP_NTZ adds a feature that only some readers understand: `checkback topic consume`
and the push consumers of that topic then stop with "the table has a feature that only a Delta reader understands";
Spark (`checkback.consumer.read_stream`) still reads it. After this or any other change (clustering, partitions, change
data feed, row tracking, column mapping, deletion vectors, constraints) files cannot be appended unchanged: `reconcile`
and `land` write that table with Spark, which in a local folder is safe only while nothing else commits to it, and the
gateway stops with an error that names the table.

To undo it, set the property back to `false`, or drop the constraint: the change data feed and constraints are then no
obstacle, though the protocol keeps them. Other features need Spark's `ALTER TABLE ... DROP FEATURE` (`rowTracking`
then `domainMetadata`); what it leaves of some, `checkpointProtection`, disturbs only `maintain`, which leaves the table
alone. Clustering cannot be undone.

The property `checkback.format` is the format of the table. A release refuses a table of another format, or without it:
use the release that made it. A copy that was made with SQL (`CREATE TABLE ... AS SELECT`) lacks the property: set it
with `ALTER TABLE ... SET TBLPROPERTIES`.

Compaction, vacuum and log cleanup are covered in [runbook.md](runbook.md#maintenance).

| table | written by | read by |
|---|---|---|
"""


class _About(NamedTuple):
    """The description of a table beyond its schema."""

    row: str
    written: str
    read: str
    deleted: str


_APPEND_ONLY = "Delta rejects it."
ABOUT = {
    "half": _About(
        "a half message, as it landed. Of two rows with the same offset the first counts, the other is in `rejected`.",
        "`land`, `gateway`, `tx resume`",
        "`reconcile` (a stream, and to publish), `land`, `gateway`, checks with a body, `rebuild`, all inspection",
        _APPEND_ONLY,
    ),
    "op": _About(
        "an op, as it landed: from a producer, from a producer's answer to a check, or from an operator.",
        "`land`, `gateway`, `reconcile` (answers to checks), `tx resolve`",
        "`reconcile` (a stream), `gateway`, `rebuild`, all inspection",
        _APPEND_ONLY,
    ),
    _TOPIC: _About(
        "a committed message of the real topic, exactly once. The table is created with the topic's first message. If "
        "it cannot be created or written, its messages wait in [`unpublished`](#unpublished).",
        "`reconcile`, `rebuild` (for an interrupted batch)",
        "consumers, `audit`, `tx describe`, `rebuild`",
        "The audit reports `commit_not_published`, and a `rebuild` requires `--leave-out` or `--publish-again`, "
        "because their decision is COMMIT ([runbook.md](runbook.md#rebuild)). For a shorter retention, copy the "
        "messages into a table of your own.",
    ),
    "decisions": _About(
        "the outcome of a transaction. Without a row it is pending. A scheduled message that was cancelled has two: "
        "COMMIT, and later CANCEL.",
        "`reconcile`, `rebuild` (for an interrupted batch)",
        "`gateway`, the check query, `rebuild`, `tx resolve`, `tx resume`, all inspection",
        _APPEND_ONLY,
    ),
    "deliveries": _About(
        "a scheduled message that was published. A COMMIT with `deliver_at` and without such a row or a CANCEL is "
        "still scheduled.",
        "`reconcile`, `rebuild` (for an interrupted batch)",
        "`rebuild`, `tx cancel`, all inspection",
        _APPEND_ONLY,
    ),
    "discarded": _About(
        "a discarded or cancelled message, complete with its body.",
        "`reconcile`, `rebuild` (for an interrupted batch)",
        "`tx resume`, `audit`, `tx describe`, `rebuild`",
        "The audit reports `discard_not_kept`, the message can no longer be resumed, and a `rebuild` "
        "requires `--leave-out` or `--publish-again`.",
    ),
    "check_requests": _About(
        "a check that came due.",
        "`reconcile`",
        "the check query (a stream), `gateway`, `rebuild`, `tx resolve`, all inspection",
        "The check query stops with an error: Delta's streaming source rejects deletes. A `rebuild` recounts the "
        "checks from the remaining rows.",
    ),
    "check_answers": _About(
        "the outcome of a check, including failures.",
        "the check query (in `reconcile`)",
        "the check query, `tx list`, `status`, `tx describe`, notebooks",
        "Old rows (`answered_at`) may be deleted. History (`tx describe`, `check_outcomes`) then shows less; no "
        "decision depends on it, and checks go on.",
    ),
    "rejected": _About(
        "a rejected input, and the reason.",
        "`land`, `reconcile`, `rebuild` (half messages that no batch has read)",
        "`land` (for a replayed batch), `gateway`, `tx resolve`, `rebuild`, all inspection",
        "Rows may be deleted once reviewed, but for ops (source op, file null) of transactions that are not decided, "
        "or have not come yet: without its row such an op is taken for one that decides. The gateway then answers the "
        "producer's next one without storing it, and `tx resolve` is refused. The audit warns of an op or half message "
        "that is not in `rejected` (`op_not_rejected`, `half_not_rejected`), and a `rebuild` rejects them again.",
    ),
    "operations": _About(
        "an operator action ([runbook.md](runbook.md#resolve-resume-cancel)).",
        "`tx resolve`, `tx cancel`, `tx resume`, `group` (changes)",
        "`tx resolve`, `tx resume`, `tx describe`",
        _APPEND_ONLY,
    ),
    "unpublished": _About(
        "a committed message that could not be written to its topic table, and why. A retry that succeeds adds it "
        "to the topic table with the retry's batch_id; the row stays here, and the table's log notes that it is "
        "published. A row that is not noted, and in no topic table, still waits "
        "([runbook.md](runbook.md#checkbackunpublished)); one that is noted, and in none, was lost there.",
        "`reconcile`, `rebuild`",
        "`reconcile`, `rebuild`, `status`, `audit`, `tx describe`",
        "Rows that have been published to their topic table may be deleted once the batch that published them is "
        "complete. Deleting others loses messages: the audit reports `commit_not_published`, and only a `rebuild` "
        "publishes them.",
    ),
    "batches": _About(
        "a completed batch of `reconcile`, committed last: if the row exists, so do all other rows of the batch. They "
        "carry its batch_id and batch_time.",
        "`reconcile`, `rebuild`",
        "consumers, `audit`, `as_of` and `snapshot`, `rebuild`",
        _APPEND_ONLY,
    ),
    "dead_letters": _About(
        "a message that a consumer group could not consume ([consumer.md](consumer.md)), and why.",
        "consumers",
        "`group reconsume`, `group describe`",
        "They can no longer be consumed again.",
    ),
    _GROUP: _About(
        "a member of a consumer group, a topic that it subscribes, a queue with its position, or a message that is to "
        "be consumed again ([consumer.md](consumer.md#groups)). Each commit replaces all rows; the history is kept for "
        "an hour.",
        "consumers, `group` (changes)",
        "consumers, `group list`, `status`",
        "The group forgets what they say. Without its rows QUEUE a topic is new to the group. Stop the group first.",
    ),
    "ticks": _About(
        "a request for a batch of `reconcile`: timers fire only in a batch, and a batch needs new data.",
        "`reconcile`, `rebuild`",
        "`reconcile` (a stream)",
        "`reconcile` stops with an error, as for `check_requests`. A row is 8 bytes: leave them.",
    ),
}


def page() -> str:
    """The page. Raises KeyError if a table has no description here."""
    names = ["half", "op", _TOPIC, *(name for name in SCHEMAS if name not in ("half", "op")), _GROUP]
    index = table(
        ("", "", ""), [(f"[`{name}`](#{_anchor(name)})", ABOUT[name].written, ABOUT[name].read) for name in names]
    )
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
    columns = [
        (f"`{field.name}`", f"`{field.dataType.simpleString()}`", (field.metadata or {})["comment"])
        for field in schema_of(name).fields
    ]
    yield table(("column", "type", ""), columns)
    yield ""
    kept = ", ".join(f"`{key}` = `{value}`" for key, value in properties_of(name).items())
    yield prose(f"Properties: {kept}.")
    yield ""
    yield prose(f"If rows are deleted: {about.deleted}")
    yield ""
