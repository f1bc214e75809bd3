"""Answers without Spark: in folders and object stores, in odd and damaged places, by page, and in the commands."""

from __future__ import annotations

import csv
import gc
import json
import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.cli import main
from checkback.errors import SettingsError, StorageError
from checkback.query.answers import Answers, SparkNeededError, records
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Settings
from checkback.storage.lock import exclusive_lock
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from support.audit_cases import BROKEN, CLEAN, NUMBER
from support.s3_server import BUCKET, options
from support.stories import DECIDED, DONE, UNDER_WAY, Row, Transaction, checkpoint, in_batches, write

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

_HOSTILE = "tx'; DROP TABLE half; --\x1b[31m\u202e\n"
#: columns that the place of the tables decides
_OF_PLACE = {"table_version", "committed_at", "as_of", "age_s", "oldest_age_s", "due_in_s"}


def _settings(root: str, **storage: Any) -> Settings:
    return Settings.model_validate({"storage": {"root": root, **storage}})


def _story() -> list[Row]:
    """Everything that can happen, and a hostile name."""
    stories = CLEAN | {name: story for name, (_, story) in BROKEN.items()}
    rows = [row for name, story in stories.items() for row in story(Transaction(NUMBER[name]))]
    hostile = Transaction(0, 7)
    rows += [hostile.half(transaction_id=_HOSTILE), hostile.check(1)]
    return in_batches(rows)[0]


def _questions(answers: Answers) -> dict[str, pa.Table]:
    return {
        "pending": answers.pending(),
        "counts": answers.count_pending(),
        "groups": answers.groups(),
        "scheduled": answers.scheduled(),
        "discarded": answers.discarded(),
        "decisions": answers.decisions(every=timedelta(hours=1)),
        "outcomes": answers.check_outcomes(),
        "over time": answers.pending_over_time(every=timedelta(days=1)),
        "latency": answers.decision_latency(),
        "lineage": answers.lineage(f"tx-{NUMBER['published twice']}-0"),
        "hostile": answers.transactions(transaction_id=_HOSTILE, bodies=True),
        "findings": answers.findings(),
        "unpublished": answers.unpublished(),
        "breakers": answers.breakers(),
        "pending of a topic": answers.pending(topic="a", limit=5),
        "batches": answers.batches(limit=3),
    }


def _comparable(rows: pa.Table) -> list[str]:
    kept = rows.drop([name for name in rows.column_names if name in _OF_PLACE])
    return sorted(map(repr, records(kept)))


def test_object_store_and_odd_folder_answer_as_a_folder_does(tmp_path: Path, s3_port: int) -> None:
    """DuckDB reads the files of a plain folder, delta-rs all others."""
    plain = _settings(str(tmp_path / "plain"))
    odd = _settings(str(tmp_path / "it's [odd] {a,b}*"))
    store = _settings(f"s3://{BUCKET}/{tmp_path.name}", options=options(s3_port))
    found = []
    for settings in (plain, odd, store):
        write(None, Tables.of(settings.storage), _story())
        answers = Answers(settings)
        found.append({name: _comparable(rows) for name, rows in _questions(answers).items()})
        with DuckDBEngine(Tables.of(settings.storage)) as engine:  # a question may read a table several times
            twice = "SELECT a._file FROM {half} AS a JOIN {half} AS b USING (_file, queue_id, queue_offset)"
            found[-1]["files"] = [str(engine.query(twice, {"half": engine.read("half", file=True)}, {}).num_rows)]
        report = answers.audit()
        assert report.broken
        assert answers.status().facts is not None
        with answers.together(pending=True) as page:
            again = {name: _comparable(rows) for name, rows in _questions(page).items()}
            assert again == {name: rows for name, rows in found[-1].items() if name != "files"}
            assert page.audit() == report
    assert all(found[0][name] for name in ("pending", "groups", "lineage", "files", "hostile", "findings", "batches"))
    for name, rows in found[0].items():
        assert rows == found[1][name], name
        assert rows == found[2][name], name


def test_pages_and_filters(tmp_path: Path) -> None:
    settings = _settings(str(tmp_path))
    halves = [
        Transaction(0, number, DONE - timedelta(minutes=number)).half(real_topic="ab"[number % 2])
        for number in range(6)
    ]
    write(None, Tables.of(settings.storage), halves)
    answers = Answers(settings)

    assert answers.pending(DONE - timedelta(minutes=4)).column("queue_offset").to_pylist() == [5]

    def now(**wanted: Any) -> list[int]:
        found: list[int] = answers.pending(**wanted).column("queue_offset").to_pylist()
        return found

    assert now() == [5, 4, 3, 2, 1, 0]
    assert now(limit=2, offset=1) == [4, 3]
    assert now(topic="a") == [4, 2, 0]
    assert now(topic="a", group="nobody") == []
    assert now(why="no endpoint") == now()
    assert now(why="young") == []
    (count_a, count_b) = records(answers.count_pending())
    assert (count_a["pending"], count_b["pending"]) == (3, 3)
    assert [row["queue_offset"] for row in records(answers.transactions(place=(0, 3)))] == [3]
    assert answers.transactions(key="key").num_rows == 6
    assert answers.transactions(key="ke").num_rows == 0


def test_a_decision_is_that_of_the_half_message_and_the_last_one(tmp_path: Path) -> None:
    """A CANCEL comes after its COMMIT; what landed at the offset of another is not taken, and was not decided."""
    settings = _settings(str(tmp_path))
    cancelled, decided = Transaction(0), Transaction(0, 1)
    late = decided.half(transaction_id="tx-B", store_timestamp=DONE)
    rows = [cancelled.half(), cancelled.decision(deliver_at=DONE), decided.half(), late, decided.decision()]
    rows.append(cancelled.decision("CANCEL", source="operator", decided_at=DECIDED + timedelta(minutes=1)))
    write(None, Tables.of(settings.storage), rows)
    found = {row["transaction_id"]: row for row in records(Answers(settings).transactions())}
    told = {name: (row["state"], row["source"], row["scheduled_for"]) for name, row in found.items()}
    assert told == {
        "tx-0-0": ("CANCEL", "operator", None),
        "tx-0-1": ("COMMIT", "producer", None),
        "tx-B": (None, None, None),
    }
    assert records(Answers(settings).transactions(transaction_id="tx-B"))[0]["state"] is None


def test_since_is_seen_from_the_time_that_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Half a year after the decision: "40m ago" is forty minutes before that time, and "23:20" is of that day."""
    settings = _settings(str(tmp_path))
    one = Transaction(0)
    rows = [one.half(), one.decision("DISCARD"), one.discarded()]
    write(None, Tables.of(settings.storage), in_batches(rows)[0])
    answers = Answers(settings)
    for since, number in (("40m ago", 1), ("20m ago", 0), (DECIDED, 1), (None, 1)):
        for ask in (answers.decisions, answers.decided, answers.discarded):
            assert ask(DONE, since=since).num_rows == number, (ask, since)
    command = [
        "tx",
        "decisions",
        "--as-of",
        f"{DONE:%Y-%m-%dT%H:%M}",
        "--set",
        f"storage.root={tmp_path}",
        "-o",
        "json",
    ]
    for more, number in ((), 1), (["--since", "20m ago"], 0), (["--since", "00:00"], 0):
        assert main([*command, *more]) == 0
        assert len(capfd.readouterr().out.splitlines()) == number, more


def test_many_small_files_are_read_once_for_all_questions_of_a_page(tmp_path: Path) -> None:
    settings = _settings(str(tmp_path))
    DeltaLog.create("half", str(tmp_path / "half"))
    log = DeltaLog("half", str(tmp_path / "half"))
    for offset in range(100):
        rows = pa.Table.from_pylist([Transaction(0, offset).half()[1]], arrow_schema("half"))
        with FileWriter(str(tmp_path)) as writer:
            writer.write("half", rows)
            log.commit(writer.close())
    with Answers(settings).together() as page:
        assert page.pending(topic="a").num_rows == 100
        _no_files(tmp_path)
        assert [row["pending"] for row in records(page.count_pending())] == [100]
        assert page.transactions(key="key", limit=None).num_rows == 100


def test_a_long_batch_is_no_standstill_while_somebody_works_on_it(tmp_path: Path) -> None:
    settings = _settings(str(tmp_path))
    tables = Tables.of(settings.storage)
    write(None, tables, [Transaction(0).half()])
    checkpoint(tmp_path)
    with exclusive_lock(tables):
        (row,) = records(Answers(settings).groups())
    assert row["why"].startswith(f"a batch is under way since {UNDER_WAY:%Y-%m-%d %H:%M}; before that: ")
    (row,) = records(Answers(settings).groups())
    assert row["why"].startswith(f"reconcile does not run: last batch {UNDER_WAY:%Y-%m-%d %H:%M}; before that: ")


def _no_files(root: Path) -> None:
    for file in root.glob("half/*.parquet"):
        file.unlink()


def _no_parquet(root: Path) -> None:
    for file in root.glob("half/*.parquet"):
        file.write_bytes(b"PAR1 torn")


def _torn_log(root: Path) -> None:
    (root / "half/_delta_log" / f"{0:020}.json").write_text("{")


@pytest.mark.parametrize("damage", [_no_files, _no_parquet, _torn_log])
def test_damaged_table_is_one_line(
    damage: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = _settings(str(tmp_path))
    write(None, Tables.of(settings.storage), [Transaction(0).half()])
    damage(tmp_path)
    with pytest.raises(StorageError):
        Answers(settings).pending()
    for command in ("tx list", "status", "audit"):
        assert main([*command.split(), "--set", f"storage.root={tmp_path}"]) == 1
        err = capfd.readouterr().err
        assert err.startswith("checkback: ")
        assert len(err.splitlines()) == 1, err


def test_missing_tables_count_as_empty_and_no_table_is_an_error(tmp_path: Path) -> None:
    settings = _settings(str(tmp_path))
    with pytest.raises(SettingsError, match="there is no such table"):
        Answers(settings).pending()
    write(None, Tables.of(settings.storage), [Transaction(0).half()])
    found = _questions(Answers(settings))
    assert {name for name, rows in found.items() if rows.num_rows} == {
        *("pending", "pending of a topic", "counts", "groups", "over time")
    }


@pytest.mark.parametrize("commits", [1, 2, 5])
def test_tables_made_anew_in_their_place_are_read_anew(tmp_path: Path, commits: int) -> None:
    """With fewer versions than the log that was open, as many, or more; neither refused nor mixed with the old rows."""
    settings = _settings(str(tmp_path))
    tables = Tables.of(settings.storage)
    for offset in range(2):
        write(None, tables, [Transaction(0, offset).half(), Transaction(0, offset).unpublished("a")])
    answers = Answers(settings)
    assert answers.pending().num_rows == answers.unpublished().num_rows == 2
    shutil.rmtree(tmp_path)
    again = Tables.of(settings.storage)
    for offset in range(commits):
        write(None, again, [Transaction(1, offset).half(), Transaction(1, offset).unpublished("b")])
    for _ in range(2):
        assert {row["queue_id"] for row in records(answers.pending())} == {1}
        assert {row["real_topic"] for row in records(answers.unpublished())} == {"b"}
        assert answers.pending().num_rows == answers.unpublished().num_rows == commits
        assert answers.lineage("tx-1-0").num_rows == 2


def test_catalog_needs_spark() -> None:
    settings = _settings("unused", catalog="main", schema="checkback", checkpoints="/checkpoints")
    with pytest.raises(SparkNeededError, match="catalog"):
        Answers(settings)


def test_hostile_names_are_escaped_and_formats_agree(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = _settings(str(tmp_path))
    write(None, Tables.of(settings.storage), [Transaction(0).half(transaction_id=_HOSTILE)])

    def lines(*words: str) -> list[str]:
        assert main(["tx", "list", "--state", *words, "--set", f"storage.root={tmp_path}"]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        assert all(line.isprintable() for line in out.splitlines())
        return out.splitlines()

    assert len(lines("pending")) == 2
    assert lines("unpublished", "--group", "orders") == ["Nothing of the group orders is unpublished."]
    assert lines("discarded") == ["Nothing is discarded."]  # that there are older ones --since does not deny
    assert lines("discarded", "--since", "1h ago", "--topic", "a") == ["Nothing is discarded for topic a since 1h ago."]
    (as_json,) = lines("pending", "-o", "json")
    assert json.loads(as_json)["transaction_id"] == _HOSTILE
    header, row = csv.reader(lines("pending", "-o", "csv"))
    assert header == list(json.loads(as_json))
    assert row[header.index("queue_offset")] == "0"
    assert main(["tx", "describe", _HOSTILE, "--set", f"storage.root={tmp_path}"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2


@pytest.mark.processes
def test_neither_spark_nor_java(tmp_path: Path) -> None:
    """In a process that has no java, and may not import pyspark."""
    write(None, Tables.of(_settings(str(tmp_path)).storage), _story())
    listed = [["tx", "list", "--state", state] for state in ("pending", "scheduled", "unpublished")]
    commands = [["status"], *listed, ["tx", "list", "--state", "discarded", "--reason", "CHECK_MAX"], ["audit"]]
    commands += [["tx", "decisions"], ["tx", "describe", f"{NUMBER['published twice']}/0"], ["topic", "list"]]
    code = f"""
import sys
import tempfile
sys.modules["pyspark"] = None
from checkback.cli import main
for words in {commands!r}:
    form = "csv" if "decisions" in words else "json"
    assert main([*words, "-o", form, "--set", "storage.root={tmp_path}"]) in (0, 1)
"""
    environment = {"PATH": "/nonexistent", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


_PRESSED = """
import os, signal, sys, threading
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.settings import Storage
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.lock import exclusive_lock
from checkback.storage.tables import Tables

def pressed(number: int) -> int:
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
    return number

with DuckDBEngine(Tables.of(Storage(root=sys.argv[1]))) as engine:
    engine._database._connection.create_function("pressed", pressed, ["BIGINT"], "BIGINT")
    try:
        engine.query("SELECT sum(pressed(n) + m) FROM range(1) t(n), range(10_000_000_000_000) u(m)", {}, {})
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.processes
def test_ctrl_c_in_the_middle_of_a_question_is_keyboard_interrupt(tmp_path: Path) -> None:
    """While DuckDB evaluates it, the thread that has called DuckDB runs no Python. Here py4j would hear it."""
    done = subprocess.run(
        [sys.executable, "-c", _PRESSED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_table_that_only_spark_reads_is_not_to_be_restored(tmp_path: Path) -> None:
    """Its log is as it should be: with a restore of it, commits would be lost."""
    for name in ("half", "decisions"):
        DeltaLog.create(name, str(tmp_path / name))
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
    (tmp_path / "half/_delta_log" / f"{1:020}.json").write_text(json.dumps(protocol))
    with pytest.raises(StorageError, match=r"only Spark reads it.*DROP FEATURE deletionVectors\)"):
        Answers(Settings.model_validate({"storage": {"root": str(tmp_path)}})).pending()


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_engine_that_nobody_closes_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may spill to goes with it; closed or not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = DuckDBEngine(Tables(root=str(tmp_path / "tables"), by_files=True))
    assert len(list(tmp_path.iterdir())) == 1
    del engine
    gc.collect()
    assert not list(tmp_path.iterdir())
