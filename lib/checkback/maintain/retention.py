"""What of a table must stay, and what may go: pure functions. No I/O, no clock.

A file is needed
- by the table as it is now, and as it was at any time within the retention: the snapshot that was current at the
  beginning of it, and whatever was added since;
- by a stream that stands still: what was added by commits that it has not read, though OPTIMIZE may have replaced it
  since, and, while it reads the snapshot that it began with, that snapshot.

A file younger than the retention stays, whoever wrote it: it may belong to a commit that is yet to come. One that was
added within the retention is that young, give or take SHORTEST_RETENTION from its writing to its commit.

The log stays from a checkpoint on that is not newer than any of these versions, nor than what was current at the
beginning of the log's retention.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.settings.values import SHORTEST_RETENTION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: versions from one old checkpoint to the next: so many commits are read, in a second, to see the table as it was
APART = 1000


@dataclass(frozen=True)
class Reader:
    """A stream's place in a table. ``unread``: first commit that it may still read.

    ``snapshot``: the version with which it begins, and which it may still read; None = it is past that.
    """

    query: str
    unread: int
    snapshot: int | None = None

    @property
    def first(self) -> int:
        """The oldest version that it needs the log of: a start looks at the table as it was before ``unread``, too."""
        return max(0, min(self.unread - 1, self.unread if self.snapshot is None else self.snapshot))


@dataclass(frozen=True)
class Log:
    """What a table's log has: versions of commits and of checkpoints, and when each was written (ms)."""

    commits: Mapping[int, int]
    checkpoints: Mapping[int, int]

    def readable(self) -> int:
        """The oldest version from which on each can be read as a snapshot."""
        newest = max(self.commits)
        if len(self.commits) == newest + 1:
            return 0
        gap = next((version for version in range(newest, -1, -1) if version not in self.commits), 0)
        # A checkpoint stands in for all commits up to its own version.
        return min((version for version in self.checkpoints if version >= gap), default=newest)

    def at(self, time: int) -> int:
        """The version that was current at a time (ms), or an older one where clocks were put back."""
        young = min((version for version, made in self.commits.items() if made > time), default=max(self.commits) + 1)
        return max(young - 1, self.readable())


@dataclass(frozen=True)
class RetentionPlan:
    """What stays: the files of ``snapshots`` and of the newest version, those added by the commit ``added`` and later.

    ``younger``: files written after it (ms). ``log``: commits and checkpoints of this version and later, but for the
    ``checkpoints`` that nobody misses. ``why``: what stays longer than the retention asks for.
    """

    snapshots: frozenset[int]
    added: int
    younger: int
    log: int
    checkpoints: frozenset[int] = frozenset()
    why: tuple[str, ...] = ()


def keep(
    log: Log, readers: Iterable[Reader], now: int, retention: timedelta, log_retention: timedelta
) -> RetentionPlan:
    """What of a table stays. ``now``: ms. Raises ValueError when the retention is shorter than SHORTEST_RETENTION."""
    if min(retention, log_retention) < SHORTEST_RETENTION:
        raise ValueError("the retention is too short")
    newest, oldest = max(log.commits), log.readable()
    readers = list(readers)
    since = log.at(now - _ms(retention))
    begun = {max(oldest, reader.snapshot) for reader in readers if reader.snapshot is not None}
    unread = min((reader.unread for reader in readers), default=newest + 1)
    first = min([since, log.at(now - _ms(log_retention)), *(reader.first for reader in readers)])
    oldest_log = max((version for version in log.checkpoints if version <= first), default=0)
    return RetentionPlan(
        snapshots=frozenset({since, *(version for version in begun if version <= newest)}),
        added=max(unread, min(log.commits)),
        younger=now - _ms(retention) - _ms(SHORTEST_RETENTION),
        log=oldest_log,
        checkpoints=_superfluous(log, oldest_log, now),
        why=tuple(_why(reader) for reader in readers if reader.first < since),
    )


def removable(files: Mapping[str, int], needed: Collection[str], younger: int) -> list[str]:
    """Which files (path -> when it was written, ms) may go: old, and not needed."""
    return sorted(path for path, written in files.items() if written < younger and path not in needed)


def _superfluous(log: Log, oldest: int, now: int) -> frozenset[int]:
    """Checkpoints between the oldest one and those of the last hour: of each APART versions the first is enough."""
    first = kept = max(oldest, log.readable())
    found = set()
    for version, written in sorted(log.checkpoints.items()):
        if version <= first or written > now - _ms(SHORTEST_RETENTION):
            continue
        if version < kept + APART:
            found.add(version)
        else:
            kept = version
    return frozenset(found - {max(log.checkpoints, default=0)})


def _why(reader: Reader) -> str:
    begun = "" if reader.snapshot is None else ", and the rows it began with"
    return f"{reader.query} stands at version {reader.unread}: what was added since{begun}, and the log from there"


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
