"""docs/tables.md: every table, from lib/checkback/storage/schemas.py, and who has to do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX, properties_of, schema_of
from docs.markdown import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPIC = f"{TOPIC_PREFIX}<topic>"

_HEAD = """# Tables

<!-- Made by `make docs` from lib/checkback/storage/schemas.py: change that. -->

Delta tables, in folders below `storage.root` or in a catalog ([deploy.md](deploy.md)). Times are TIMESTAMPs, UTC. Every
column may be null by its type; what is always there is said by the rules ([protocol.md](protocol.md)). The comments are
in the tables, too: `DESCRIBE TABLE` shows them.

A transaction is (queue_id, queue_offset) of its half message: join by these two, not by transaction_id, which a
producer may use twice.

## Who may change what

Rows are appended, and that is all that Checkback does. An update is never right: what is written is what happened.
`half`, `op`, `decisions`, `operations` and `batches` are `delta.appendOnly`: Delta itself refuses UPDATE and DELETE,
but not delta-rs's RESTORE: rows of `half` or `op` that it takes away end `reconcile` and `land`
([faults.md](faults.md)). Of the others, each section says what becomes of it when rows are deleted. In local folders
delete with delta-rs (`DeltaTable(path).delete("...")`), or while nothing else is at work: Spark's commits there are
safe in one JVM only.

Columns of your own may be added: `ALTER TABLE ... ADD COLUMN`, nullable, without a default, a constraint or an
expression. Checkback leaves them null, and in local folders it appends as before; a stream that reads the table ends
once, and goes on when it is run again. `maintain` then no longer makes the table's small files few. A column of
Checkback's own must stay as it is: its name, its type, and that it may be null. After any other change (clustering,
partitions, change data feed, row tracking, column mapping, deletion vectors, constraints) files cannot be appended as
they are: `reconcile` and `land` write that table by Spark, which in a local folder is safe only while nothing else
commits to it, and the gateway ends with a line that names the table.

Small files, old files and old log entries are another matter, and no row's: [maintain.md](maintain.md).

| table | written by | read by |
|---|---|---|
"""


class _About(NamedTuple):
    """What the schema does not say of a table."""

    row: str
    written: str
    read: str
    deleted: str


_APPEND_ONLY = "Delta refuses it."
ABOUT = {
    "half": _About(
        "a half message, as it landed. Of two rows with one place the first counts, the other is in `rejected`.",
        "`land`, `gateway`, `resume`",
        "`reconcile` (a stream, and to publish), `land`, `gateway`, checks with a body, `rebuild`, all that looks",
        _APPEND_ONLY,
    ),
    "op": _About(
        "an op, as it landed: of a producer, of a producer's answer to a check, of an operator.",
        "`land`, `gateway`, `reconcile` (answers to checks), `resolve`",
        "`reconcile` (a stream), `gateway`, `rebuild`, all that looks",
        _APPEND_ONLY,
    ),
    _TOPIC: _About(
        "a committed message of the real topic, once. The table is made with the topic's first message. If it cannot "
        "be made or written, its messages wait in [`unpublished`](#unpublished).",
        "`reconcile`, `rebuild` (what a batch left half done)",
        "consumers, `audit`, `lineage`, `rebuild`",
        "The audit says `commit_not_published`, and a `rebuild` asks whether to publish it again, because its decision "
        "says COMMIT ([checkpoint.md](checkpoint.md)). Copy what you want short-lived into a table of your own.",
    ),
    "decisions": _About(
        "how a transaction ended. No row: it is pending.",
        "`reconcile`, `rebuild` (what a batch left half done)",
        "`gateway`, the check query, `rebuild`, `resolve`, `resume`, all that looks",
        _APPEND_ONLY,
    ),
    "discarded": _About(
        "a message that was given up, whole.",
        "`reconcile`, `rebuild` (what a batch left half done)",
        "`resume`, `audit`, `lineage`, `rebuild`",
        "The audit says `discard_not_kept`, the message cannot be resumed any more, and a `rebuild` asks whether to "
        "put it back.",
    ),
    "check_requests": _About(
        "a check that came due.",
        "`reconcile`",
        "the check query (a stream), `gateway`, `rebuild`, `resolve`, all that looks",
        "The check query stops with an error: Delta's streams refuse a source that rows were deleted from. A `rebuild` "
        "counts the checks anew.",
    ),
    "check_answers": _About(
        "what came of a check, whatever it was.",
        "the check query (in `reconcile`)",
        "the check query, `pending`, `status`, `lineage`, notebooks",
        "Old rows (`answered_at`) may go. What looks back (`lineage`, `check_outcomes`) then knows less; nothing is "
        "decided by it.",
    ),
    "rejected": _About(
        "an input that could not be taken, and why.",
        "`land`, `reconcile`",
        "`land` (a batch that is replayed), `audit`, `lineage`, `rebuild`",
        "Rows may go when somebody has looked at them. The audit then warns of an op or half message that is not in "
        "`rejected` (`op_not_rejected`, `half_not_rejected`), and a `rebuild` rejects such ops once more.",
    ),
    "operations": _About(
        "what an operator did ([operate.md](operate.md)).",
        "`resolve`, `resume`",
        "`resolve`, `resume`, `lineage`",
        _APPEND_ONLY,
    ),
    "unpublished": _About(
        "a committed message that its topic's table could not take, and why. Once it is published late it is in the "
        "topic, too, as a row of the batch that did it: what is in no topic still waits ([operations.md](operations.md#"
        "checkbackunpublished)).",
        "`reconcile`, `rebuild`",
        "`reconcile`, `rebuild`, `status`, `audit`, `lineage`",
        "What is in its topic by now may go, once the batch that published it is done. What is not would be lost: "
        "the audit says `commit_not_published`, and only a `rebuild` publishes it.",
    ),
    "batches": _About(
        "a batch of `reconcile`, written last: when it is there, all other rows of the batch are. (batch_id, "
        "batch_time) of it stand in the rows that the batch wrote.",
        "`reconcile`, `rebuild`",
        "`audit`, `as_of` and `snapshot`, `rebuild`",
        _APPEND_ONLY,
    ),
    "ticks": _About(
        "a request for a batch of `reconcile`: timers fire only in a batch, and a batch needs a new row.",
        "`reconcile`, `rebuild`",
        "`reconcile` (a stream)",
        "`reconcile` stops with an error, as for `check_requests`. A row is 8 bytes: leave them.",
    ),
}


def page() -> str:
    """The page. Raises KeyError when a table has no words here."""
    names = ["half", "op", _TOPIC, *(name for name in SCHEMAS if name not in ("half", "op"))]
    index = table(
        ("", "", ""), [(f"[`{name}`](#{_anchor(name)})", ABOUT[name].written, ABOUT[name].read) for name in names]
    )
    rows = "\n".join(index.splitlines()[2:])
    return "\n".join([_HEAD + rows, "", *(line for name in names for line in _section(name))])


def _anchor(name: str) -> str:
    return "".join(char for char in name if char.isalnum() or char == "_")


def _section(name: str) -> Iterator[str]:
    about = ABOUT[name]
    yield f"## {name}" if name != _TOPIC else f"## `{name}`"
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
