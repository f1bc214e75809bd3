"""Commits that have taken rows out of `half` or `op`, which only grow: RESTORE does, append-only or not.

A batch of `reconcile` is refused if such a commit is among those since the batch before it (`seen_commits`),
and then has no row in `batches` of its own. So of each application's batches the last ones tell up to where it is
known that there is none: only the other commits are looked at, those before the first batch, during a rebuild and
since.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from checkback.query.engines.question import Question
from checkback.query.versions.batches import BatchFault
from checkback.query.versions.table_versions import ALL
from checkback.storage.checkpoints.seen_commits import removals
from checkback.storage.files.object_store import is_registered
from checkback.storage.log.commit_reader import CommitReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkback.query.versions.table_versions import FixedTables

#: the finding of each table
FOUND = {"half": "half_rows_removed", "op": "op_rows_removed"}
#: most commits of a table that are looked at, the newest first; in an object store each is a request
_MOST, _MOST_REQUESTS = 10_000, 32


def removed_rows(fixed: FixedTables, most: int) -> dict[str, BatchFault]:
    """By finding: the number of commits, and the first ones as samples, up to ``most``: version, when it was made (ms).

    Nothing for tables in a catalog: only Spark can read their logs. Raises StorageError.
    """
    tables = fixed.tables
    if not tables.readable:
        return {}
    looked_at = _MOST_REQUESTS if is_registered(tables.root) else _MOST
    found, batches = {}, _seen(fixed)
    for name, finding in FOUND.items():
        if name in fixed.versions:
            newest = fixed.versions[name]
            seen = [(row[f"{name}_first"], row[f"{name}_last"]) for row in batches if row[f"{name}_last"] is not None]
            versions = removals(tables, name, list(islice(unseen(newest, seen), looked_at)))
            commits = CommitReader(tables.location(name), 0, newest)
            samples = tuple((version, commits.made_at(version)) for version in versions[:most])
            found[finding] = BatchFault(len(versions), samples)
    return found


def _seen(fixed: FixedTables) -> list[dict[str, Any]]:
    """By application the last versions of each table that the first and the last of its batches have read."""
    columns = []
    for name in FOUND:
        read = f"read_ranges['{name}']"
        last = f"{read}['to_version'] - CASE WHEN {read}['to_index'] < 0 THEN 1 ELSE 0 END"
        columns += [f"CAST(min({last}) AS BIGINT) AS {name}_first", f"CAST(max({last}) AS BIGINT) AS {name}_last"]
    # A row without counts is of a rebuild: its batch may have been refused.
    sql = f"""
        SELECT application, {", ".join(columns)}
        FROM {{{ALL}batches}} WHERE committed IS NOT NULL GROUP BY application"""
    found: list[dict[str, Any]] = fixed.engine.arrow(fixed.ask(Question(sql, "application"))).to_pylist()
    return found


def unseen(newest: int, seen: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The versions up to ``newest`` outside of the spans ``seen``, the newest first. Pure.

    A span is after its first version, up to its second.
    """
    gaps, end = [], newest
    for least, most in sorted(seen, key=lambda span: -span[1]):
        gaps.append(range(end, most, -1))
        end = min(end, least)
    return chain(*gaps, range(end, -1, -1))
