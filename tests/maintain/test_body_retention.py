"""Retention of bodies: `half` loses those that others have and nothing else, and all who read it go on."""

from __future__ import annotations

import base64
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.gateway.health import now_ms
from checkback.maintain.row_retention import RowRetention
from checkback.query.audit.findings import audit_on
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.horizon import BODIES, horizon
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from gateway.process import half as sent
from gateway.process import rows as gateway_rows
from gateway.services import SlowHistory, code, half_sent, with_service
from maintain.fixtures import files_of, maintained, rows_of
from maintain.test_row_retention import HORIZON, Killed, _kill_at, figures, lake, settings_of
from support.examples import fewer
from support.stories import DONE, Row, Transaction, batch, checkpoint, in_batches, ms, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService
    from checkback.query.audit.findings import Report

pytestmark = pytest.mark.slow

LASTING = timedelta(days=10)
SINCE = DONE - LASTING
#: bytes of a body: in the files of a test the rest is some thousand
SIZE = 1024
OTHERS = ("decisions", "op", "discarded", "unpublished", "topics/a")


def both_audits(settings: Settings) -> list[Report]:
    """Ordinary transactions sorted out, and each looked at."""
    with DuckDBEngine(Tables.of(settings.storage)) as engine:
        return [audit_on(engine, settings, whole=whole) for whole in (False, True)]


def halves(root: Path) -> dict[int, dict[str, object]]:
    return {int(str(row["queue_offset"])): row for row in rows_of(root, "half")}


def empty(row: dict[str, object]) -> bool:
    return row["body"] is None


def tamper(root: Path, offset: int, **values: str) -> None:
    DeltaTable(f"{root}/topics/a").update(updates=values, predicate=f"half_queue_offset = {offset}")


@fewer(25)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from([None, "30d"]))
def test_bodies_of_what_has_ended_go_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, seed: int, number: int, history: str | None
) -> None:
    """Those that are owed stay; the audits find nothing but what is tampered with; a second run rewrites nothing."""
    root = tmp_path_factory.mktemp("tables")
    ends = lake(root, seed, number, SIZE)
    settings = settings_of(root, history=history, bodies="10d")
    maintained(settings_of(root, history=history), ms(DONE))  # whatever goes with the history
    before, others = halves(root), {name: rows_of(root, name) for name in OTHERS if (root / name).is_dir()}
    promised = maintained(settings, ms(DONE), dry_run=True)["half"]
    assert halves(root) == before
    done = maintained(settings, ms(DONE))["half"]
    after = halves(root)
    assert {offset: row | {"body": None} for offset, row in after.items()} == {
        offset: row | {"body": None} for offset, row in before.items()
    }
    emptied = {offset for offset, row in after.items() if empty(row)}
    over = {offset for offset in after if (end := ends[offset]) is not None and end < SINCE}
    assert emptied <= over
    assert all(after[offset] == before[offset] for offset in after.keys() - emptied)
    assert len(over - emptied) <= len(after.keys() - over)
    assert done.emptied_bodies == promised.emptied_bodies == len(emptied)
    assert (done.emptied_bytes or 0) >= len(emptied) * SIZE // 2
    assert {name: rows_of(root, name) for name in others} == others
    assert horizon(None, Tables.of(settings.storage), of=BODIES) == (ms(SINCE) if emptied else None)
    for report in both_audits(settings):
        assert not report.broken, figures(report)
        assert report.bodies_since == (ms(SINCE) if emptied else None)
    files = files_of(root, "half")
    run = RowRetention.by_files(
        Tables.of(settings.storage), settings, ["half", "decisions", "batches"], ms(DONE), False
    )
    again = run.run()
    assert (again["half"].bodies, files_of(root, "half")) == (0, files)
    published = {int(str(row["half_queue_offset"])) for row in others.get("topics/a", ())} & emptied
    judged = {offset for offset in published if history is None or (ends[offset] or DONE) >= HORIZON}
    for offset in sorted(judged)[:1]:
        tamper(root, offset, tags="'other'")
        assert all(figures(report)["published_differs"] == 1 for report in both_audits(settings))


def committed(*days: float, first: int = 0) -> list[Row]:
    """Rows of transactions that were published so many days ago."""
    rows: list[Row] = []
    for offset, ago in enumerate(days, first):
        t = Transaction(0, offset, DONE - timedelta(days=ago), Random(offset).randbytes(SIZE))
        at = t.born + timedelta(minutes=30)
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    return rows


def written(root: Path, rows: Iterable[Row], *each: str) -> Settings:
    """Settings, and the tables with these rows, a file each of the tables ``each``."""
    found, done = in_batches(list(rows))
    settings = settings_of(root, bodies="10d")
    alone = [row for row in found if row[0] in each]
    for some in (*([row] for row in alone), [row for row in found if row[0] not in each]):
        write(None, Tables.of(settings.storage), some)
    checkpoint(root, batch_id=done)
    return settings


def test_body_that_was_changed_is_found_since_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, the topic has the only one; the audit says since when they are compared."""
    settings = written(tmp_path, committed(20, 14, 8, 2), "half")
    maintained(settings, ms(DONE))
    assert [empty(row) for _, row in sorted(halves(tmp_path).items())] == [True, True, False, False]
    tamper(tmp_path, 0, body="X'00'")
    assert not any(report.broken for report in both_audits(settings))
    told = f"bodies of what landed before {SINCE:%Y-%m-%dT%H:%M:%S.000Z} are not compared (retention.bodies)"
    assert main(["audit", "--set", f"storage.root={tmp_path}"]) == 0
    assert told in capsys.readouterr().out
    tamper(tmp_path, 2, body="X'00'")
    assert all(figures(report)["published_differs"] == 1 for report in both_audits(settings))
    tamper(tmp_path, 0, tags="'other'")
    assert all(figures(report)["published_differs"] == 2 for report in both_audits(settings))


def test_file_is_rewritten_once_half_of_its_bodies_are_over(tmp_path: Path) -> None:
    """And again for half of the rest."""
    settings = written(tmp_path, committed(*range(20, 0, -2)))
    seen = []
    for days in range(-4, 14, 2):
        files = files_of(tmp_path, "half")
        later = DONE + timedelta(days=days)
        write(None, Tables.of(settings.storage), [batch(100 + days, later)])
        maintained(settings, ms(later))
        seen.append((sum(empty(row) for row in rows_of(tmp_path, "half")), files != files_of(tmp_path, "half")))
    younger = [(5, True), (5, False), (5, False), (8, True), (9, True), (10, True), (10, False)]
    assert seen == [(0, False), (0, False), *younger]


@pytest.mark.parametrize("made", [False, True])
def test_run_that_breaks_off_is_continued(tmp_path: Path, made: bool) -> None:
    """Before or after the commit, which empties and says so."""
    settings = written(tmp_path, committed(20, 14, 8, 2), "half")
    with pytest.MonkeyPatch.context() as patch:
        _kill_at(patch, 0, made)
        with pytest.raises(Killed):
            maintained(settings_of(tmp_path, history=None, bodies="10d"), ms(DONE))
    assert sum(map(empty, rows_of(tmp_path, "half"))) == (2 if made else 0)
    assert not any(report.broken for report in both_audits(settings))
    maintained(settings, ms(DONE))
    assert sum(map(empty, rows_of(tmp_path, "half"))) == 2


def test_bodies_stay_while_a_retry_is_compared() -> None:
    """As the history does."""
    settings = Settings.model_validate({"retention": {"bodies": "1h"}, "gateway": {"dedup_window": "100h"}})
    assert settings.bodies() == timedelta(hours=100)
    settings = Settings.model_validate({"retention": {"bodies": "1h"}, "transaction": {"max_age": "50h"}})
    assert settings.bodies() == timedelta(hours=50)
    assert Settings().bodies() is None


def test_longer_retention_does_not_take_it_back(tmp_path: Path) -> None:
    """What is said does not recede; nothing goes before its time."""
    settings = written(tmp_path, committed(20, 14, 8, 2), "half")
    maintained(settings, ms(DONE))
    longer = settings_of(tmp_path, bodies="13d")
    write(None, Tables.of(settings.storage), committed(11, first=4))
    maintained(longer, ms(DONE))
    assert horizon(None, Tables.of(settings.storage), of=BODIES) == ms(SINCE)
    assert [empty(row) for _, row in sorted(halves(tmp_path).items())] == [True, True, False, False, False]


def test_discarded_message_is_resumed_with_its_body(tmp_path: Path) -> None:
    """It is in `discarded`."""
    t = Transaction(0, 0, DONE - timedelta(days=20), Random(1).randbytes(SIZE))
    at = t.born + timedelta(minutes=30)
    kept = t.discarded(discarded_at=at)
    settings = written(tmp_path, [t.half(), *t.checks(), t.decision("DISCARD", decided_at=at), kept])
    maintained(settings, ms(DONE))
    assert [row["body"] for row in rows_of(tmp_path, "half")] == [None]
    resume = ["tx", "resume", "--set", f"storage.root={tmp_path}", "--actor", "a", "--reason", "r", "--yes", "--all"]
    assert main(resume) == 0
    assert sorted((row["body"] or b"" for row in rows_of(tmp_path, "half")), key=str) == [b"", t.body]


def test_dry_run_says_what_would_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, committed(20, 20, 20, 20))
    run = ["maintain", "--dry-run", "--set", f"storage.root={tmp_path}", "--set", "retention.bodies=10d"]
    assert main(run) == 0
    assert "4 bodies (4.1 KB) of `half`" in capsys.readouterr().out
    assert not any(map(empty, rows_of(tmp_path, "half")))


def test_retry_of_what_has_no_body_is_the_same_message(tmp_path: Path) -> None:
    """A gateway that remembers for longer than `maintain` knows of: it cannot compare, and lands nothing again."""
    answers: list[Answer] = []
    body = base64.b64encode(Random(1).randbytes(SIZE)).decode()

    async def act(running: GatewayService, _: SlowHistory) -> None:
        answers.extend(await running.halves.take([half_sent(sent(body=body))], None))

    with_service(tmp_path, act, dedup_window="10m", dedup_max=100)
    (landed,) = gateway_rows(tmp_path, "half")
    at = time_of(now_ms() + 1)
    key = {name: landed[name] for name in ("queue_id", "queue_offset", "transaction_id", "producer_group")}
    over: Any = key | {"real_topic": "a", "state": "COMMIT", "source": "producer", "decided_at": at, "batch_id": 0}
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "retention": {"bodies": "1d"}})
    late = at + timedelta(days=20)
    write(None, Tables.of(settings.storage), [("decisions", over), batch(0, at, committed=1), batch(1, late)])
    maintained(settings, ms(late))
    assert [row["body"] for row in gateway_rows(tmp_path, "half")] == [None]
    with_service(tmp_path, act, dedup_window="10m", dedup_max=100)
    assert [code(answer) for answer in answers] == [None, None]
    assert answers[0] == answers[1]
    assert len(gateway_rows(tmp_path, "half")) == 1
