"""Whether batches acted in the order of what they had read, and checked when it was due: by the tables' versions."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.query.audit.findings import findings_on
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support import batch_order
from support.acted_in_order import out_of_order
from support.stories import BORN, CHECK_MAX, COUNTED, DECIDED, Row, Transaction, batch, checkpoint, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

_SECOND, _MINUTE, _HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
_FOUND = {"pending_overdue", "delivery_overdue"}


@dataclass
class _History:
    """Tables as they are written: what lands, and batches that read all that has landed since the one before."""

    root: Path
    application: str = "query"
    number: int = 0
    versions: dict[str, int] = field(default_factory=lambda: {"half": 0, "op": 0})
    read: dict[str, int] = field(default_factory=lambda: {"half": 0, "op": 0})

    def land(self, *rows: Row) -> None:
        """Each call is a version of each of the tables, which begin with version 1."""
        write(None, Tables.of(_settings(self.root).storage), list(rows))
        for name in {name for name, _ in rows}:
            self.versions[name] += 1

    def batch(self, time: datetime, *rows: Row, told: bool = True, **other: Any) -> None:
        """A batch that has written these rows."""
        counts: dict[str, int] = Counter(COUNTED[row["state"]] for name, row in rows if name == "decisions")
        counts |= {"checks": sum(name == "check_requests" for name, _ in rows)}
        ranges = {
            name: {"from_version": self.read[name], "from_index": -1, "to_version": end + 1, "to_index": -1}
            for name, end in self.versions.items()
        }
        self.read = {name: end + 1 for name, end in self.versions.items()}
        told_of: dict[str, Any] = {"read_ranges": list(ranges.items()) if told else None}
        row = batch(self.number, time, self.application, **{**counts, **told_of, **other})
        whose = [
            (name, values | {"batch_id": self.number, _TIMES.get(name, "published_at"): time}) for name, values in rows
        ]
        write(None, Tables.of(_settings(self.root).storage), [*whose, row])
        self.number += 1

    def rebuilt(self) -> None:
        """The next batch is the first of another checkpoint, which restores what has landed."""
        self.application, self.number = f"{self.application}+", 0
        self.read = {name: end + 1 for name, end in self.versions.items()}

    def found(self) -> set[str]:
        """Of these findings those there are, sorted out or not; and what only tests look for."""
        settings = _settings(self.root)
        with DuckDBEngine(Tables.of(settings.storage)) as engine:
            one, other = (findings_on(engine, settings, whole=whole).to_pylist() for whole in (False, True))
            assert sorted(map(str, one)) == sorted(map(str, other))
        return ({row["finding"] for row in one} & _FOUND) | {name for name, _, _ in out_of_order(settings)}


_TIMES = {"decisions": "decided_at", "discarded": "discarded_at", "check_requests": "requested_at"}


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}})


@pytest.fixture
def history(tmp_path: Path) -> _History:
    return _History(tmp_path)


T = Transaction(3)
_ROLLBACK = T.op("ROLLBACK")
#: an operator's, or a producer's second word
_COMMIT = T.op(store_timestamp=DECIDED - _SECOND)


def test_first_op_was_passed_over_for_a_later_one(history: _History) -> None:
    history.land(T.half(), _ROLLBACK)
    history.batch(DECIDED - _HOUR)
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(), T.published())
    assert history.found() == {"op_passed_over"}


def test_discarded_though_its_op_had_come(history: _History) -> None:
    history.land(T.half(), T.op())
    history.batch(BORN + 2 * _SECOND)
    for number in range(1, CHECK_MAX + 1):
        history.batch(BORN + number * _MINUTE, T.check(number))
    history.batch(DECIDED, T.decision("DISCARD"), T.discarded())
    assert history.found() == {"op_passed_over"}


@pytest.mark.parametrize("ended", [False, True])
def test_checked_though_its_op_had_come(history: _History, ended: bool) -> None:
    history.land(T.half())
    history.batch(BORN + 2 * _SECOND)
    history.land(T.op())
    history.batch(BORN + 3 * _SECOND)
    history.batch(BORN + _MINUTE, T.check(1))
    if ended:
        history.batch(DECIDED, T.decision(check_times=1), T.published())
    assert history.found() == {"op_passed_over"}


def _same_batch(history: _History) -> None:
    history.land(T.half(), _ROLLBACK)
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(), T.published())


def _came_after(history: _History) -> None:
    """By its clock it is the first."""
    history.land(T.half())
    history.batch(BORN + _SECOND)
    history.batch(BORN + _MINUTE, T.check(1))
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(check_times=1), T.published())
    history.land(_ROLLBACK)
    history.batch(DECIDED + _HOUR)


def _waited_in_vain(history: _History) -> None:
    """It was rejected before its half message came; what told of that may be deleted."""
    history.land(T.op())
    history.batch(BORN + 2 * _SECOND)
    history.land(T.half())
    history.batch(BORN + 3 * _SECOND)
    history.batch(BORN + _MINUTE, T.check(1))


def _restored(history: _History) -> None:
    """A batch that a rebuild has finished decided nothing new; the next checkpoint applies the op in its second one."""
    history.land(T.half(), T.op())
    history.batch(BORN + 3 * _SECOND, committed=None, checks=None, discarded=None)
    history.rebuilt()
    history.batch(BORN + _HOUR, T.check(1))
    history.batch(DECIDED, T.decision("DISCARD"), T.discarded())


def _of_another(history: _History) -> None:
    history.land(T.half(), T.op("ROLLBACK", transaction_id="other"), T.op("ROLLBACK", producer_group="pay"))
    history.batch(BORN + 3 * _SECOND)
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(), T.published())


def _no_state(history: _History) -> None:
    history.land(T.half(), T.op("rollback"), T.op("COUNTED", source="check"), T.op("CANCEL", source="operator"))
    history.batch(BORN + 3 * _SECOND)
    history.batch(BORN + _MINUTE, T.check(1))


def _checked_after_the_end(history: _History) -> None:
    """That is another finding."""
    history.land(T.half(), T.op())
    history.batch(BORN + 3 * _SECOND, T.decision(), T.published())
    history.batch(BORN + _MINUTE, T.check(1))


def _not_told(history: _History) -> None:
    """A release that did not say what its batches had read."""
    history.land(T.half(), _ROLLBACK)
    history.batch(DECIDED - _HOUR, told=False)
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(), T.published(), told=False)


def _read_in_part(history: _History) -> None:
    """The batch before has read some files of the op's version."""
    history.land(T.half(), _ROLLBACK)
    ranges = {"from_version": 0, "from_index": -1, "to_version": 2, "to_index": -1}
    part = {"from_version": 0, "from_index": -1, "to_version": 1, "to_index": 0}
    history.batch(DECIDED - _HOUR, read_ranges=[("half", ranges), ("op", part)])
    history.land(_COMMIT)
    rest, none = ({"from_version": 1, "from_index": 0}, {"from_version": 2, "from_index": -1})
    to = {"to_version": 3, "to_index": -1}
    history.batch(DECIDED, T.decision(), T.published(), read_ranges=[("half", none | to), ("op", rest | to)])


def _perhaps_read_before_its_half(history: _History) -> None:
    """The batch that reads the half message begins within the op's version."""
    history.land(T.op())
    none, part = {"from_version": 0, "from_index": -1}, {"to_version": 1, "to_index": 0}
    history.batch(BORN + _SECOND, read_ranges=[("half", none | {"to_version": 1, "to_index": -1}), ("op", none | part)])
    history.land(T.half())
    first, rest = {"from_version": 1, "from_index": -1}, {"from_version": 1, "from_index": 0}
    to = {"to_version": 2, "to_index": -1}
    history.batch(BORN + 2 * _SECOND, read_ranges=[("half", first | to), ("op", rest | to)])
    history.batch(BORN + _MINUTE, T.check(1))


@pytest.mark.parametrize(
    "story",
    [
        *(_same_batch, _came_after, _waited_in_vain, _restored, _of_another, _no_state, _checked_after_the_end),
        *(_not_told, _read_in_part, _perhaps_read_before_its_half),
    ],
)
def test_no_op_was_passed_over(history: _History, story: Callable[[_History], None]) -> None:
    story(history)
    assert history.found() == set()


@pytest.mark.parametrize("after", [_SECOND, _HOUR])
def test_decided_before_its_op(history: _History, after: timedelta) -> None:
    """Its version tells; its clock only which one to look at."""
    history.land(T.half())
    history.batch(DECIDED, T.decision(), T.published())
    history.land(T.op(store_timestamp=DECIDED + after))
    history.batch(DECIDED + 2 * _HOUR)
    assert history.found() == {"decided_before_op"}


@pytest.mark.parametrize("files", [0, 256])
@pytest.mark.parametrize(("after", "found"), [(_MINUTE, set()), (_HOUR, {"decided_before_op"})])
def test_decided_before_its_op_by_the_clock_where_no_version_tells(
    history: _History, monkeypatch: pytest.MonkeyPatch, files: int, after: timedelta, found: set[str]
) -> None:
    """And where there are too many files: then of what is beyond all doubt the versions do tell."""
    monkeypatch.setattr(batch_order, "_FILES", files)
    history.land(T.half())
    history.batch(DECIDED, T.decision(), T.published(), told=files == 0)
    history.land(T.op(store_timestamp=DECIDED + after))
    assert history.found() == found


def _own_and_again(history: _History) -> None:
    history.land(T.half(), T.op())
    history.batch(DECIDED, T.decision(), T.published())
    history.land(T.op(store_timestamp=DECIDED + _HOUR))


def _clock_ahead(history: _History) -> None:
    history.land(T.half(), T.op(store_timestamp=DECIDED + _HOUR))
    history.batch(DECIDED, T.decision(), T.published())
    history.land(T.op(store_timestamp=DECIDED + 2 * _HOUR))


def _message(history: _History) -> None:
    history.land(T.half(committed=True))
    history.batch(DECIDED, T.decision(), T.published())
    history.land(T.op(store_timestamp=DECIDED + _HOUR))


def _batch_clock_was_back(history: _History) -> None:
    history.land(T.half())
    history.batch(DECIDED + 2 * _HOUR)
    history.land(T.op(store_timestamp=DECIDED + _HOUR))
    history.batch(DECIDED, T.decision(), T.published(), told=False)


@pytest.mark.parametrize("story", [_own_and_again, _clock_ahead, _message, _batch_clock_was_back])
def test_not_decided_before_its_op(history: _History, story: Callable[[_History], None]) -> None:
    story(history)
    assert history.found() == set()


def test_compacted_files_tell_nothing_of_the_order(history: _History) -> None:
    history.land(T.half(), _ROLLBACK)
    history.land(replace(T, offset=1).op())
    history.batch(DECIDED - _HOUR)
    DeltaTable(str(history.root / "op")).optimize.compact()
    history.versions["op"] += 1
    history.batch(DECIDED - _MINUTE)
    history.land(_COMMIT)
    history.batch(DECIDED, T.decision(), T.published())
    assert history.found() == set()


def _idle(history: _History, *times: timedelta, **other: Any) -> None:
    """Batches, so long after the birth, that check nothing."""
    for after in times:
        history.batch(BORN + after, **other)


@pytest.mark.parametrize("checks", [0, 1])
@pytest.mark.parametrize("compacted", [False, True])
def test_forgotten_when_batches_had_time_to_spare(history: _History, checks: int, compacted: bool) -> None:
    history.land(T.half())
    history.batch(BORN + _SECOND)
    for number in range(1, checks + 1):
        history.batch(BORN + _MINUTE, T.check(number))
    _idle(history, 3 * _MINUTE, 4 * _MINUTE, 5 * _MINUTE)
    history.land(replace(T, offset=1).half())
    history.batch(BORN + 6 * _MINUTE)
    if compacted:
        DeltaTable(str(history.root / "half")).optimize.compact()
        _idle(history, 7 * _MINUTE, 9 * _MINUTE)
        history.versions["half"] += 1
        _idle(history, 10 * _MINUTE, 11 * _MINUTE, 13 * _MINUTE)
    assert history.found() == {"check_overdue"}


def _due_later(history: _History) -> None:
    history.land(T.half(check_immunity_s=300))
    _idle(history, _SECOND, 3 * _MINUTE, 5 * _MINUTE)


def _checked_since(history: _History) -> None:
    history.land(T.half())
    _idle(history, _SECOND)
    history.batch(BORN + 2.5 * _MINUTE, T.check(1))
    _idle(history, 3 * _MINUTE, 5 * _MINUTE)


def _batches_were_busy(history: _History) -> None:
    """With others: its check may have been deferred."""
    history.land(T.half(), replace(T, offset=1).half())
    _idle(history, _SECOND)
    for number in range(1, 4):
        history.batch(BORN + number * _HOUR, replace(T, offset=1).check(number))
        _idle(history, number * _HOUR + 90 * _SECOND)


def _not_long(history: _History) -> None:
    """A deferred check is tried again within 62 s."""
    history.land(T.half())
    _idle(history, _SECOND, 2 * _MINUTE, 4 * _MINUTE - _SECOND)


def _not_read(history: _History) -> None:
    """It was in the journal of a gateway that stood still."""
    history.land(replace(T, offset=1).half(committed=True))
    history.batch(BORN, replace(T, offset=1).decision())
    _idle(history, _MINUTE, 5 * _MINUTE)
    history.land(T.half())
    history.batch(BORN + 6 * _MINUTE)


def _clock_was_ahead(history: _History) -> None:
    history.land(T.half())
    _idle(history, _HOUR, 3 * _MINUTE, 5 * _MINUTE)


def _counts_unknown(history: _History) -> None:
    history.land(T.half())
    _idle(history, _SECOND, 3 * _MINUTE, 5 * _MINUTE, committed=None, checks=None, discarded=None)


def _rules_unknown(history: _History) -> None:
    history.land(T.half())
    _idle(history, _SECOND, timeout_ms=None)
    _idle(history, 3 * _MINUTE, 5 * _MINUTE)


def _other_rules_once(history: _History) -> None:
    """Those that were in force when it was read count."""
    history.land(T.half())
    _idle(history, _SECOND, timeout_ms=3_600_000)
    _idle(history, 3 * _MINUTE, 5 * _MINUTE)


def _batch_lost(history: _History) -> None:
    history.land(T.half())
    _idle(history, _SECOND, 3 * _MINUTE)
    history.number += 1
    _idle(history, 5 * _MINUTE)


def _ranges_unknown(history: _History) -> None:
    history.land(T.half())
    _idle(history, _SECOND, 3 * _MINUTE, 5 * _MINUTE, told=False)


@pytest.mark.parametrize(
    "story",
    [
        *(_due_later, _checked_since, _batches_were_busy, _not_long, _not_read, _clock_was_ahead, _counts_unknown),
        *(_rules_unknown, _other_rules_once, _batch_lost, _ranges_unknown),
    ],
)
def test_not_forgotten(history: _History, story: Callable[[_History], None]) -> None:
    story(history)
    assert history.found() == set()


_RESTORED = [("half", 1), ("op", 1)]


def test_what_a_rebuild_restores_is_overdue_only_after_a_batch_that_acts(history: _History) -> None:
    """An op, and a delivery: the rebuild's first batch is days later, and does nothing with them."""
    scheduled, day = replace(T, offset=1), timedelta(days=1)
    history.land(T.half(), T.op(), scheduled.half(deliver_at=DECIDED), scheduled.op())
    history.batch(BORN + _MINUTE, scheduled.decision(deliver_at=DECIDED), scheduled=1)
    history.rebuilt()
    history.batch(DECIDED + day, restored_at=_RESTORED)
    checkpoint(history.root, done=DECIDED + day)
    assert history.found() == set()
    history.batch(DECIDED + day + 3 * _MINUTE)
    shutil.rmtree(history.root / "_checkpoints")
    checkpoint(history.root, done=DECIDED + day + 3 * _MINUTE, batch_id=1)
    assert {"pending_overdue", "delivery_overdue"} <= history.found()


def test_deferred_deliveries_are_overdue_only_after_a_batch_that_delivered_none(history: _History) -> None:
    """As `reconcile.max_deliveries` defers them for long (rule 11)."""
    history.land(T.half(deliver_at=DECIDED), T.op())
    history.batch(BORN + _MINUTE, T.decision(deliver_at=DECIDED), scheduled=1)
    history.batch(DECIDED + _HOUR, delivered=1)
    history.batch(DECIDED + _HOUR + _MINUTE)
    assert "delivery_overdue" not in history.found()
    history.batch(DECIDED + _HOUR + 2 * _MINUTE)
    assert "delivery_overdue" in history.found()
