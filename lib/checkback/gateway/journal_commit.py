"""Commits half messages and ops to the journal: what both have at a time, in one flush to disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from checkback.gateway.group_commit import closing_thread
from checkback.gateway.health import steady_ms
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.group_commit import Commit, GroupCommit
    from checkback.gateway.journal import Journal


class JournalIntake:
    """Refuses messages while the journal is full, or its disk has no room left for what it has in the tables, too."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: looked at by the flusher, now and then
        self.room = True

    def refusal(self, size: int) -> Problem | None:
        """See group_commit.Intake."""
        if self.room and not self._journal.full(size):
            return None
        detail = f"{self._journal.rows} messages in the journal wait to be committed to the tables; send it again"
        return Problem("journal_full", detail)


async def commit_to_journal(journal: Journal, queues: Sequence[GroupCommit[Any]]) -> None:
    """Commit what is accepted until all queues are closed and empty. While one flush runs, the next gathers."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    for queue in queues:
        queue.came = came
    with closing_thread("journal") as thread:
        while not all(queue.ended for queue in queues):
            came.clear()
            commits = [(queue, commit) for queue in queues if (commit := queue.begin()) is not None]
            if not commits:
                await came.wait()
                continue
            try:
                await loop.run_in_executor(thread, _write, journal, commits)
            except Exception as error:  # noqa: BLE001 - waiting requests must be answered
                for queue, commit in commits:
                    queue.end(commit, error)
            else:
                for queue, commit in commits:
                    queue.end(commit)


def _write(journal: Journal, commits: Sequence[tuple[GroupCommit[Any], Commit[Any]]]) -> None:
    journal.append([one for queue, commit in commits for one in queue.target.records(commit.prepared)], steady_ms())
