"""Which files of a table and its log must be kept, and which may be removed: pure functions. No I/O, no clock.

A data file is needed
- by the current table, and by time travel within the retention: the snapshot that was current at its beginning, and
  everything added since;
- by a stream that lags or is stopped: files added by commits that it has not read, even if OPTIMIZE has replaced
  them since, and, while it still reads its initial snapshot, that snapshot.

A file younger than the retention is kept, whoever wrote it: it may belong to a commit still to come. Files added within
the retention are that young, allowing SHORTEST_RETENTION between the writing of a file and its commit.

The log is kept from a checkpoint on that is not newer than any of these versions, nor than the version current at the
beginning of the log's retention. A log of more commits than `most_commits` keeps fewer, and time travel ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.settings.values import SHORTEST_RETENTION
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: Commits that the log of a table of Checkback's own keeps: in a folder, whoever opens a table lists them. A gateway
#: makes two a second. Topics' tables keep theirs for the log's retention: other people's streams go on from them.
MOST_COMMITS = 20_000
#: versions between old checkpoints: time travel replays at most this many commits, which takes a second
APART = 1000


@dataclass(frozen=True)
class Reader:
    """A stream's position in a table. ``unread``: first commit that it may still read.

    ``snapshot``: the version of its initial snapshot, if it may still read that; None = it is past that. ``begun``:
    where its last completed batch began, None = with the table: on start Spark lists that batch's commits once more
    (MicroBatchExecution.populateStartOffsets), but reads none of its files.
    """

    query: str
    unread: int
    snapshot: int | None = None
    begun: int | None = None

    @property
    def first(self) -> int:
        """The oldest version whose files it needs: on start it also reads the snapshot before ``unread``."""
        return max(0, min(self.unread - 1, self.unread if self.snapshot is None else self.snapshot))

    @property
    def log(self) -> int:
        """The oldest version whose log it needs."""
        return self.first if self.begun is None else max(0, min(self.first, self.begun - 1))


@dataclass(frozen=True)
class Log:
    """A table's log: versions of commits and checkpoints, and when each was written (ms)."""

    commits: Mapping[int, int]
    checkpoints: Mapping[int, int]

    def readable(self) -> int:
        """The oldest version from which on every snapshot can be read."""
        newest = max(self.commits)
        if len(self.commits) == newest + 1:
            return 0
        gap = next((version for version in range(newest, -1, -1) if version not in self.commits), 0)
        # A checkpoint replaces all commits up to its version.
        return min((version for version in self.checkpoints if version >= gap), default=newest)

    def at(self, time: int) -> int:
        """The version that was current at a time (ms), or an older one if clocks were set back."""
        young = min((version for version, made in self.commits.items() if made > time), default=max(self.commits) + 1)
        return max(young - 1, self.readable())


@dataclass(frozen=True)
class RetentionPlan:
    """What is kept: the files of ``snapshots`` and of the newest version, and those added in commit ``added`` or later.

    ``younger``: files written after it (ms). ``log``: commits and checkpoints of this version and later, except the
    superfluous ``checkpoints``. ``why``: what is kept beyond the retention.
    """

    snapshots: frozenset[int]
    added: int
    younger: int
    log: int
    checkpoints: frozenset[int] = frozenset()
    why: tuple[str, ...] = ()


def most_commits(name: str) -> int | None:
    """How many commits a table's log keeps, besides those that a stream of ours needs; None = no limit."""
    return None if name.startswith(TOPIC_PREFIX) else MOST_COMMITS


def keep(
    log: Log,
    readers: Iterable[Reader],
    now: int,
    retention: timedelta,
    log_retention: timedelta,
    most: int | None = None,
) -> RetentionPlan:
    """What to keep of a table. ``now``: ms. ``most``: commits.

    Raises ValueError if a retention is shorter than SHORTEST_RETENTION.
    """
    if min(retention, log_retention) < SHORTEST_RETENTION:
        raise ValueError("the retention is too short")
    newest, oldest = max(log.commits), log.readable()
    readers = list(readers)
    since, back = log.at(now - _ms(retention)), log.at(now - _ms(log_retention))
    if most is not None:  # besides those of the last hour
        least = min(newest - most, log.at(now - _ms(SHORTEST_RETENTION)))
        since, back = max(since, least), max(back, least)
    begun = {max(oldest, reader.snapshot) for reader in readers if reader.snapshot is not None}
    unread = min((reader.unread for reader in readers), default=newest + 1)
    first = min([since, back, *(reader.log for reader in readers)])
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
    """The files (path -> when it was written, ms) that may be removed: old, and not needed."""
    return sorted(path for path, written in files.items() if written < younger and path not in needed)


def _superfluous(log: Log, oldest: int, now: int) -> frozenset[int]:
    """Checkpoints after the oldest and before the last hour, except for the first in every APART versions."""
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
