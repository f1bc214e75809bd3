"""Histories in real tables, read without Spark: what the tables say is what the records say."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from checkback import Checkback
from checkback.cli import main
from checkback.errors import SettingsError
from checkback.settings import Settings
from checkback.storage.timestamps import time_of
from checkback.what_if.comparison import Figures, compare, total
from checkback.what_if.plot import changes_table, groups_table, plot
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER, RECORDED, State
from checkback.what_if.replayed_tables import replay
from checkback.what_if.timeline import Cadence
from support.query_times import append, table
from what_if.lake import write
from what_if.test_replay import LATE, LATE_TIMES

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.reconcile.records.segment_records import Records
    from checkback.what_if.timeline import Timeline

pytestmark = pytest.mark.slow

_SIZE = 4


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"segment_size": _SIZE}})


def _late(*queues: int) -> dict[tuple[int, int], Records]:
    """A transaction discarded before its COMMIT came, in each of these queues."""
    return {(queue, 0): np.array(list(LATE), RECORDED) for queue in queues}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write(tmp_path, LATE_TIMES, _late(0, 7))
    return tmp_path


def _of_records(timeline: Timeline, segments: dict[tuple[int, int], Records], **changes: Any) -> Figures:
    needs = np.full(len(timeline), NEVER)
    for rows in segments.values():
        np.minimum(needs, Recorded.of(rows, timeline).needs, out=needs)
    changed, cadence = timeline.under(changes), Cadence.of(timeline, needs)
    parts = [compare(rows, n * _SIZE, _SIZE, timeline, changed, cadence) for (_, n), rows in segments.items()]
    return total(figures for part in parts for figures in part.figures.values())


@pytest.mark.parametrize("changes", [{}, {"check_max": 1}, {"check_max": 3}, {"timeout": 30_000}])
def test_tables_say_what_the_records_say(tables: Path, changes: dict[str, Any]) -> None:
    found = replay(_settings(tables), changes)
    assert repr(found.total) == repr(_of_records(LATE_TIMES, _late(0, 7), **changes))
    assert (found.total.recorded.transactions, found.total.not_reproduced) == (2, 0)


def test_only_what_landed_since_then(tables: Path) -> None:
    """The half messages landed at 0 s."""
    assert replay(_settings(tables), {}, since=time_of(0)).total.recorded.transactions == 2
    assert replay(_settings(tables), {}, since=time_of(1)).total.recorded.transactions == 0


def test_batch_in_progress_is_as_if_it_were_not_there(tables: Path) -> None:
    """Its rows are there, its row in `batches` is not: the transaction is pending as of the last whole one."""
    row = {"queue_id": 0, "queue_offset": 9, "transaction_id": "t7", "producer_group": "g1", "real_topic": "payments"}
    landed = time_of(140_000)
    append(tables, "half", [row | {"born_timestamp": landed, "store_timestamp": landed}])
    after = {"check_times": 1, "requested_at": time_of(200_000), "batch_id": 6}
    append(tables, "check_requests", [row | after])
    found = replay(_settings(tables), {}).total
    assert found.recorded.states == {"DISCARD": 2, "PENDING": 1}
    assert found.not_reproduced == 0


def test_what_an_unknown_batch_decided_is_left_out(tables: Path) -> None:
    """As where `batches` has lost rows."""
    row = {"queue_id": 0, "queue_offset": 9, "transaction_id": "t7", "producer_group": "g1", "real_topic": "payments"}
    append(tables, "half", [row | {"born_timestamp": time_of(0), "store_timestamp": time_of(0)}])
    append(tables, "check_requests", [row | {"check_times": 1, "requested_at": time_of(500), "batch_id": 77}])
    assert replay(_settings(tables), {}).total.recorded.transactions == 2


def test_hostile_rows_harm_nothing(tables: Path) -> None:
    """Without a place, a name or a time, of nobody, or with numbers at the edge."""
    names: dict[str, Any] = {"transaction_id": "\u202e'; DROP", "producer_group": "g\x1b[31m", "real_topic": "payments"}
    nothing = dict.fromkeys(("queue_id", "queue_offset"))
    edge = {"queue_id": 2**31 - 1, "queue_offset": 2**63 - 1}
    landed = {"born_timestamp": time_of(0), "store_timestamp": time_of(0)}
    append(tables, "half", [nothing | names | landed, edge | names, edge | names | landed | {"delay_ms": 2**62}])
    append(tables, "half", [{**edge, "queue_offset": -1}, {**edge, **names, **landed, "check_immunity_s": 2**31 - 1}])
    op = {"queue_id": 2**31 - 1, "queue_offset": 2**63 - 1, "producer_group": "g\x1b[31m"}
    append(tables, "op", [op, op | {"state": "COMMIT", "remark": "check 99999999999"}, op | {"queue_offset": None}])
    found = replay(_settings(tables), {"check_max": 3})
    assert found.groups["g1"].saved == 2
    assert found.total.not_reproduced <= 1


def test_without_rules_it_says_what_to_do(tmp_path: Path) -> None:
    table(tmp_path, "half")
    with pytest.raises(SettingsError, match="no batch has recorded its rules; run `checkback reconcile`"):
        replay(_settings(tmp_path), {})


def test_a_setting_that_is_no_rule_is_refused(tables: Path) -> None:
    with pytest.raises(SettingsError, match=r"check\.timeout: is no rule; rules are transaction\.timeout, "):
        Checkback(settings=_settings(tables)).what_if({"check.timeout": "3s"})


def test_command_tells_who_would_have_been_saved(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--set", f"storage.root={tables}", "--set", "reconcile.segment_size=4"]
    assert main(["what-if", *root, "--set", "transaction.check_max=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("transaction.check_max 2 -> 3; 6 batches from 1970-01-01 00:00:01 to ")
    (row,) = (line.split() for line in lines if line.startswith("0/0"))
    assert row[:8] == ["0/0", "t7", "g1", "1970-01-01", "00:00:00", "DISCARD", "2.1m", "2"]
    assert row[8:] == ["COMMIT", "2.5m", "3", "(1", "assumed)"]
    assert "about 2 discarded transactions would have been saved, 0 others discarded" in lines[-3]
    assert lines[-1].endswith("the replay comes to what happened for 2 of 2 transactions")
    assert main(["what-if", *root, "--set", "transaction.check_max=0"]) == 2


def test_notebook_has_tables_and_a_figure(tables: Path) -> None:
    found = Checkback(settings=_settings(tables)).what_if(
        {"transaction.check_max": 3, "transaction.timeout": "7s"}, "1970-01-01T00:00"
    )
    assert (found.total.saved, found.until - found.since) == (2, timedelta(seconds=150))
    assert groups_table(found).frame["saved"].tolist() == ["2"]
    assert changes_table(found).frame["what if"].tolist() == [State.COMMIT.name] * 2
    assert plot(found)._repr_png_().startswith(b"\x89PNG")
    nothing = Checkback(settings=_settings(tables)).what_if({}, "1970-01-01T00:01")
    assert plot(nothing)._repr_png_().startswith(b"\x89PNG")
