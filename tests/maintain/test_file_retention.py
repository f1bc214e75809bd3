"""What may go: nothing that somebody can still read. A table's whole history is made up, then every reader tries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from checkback.maintain.file_retention import APART, Log, Reader, keep, removable

HOUR = 3_600_000
RETENTION, LOG_RETENTION = timedelta(hours=24), timedelta(hours=48)
DAY = 24 * HOUR
#: what a file waits from its writing to its commit, and clocks differ by
LATE = HOUR


@dataclass
class History:
    """A table's commits. ``added``, ``removed``: files, by version; ``data``: did the commit add rows?"""

    times: list[int] = field(default_factory=list)
    added: list[set[str]] = field(default_factory=list)
    removed: list[set[str]] = field(default_factory=list)
    data: list[bool] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)

    def snapshot(self, version: int) -> set[str]:
        """The files that the table consisted of."""
        alive: set[str] = set()
        for number in range(version + 1):
            alive = (alive - self.removed[number]) | self.added[number]
        return alive


def history(random: Random, commits: int) -> History:
    """Appends, and now and then an OPTIMIZE; checkpoints; files that nobody has committed; times may stand still."""
    made = History()
    time = 0
    for version in range(commits):
        time += random.choice([0, 1, 60_000, HOUR, 9 * HOUR])
        alive = sorted(made.snapshot(version - 1)) if version else []
        optimize = len(alive) > 2 and random.random() < 0.3
        old = set(random.sample(alive, random.randrange(2, len(alive) + 1))) if optimize else set()
        new = {f"{version}-{number}" for number in range(1 if optimize else random.randrange(4))}
        for name in new:
            made.written[name] = time - random.randrange(LATE)
        made.times.append(time)
        made.added.append(new)
        made.removed.append(old)
        made.data.append(not optimize)
        if version and random.random() < 0.2:
            made.checkpoints.append(version)
    for number in range(random.randrange(4)):
        made.written[f"orphan-{number}"] = random.randrange(time + 1)
    return made


def readers_of(random: Random, newest: int) -> list[Reader]:
    """Streams that have begun, stand still, or have read all."""
    made = []
    for name in "ab"[: random.randrange(3)]:
        version = random.randrange(newest + 1)
        begun = random.choice([None, random.randrange(version + 1)])
        made.append(random.choice([Reader(name, version), Reader(name, version, version), Reader(name, newest + 1)]))
        made[-1] = replace(made[-1], begun=begun)
    return made


@given(
    st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 5 * DAY), st.floats(0, 1), st.none() | st.integers(0, 40)
)
def test_nothing_goes_that_somebody_can_still_read(
    seed: int, commits: int, waited: int, cut: float, most: int | None
) -> None:
    random = Random(seed)
    made = history(random, commits)
    newest = commits - 1
    now = made.times[-1] + waited
    # Somebody may have cleaned up before us: the log begins with a checkpoint.
    begins = next((version for version in reversed(made.checkpoints) if version < cut * commits), 0)
    log = Log(
        {version: made.times[version] for version in range(begins, commits)},
        {version: made.times[version] for version in made.checkpoints if version >= begins},
    )
    readers = [reader for reader in readers_of(random, newest) if reader.log >= begins]

    stays = keep(log, readers, now, RETENTION, LOG_RETENTION, most)

    def among_the_newest(version: int) -> bool:
        return most is None or version >= newest - most or version == newest or made.times[version + 1] > now - HOUR

    needed = made.snapshot(newest).union(*(made.snapshot(version) for version in stays.snapshots))
    needed |= {name for version in range(stays.added, commits) if made.data[version] for name in made.added[version]}
    gone = set(removable(made.written, needed, stays.younger))
    cutoff = now - DAY

    assert not gone & made.snapshot(newest)
    for name in gone:
        assert made.written[name] < cutoff
    for reader in readers:
        for version in range(reader.unread, commits):
            if made.data[version]:
                assert not gone & made.added[version], (reader, version)
        if reader.snapshot is not None:
            assert not gone & made.snapshot(reader.snapshot)
    for version in range(begins, commits):
        if among_the_newest(version) and (version == newest or made.times[version + 1] > cutoff):
            assert not gone & made.snapshot(version), "a state within the retention"

    log_left = [version for version in log.commits if version >= stays.log]
    bases = {version for version in log.checkpoints if version >= stays.log and version not in stays.checkpoints}
    for version in range(begins, commits):
        current_within = version == newest or made.times[version + 1] > now - 2 * DAY
        if (among_the_newest(version) and current_within) or any(reader.log <= version for reader in readers):
            base = max((base for base in bases if base <= version), default=0)
            assert base or begins == 0, "a snapshot needs a checkpoint, or the log from its beginning"
            assert version - base < 2 * APART
            assert set(range(base + 1 if base else 0, version + 1)) <= {*log_left}


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_what_nobody_needs_goes(seed: int, commits: int) -> None:
    """Long after the last commit, with all read: only the newest files stay."""
    made = history(Random(seed), commits)
    log = Log(dict(enumerate(made.times)), {version: made.times[version] for version in made.checkpoints})
    stays = keep(log, [Reader("a", commits)], made.times[-1] + 10 * DAY, RETENTION, LOG_RETENTION)
    needed = made.snapshot(commits - 1).union(*(made.snapshot(version) for version in stays.snapshots))
    gone = set(removable(made.written, needed, stays.younger))
    assert set(made.written) - gone == made.snapshot(commits - 1)
    assert stays.log == max(made.checkpoints, default=0)
    assert stays.why == ()


def test_of_old_checkpoints_few_stay_and_of_young_ones_all() -> None:
    commits = dict.fromkeys(range(5001), 0) | {5000: 10 * DAY}
    log = Log(commits, {version: 0 if version < 4900 else 10 * DAY for version in range(20, 5001, 20)})
    stays = keep(log, [Reader("a", 10)], 10 * DAY, RETENTION, LOG_RETENTION)
    assert stays.log == 0
    left = set(log.checkpoints) - stays.checkpoints
    assert left == {1000, 2000, 3000, 4000, *range(4900, 5001, 20)}


def test_why_names_the_stream_and_its_place() -> None:
    log = Log({version: version * HOUR for version in range(100)}, {})
    stays = keep(log, [Reader("reconcile", 7), Reader("check", 99)], 100 * HOUR, RETENTION, LOG_RETENTION)
    assert stays.why == ("reconcile stands at version 7: what was added since, and the log from there",)


@pytest.mark.parametrize("retentions", [(timedelta(minutes=59), LOG_RETENTION), (RETENTION, timedelta(0))])
def test_less_than_an_hour_is_refused(retentions: tuple[timedelta, timedelta]) -> None:
    with pytest.raises(ValueError, match="too short"):
        keep(Log({0: 0}, {}), [], 0, *retentions)
