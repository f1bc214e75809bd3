"""Half messages and ops go to the journal: what both have at a time, in one flush to disk, while it has room."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from checkback.errors import StorageError
from checkback.gateway.health import steady_ms
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.gateway.journal.group_commit import Commit
    from checkback.gateway.journal.journal import Journal

_log = logging.getLogger("checkback.gateway")


class JournalIntake:
    """Refuses messages while the journal is full, or its disk has no room left for what it has in the tables, too."""

    def __init__(self, journal: Journal, hurry: Callable[[], None]) -> None:
        """``hurry`` is called while the journal is at least half full."""
        self._journal = journal
        self._hurry = hurry
        self._shortage: str | None = None
        self._taking = True
        self.look()

    def look(self) -> Problem | None:
        """Look at the disk, now and then; why nothing is taken. The log says when that begins, and when it ends."""
        self._shortage = self._journal.shortage()
        refusal = self.refusal(0)
        if refusal is not None and self._taking:
            why = self._shortage or f"{self._journal.rows} messages in it wait for the tables"
            fix = "make room there: until then every message is refused (503 journal_full)"
            _log.warning("the journal takes no messages: %s", StorageError(why, self._journal.path, fix))
        elif refusal is None and not self._taking:
            _log.warning("the journal takes messages again: %s", self._journal.path)
        self._taking = refusal is None
        return refusal

    def refusal(self, size: int) -> Problem | None:
        """See group_commit.Intake."""
        if self._journal.half_full:
            self._hurry()
        if self._shortage is not None:
            return Problem("journal_full", f"the journal takes no messages: {self._shortage}; send it again")
        if not self._journal.full(size):
            return None
        detail = f"{self._journal.rows} messages in the journal wait to be committed to the tables; send it again"
        return Problem("journal_full", detail)


def to_journal(journal: Journal) -> Callable[[Sequence[Commit[Any]]], None]:
    """For `drive`: append to the journal what the commits have, in one flush to disk."""

    def write(commits: Sequence[Commit[Any]]) -> None:
        journal.append([one for commit in commits for one in commit.target.records(commit.prepared)], steady_ms())

    return write
