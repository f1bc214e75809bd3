"""What a person on call types, and mistypes: forms of output, names that nobody has, times, closed pipes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkback.cli import main
from checkback.commands import status
from checkback.commands.transactions import COLUMNS, State
from checkback.settings import Settings
from checkback.storage.files.table_files import commit_file
from checkback.storage.tables import Tables
from support.stories import Transaction, checkpoint, in_batches, write

pytestmark = pytest.mark.slow

ODD = Transaction(1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Tables with a transaction that was published twice, a pending one, and 60 that were discarded."""
    twice = Transaction(0)
    rows = [*twice.committed(), twice.published(), ODD.half()]
    for offset in range(60):
        one = Transaction(2, offset)
        rows += [one.half(), one.decision("DISCARD", reason="CHECK_MAX"), one.discarded()]
    rows, done = in_batches(rows)
    write(None, Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage), rows)
    checkpoint(tmp_path, batch_id=done)
    return tmp_path


def _run(root: Path, *arguments: str) -> int:
    return main([*arguments, "--set", f"storage.root={root}"])


def test_status_and_audit_as_csv_say_what_they_say_as_json(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _run(root, "status", "-o", "csv") == 0
    status = dict(csv.reader(capfd.readouterr().out.splitlines()))
    assert _run(root, "status", "-o", "json") == 0
    said = json.loads(capfd.readouterr().out)
    assert status.pop("name") == "value"
    assert status["pending"] == str(said["pending"]) == "1"
    assert status["groups.0.producer_group"] == said["groups"][0]["producer_group"]
    assert status["groups.0.stuck"] == json.dumps(said["groups"][0]["stuck"])
    assert status["batch.batch_id"] == str(said["batch"]["batch_id"])
    assert _run(root, "audit", "-o", "csv") == 1
    findings = list(csv.DictReader(capfd.readouterr().out.splitlines()))
    assert _run(root, "audit", "-o", "json") == 1
    said = json.loads(capfd.readouterr().out)
    assert {row["finding"] for row in findings} == {*said["figures"], *(one["finding"] for one in said["findings"])}
    assert {row["finding"]: int(row["count"]) for row in findings if row["level"] == "figure"} == said["figures"]


def test_the_status_of_a_time_is_what_the_tables_tell_of_it(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert _run(root, "status", "--as-of", now, "-o", "json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["at"], said["pending"]) == (now, 1)
    assert [row["pending"] for row in said["groups"]] == [1]
    assert (said["reconcile"]["at_work"], said["batch"], said["lag"], said["consumers"]) == (None, None, {}, None)
    assert _run(root, "status", "--as-of", now) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["pending", "1"]
    assert not any(line.startswith(("reconcile", "last batch", "lag")) for line in lines)
    assert _run(root, "status", "--as-of", "2020-01-01T00:00", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out)["pending"] == 0
    assert _run(root, "status", "--as-of", now, "--watch") == 2
    assert "exclude each other" in capfd.readouterr().err


def test_watch_goes_on_when_tables_that_could_not_be_read_can_be_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "REFRESH_S", 0.0)
    unreadable = Path(commit_file(f"{root}/half", DeltaTable(f"{root}/half").version() + 1))
    told: list[str] = []

    def mend(error: object) -> None:
        told.append(str(error))
        unreadable.rmdir()

    looks = status._looks(Settings.model_validate({"storage": {"root": str(root)}}), True, mend)
    before = next(looks)
    unreadable.mkdir()
    after = next(looks)
    assert (before.facts is None, after.facts is None) == (False, False)
    assert after.now > before.now
    assert len(told) == 1


@pytest.mark.parametrize("command", [*(f"list --state {state.value}" for state in State), "decisions"])
def test_a_group_that_nobody_has_is_no_all_clear(root: Path, capfd: pytest.CaptureFixture[str], command: str) -> None:
    assert _run(root, "tx", *command.split(), "--group", "ordres") == 0
    said = capfd.readouterr().out
    assert said.startswith("Nothing")
    assert said.endswith(f"No half message is of the group ordres; there are {ODD.half()[1]['producer_group']}.\n")
    assert _run(root, "tx", "list", "--state", "scheduled", "--group", ODD.half()[1]["producer_group"]) == 0
    assert "No half message" not in capfd.readouterr().out


@pytest.mark.parametrize("every", ["5", "0s", "-1m", "soon"])
def test_what_is_no_interval_is_told_with_its_option(root: Path, capfd: pytest.CaptureFixture[str], every: str) -> None:
    assert _run(root, "tx", "decisions", "--every", every) == 2
    assert capfd.readouterr().err == f"checkback: --every: '{every}' is no interval; write 10s, 5m or 1h\n"


def test_a_transaction_that_nobody_has_is_to_be_looked_for_where_it_may_be(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(root, "tx", "resume", "nosuch", "--actor", "me", "--reason", "why") == 2
    assert "`checkback tx list --state STATE` lists those there are" in capfd.readouterr().err


def test_an_option_before_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "x.yml", "status"]) == 2
    told = "checkback: No such option: --config; options follow the command: checkback status --config ...\n"
    assert capfd.readouterr().err == told


def test_a_table_of_others_in_a_topics_place_is_told(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not what Arrow says of its columns."""
    write_deltalake(f"{root}/topics/taken", pa.table({"id": [1], "body": [0.5]}))
    assert _run(root, "topic", "consume", "taken") == 1
    said = capfd.readouterr().err
    assert said.startswith(
        f"checkback: {root}/topics/taken: is not the table of a topic: it has no columns half_queue_"
    )
    assert "move it away" in said
    assert said.count("\n") == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["tx", "list", "--state", "discarded"], 0),
        (["tx", "list", "--state", "discarded", "-o", "json"], 0),
        (["tx", "list", "--state", "discarded", "-o", "csv"], 0),
        (["audit"], 1),
        (["audit", "-o", "csv"], 1),
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(root: Path, arguments: list[str], code: int) -> None:
    """The pipe is closed before anything is written; the exit code of `audit` tells what it found all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "checkback", *arguments, "--set", f"storage.root={root}"]
    run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (run.returncode, run.stderr) == (code, "")


def test_durations_are_shown_as_status_shows_them() -> None:
    """Whole seconds of some hours say nothing; -o json and -o csv have them."""
    row: defaultdict[str, Any] = defaultdict(lambda: None, age_s=7_500.9, check_times=1)

    def cell(state: State, title: str, **values: float) -> str:
        return next(column for column in COLUMNS[state] if column.title == title).cell(row | values)

    assert cell(State.PENDING, "age") == "2h 5m"
    assert cell(State.SCHEDULED, "due in", due_in_s=200.5) == "3m 20s"
    assert cell(State.SCHEDULED, "due in", due_in_s=-61.0) == "late 1m 1s"


def test_filters_of_discarded_messages_are_refused_for_others(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option in (("--since", "1h ago"), ("--reason", "EXPIRED")):
        assert _run(root, "tx", "list", *option) == 2
        told = "checkback: --since, --reason: are of discarded messages; give --state discarded, too\n"
        assert capfd.readouterr().err == told


def test_topics_are_listed_also_one_that_cannot_be_read(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (listed,) = _json(root, capfd, "topic", "list")
    assert listed == {"topic": "a", "messages": 2, "last_published_at": listed["last_published_at"], "unreadable": None}
    shutil.copytree(f"{root}/topics/a", f"{root}/topics/damaged")
    for file in Path(f"{root}/topics/damaged").rglob("*.parquet"):
        file.unlink()
    same, damaged = _json(root, capfd, "topic", "list")
    assert same == listed
    assert (damaged["topic"], damaged["messages"]) == ("damaged", None)
    assert damaged["unreadable"]
    assert _run(root, "topic", "list") == 0
    assert [line.split()[:2] for line in capfd.readouterr().out.splitlines()[1:]] == [["a", "2"], ["damaged", "-"]]


def _json(root: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert _run(root, *arguments, "-o", "json") == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize("output", ["json", "csv"])
@pytest.mark.parametrize(
    "command",
    [
        *(
            "tx list",
            "tx list --state discarded",
            "tx decisions --since 2000-01-01T00:00",
            "topic list",
            "outages",
            "status",
        ),
        *("audit", "what-if", "maintain --dry-run", "config show", "topic consume a", "tx describe 1/0"),
        *("tx resolve tx-1-0 --commit --actor a --reason r", "tx resume --all --actor a --reason r"),
    ],
)
def test_every_answer_has_every_form(root: Path, capfd: pytest.CaptureFixture[str], command: str, output: str) -> None:
    """Each line of CSV has the columns of the header; JSON is an object, or one a line."""
    assert _run(root, *command.split(), "-o", output) == (1 if command == "audit" else 0)
    out = capfd.readouterr().out
    if output == "csv":
        header, *rows = csv.reader(out.splitlines())
        assert header
        assert {len(row) for row in rows} <= {len(header)}
    elif out.startswith("{\n"):
        assert isinstance(json.loads(out), dict)
    else:
        assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
