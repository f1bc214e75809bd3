"""`checkback maintain`: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from checkback.cli import main
from checkback.maintain import report
from checkback.maintain.maintenance import LOCK
from checkback.maintain.report import TableReport
from checkback.settings import Settings
from checkback.storage.lock import exclusive_lock
from checkback.storage.tables import Tables
from maintain.fixtures import Sender, files_of


def run(root: Path, *options: str) -> int:
    return main(["maintain", "--set", f"storage.root={root}", "--set", "maintain.min_files=2", *options])


def test_summary_for_people_and_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Progress on stderr, the summary on stdout; a dry run does nothing."""
    sender = Sender(tmp_path)
    for _ in range(6):
        sender.commit()
    assert run(tmp_path, "--dry-run") == 0
    out, err = capfd.readouterr()
    assert err.startswith("half: 6 files would be 1, ")
    assert "6 files would become 1; 0 old files (0 B) and 0 of logs would be removed" in out
    assert len(files_of(tmp_path, "half")) == 6
    assert run(tmp_path, "-o", "json") == 0
    out, err = capfd.readouterr()
    assert err.startswith("half: 6 files are 1, ")
    (table,) = json.loads(out)["tables"]
    assert (table["table"], table["files_before"], table["files_after"], table["rewritten"]) == ("half", 6, 1, 6)
    assert len(files_of(tmp_path, "half")) == 1
    assert run(tmp_path) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.splitlines()[1].split()[:3] == ["half", "0", "1"]


def test_repair_puts_aside_what_is_torn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A commit that was on the disk once, so that nothing but this puts it aside."""
    sender = Sender(tmp_path)
    for _ in range(3):
        sender.commit()
    newest = max((tmp_path / "half/_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    assert run(tmp_path) == 1
    assert "checkback maintain --repair" in capfd.readouterr().err
    assert run(tmp_path, "--repair") == 0
    assert newest.name in capfd.readouterr().out
    assert run(tmp_path, "--repair") == 0
    assert capfd.readouterr().out == "no torn commits\n"
    assert run(tmp_path) == 0


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("maintain.retention=59m", "maintain.retention (--set): is shorter than 1h"),
        ("maintain.log_retention=0s", "maintain.log_retention (--set): is shorter than 1h"),
        ("maintain.log_retention=6d", "maintain.retention is longer than log_retention"),
        ("maintain.min_files=1", "must be at least 2"),
        ("storage.root=nowhere", "there is no folder"),
        ("storage.root=.", "there are no tables of Checkback"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, "--set", override) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1


def test_second_one_ends_with_who_is_at_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Sender(tmp_path).commit()
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    with exclusive_lock(Tables.of(settings.storage), LOCK):
        assert run(tmp_path) == 1
    assert "is already working on these tables" in capfd.readouterr().err


@pytest.mark.processes
def test_local_tables_need_no_java(tmp_path: Path) -> None:
    """So that it starts in seconds."""
    Sender(tmp_path).commit()
    command = [sys.executable, "-m", "checkback", "maintain", "--set", f"storage.root={tmp_path}"]
    environ = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_defaults_keep_a_week_and_a_month() -> None:
    maintain = Settings().maintain
    assert (maintain.retention, maintain.log_retention) == (timedelta(days=7), timedelta(days=7))


def test_notes_say_what_stays_and_what_was_left_alone() -> None:
    done = [
        TableReport("half", kept=("reconcile stands at version 3",)),
        TableReport("op", skipped="somebody has clustered it"),
    ]
    assert report.notes(done) == [
        "op was left alone: somebody has clustered it",
        "half keeps more than the retention asks for: reconcile stands at version 3",
    ]
    assert report.row(TableReport("x", 3, 1, 4_200_000, 12, 5, 7, 8, 1_300, None, 2, 999_999, None, 0.25)) == (
        "x",
        "8 (1.3 KB)",
        "3 -> 1",
        "4.2 MB -> 12 B",
        "5 -> 7",
        "-",
        "2 (1000 KB)",
        "-",
        "0.2",
    )
