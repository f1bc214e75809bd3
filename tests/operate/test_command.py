"""The commands as an operator types them: what is shown, what is done, exit codes. Without Spark."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from checkback.cli import main
from checkback.operate.transaction import Place
from operate.fixtures import BOB, QUEUE, T0, Lakehouse

pytestmark = pytest.mark.slow

SIGNED = ("--actor", "alice", "--reason", "the database says so")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lakehouse is in ./data."""
    monkeypatch.chdir(tmp_path)


def fails(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> tuple[str, str]:
    """Runs a command that fails, with one line on stderr; returns its stdout and the line."""
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert err.startswith("checkback: ")
    assert err.count("\n") == 1
    return out, err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tx", "resolve", "tx", *SIGNED], "--commit, --rollback: say how the transaction ends"),
        (["tx", "resolve", "tx", "--commit", "--rollback", *SIGNED], "give one of the two"),
        (["tx", "resolve", "--commit", *SIGNED], "Missing argument 'TX'"),
        (["tx", "resolve", "tx", "--commit", "--reason", "x"], "Missing option '--actor'"),
        (["tx", "resume", "tx", "--actor", "x"], "Missing option '--reason'"),
        (
            ["tx", "resume", "tx", "--actor", "x", "--reason", "two\nlines"],
            "--reason: is not one line of printable text",
        ),
        (
            ["tx", "resume", "tx", "--queue-id", "3", *SIGNED],
            "--queue-id, --queue-offset: only half of a place; give both",
        ),
        (["tx", "resume", "tx", "--commit", *SIGNED], "No such option"),
        (["tx", "resume", "tx", *SIGNED], "storage.root (default): there is no folder "),
        (["tx", "resume", "tx", *SIGNED, "--queue-id", f"{2**31}", "--queue-offset", "1"], "is no place; give numbers"),
        (["tx", "cancel", "tx", *SIGNED, "--queue-id", "1", "--queue-offset", f"{2**63}"], "is no place; give numbers"),
        (
            ["tx", "resume", "tx", *SIGNED, "--set", "operator.queue=0"],
            "operator.queue 0 is also in gateway.queues; give",
        ),
        (
            ["tx", "resume", "tx", *SIGNED, "--set", "operator.queue=1000"],
            "operator.queue 1000 is also in kafka.queue_base",
        ),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    out, err = fails(capfd, *arguments)
    assert out == ""
    assert told in err


def test_tables_that_are_missing_are_told(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert (
        "half: there is no such table; run `checkback reconcile` first" in fails(capfd, "tx", "resume", "t", *SIGNED)[1]
    )


@pytest.mark.parametrize("command", [("resolve", "--commit"), ("resolve", "--rollback"), ("resume",)])
def test_without_yes_it_is_shown_and_nothing_is_written(
    lake: Lakehouse, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """The transaction, what is known of it, and what would follow; as JSON, too. Nobody is asked in a pipe."""
    place = lake.half(12)
    lake.check(place, 1, "UNKNOWN")
    lake.check(place, 2, "NO_ANSWER", "status 500")
    if command == ("resume",):
        lake.decide(place, "DISCARD", "checkback")
    before = lake.versions()
    assert main(["tx", *command, "tx", *SIGNED]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    shown = dict(line.split(maxsplit=1) for line in out.replace("last answer", "last_answer").splitlines())
    assert (shown["transaction"].strip(), shown["queue/offset"].strip()) == ("tx", "0/12")
    assert (shown["group"].strip(), shown["topic"].strip()) == ("orders", "payments")
    assert shown["last_answer"].strip() == "NO_ANSWER status 500"
    assert shown["checks"].strip() == ("15" if command == ("resume",) else "2")
    assert shown["state"].startswith("DISCARD since " if command == ("resume",) else "pending")
    assert out.splitlines()[-1] == "Nothing was done. --yes does it."
    assert main(["tx", *command, "tx", *SIGNED, "-o", "json"]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["done"] is False
    assert (found["transaction"]["queue_offset"], found["transaction"]["last_error"]) == (12, "status 500")
    assert lake.versions() == before


def test_with_yes_it_is_shown_and_done(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    """And refused the second time, with exit code 1."""
    lake.half(12)
    assert main(["tx", "resolve", "tx", "--rollback", *SIGNED, "--yes"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.splitlines()[0].split() == ["transaction", "tx"]
    assert out.splitlines()[-1].startswith("ROLLBACK 0/12: the op is appended. `checkback reconcile` decides")
    assert [(row["state"], row["remark"]) for row in lake.rows("op")] == [("ROLLBACK", "alice: the database says so")]
    out, err = fails(capfd, "tx", "resolve", "tx", "--commit", *SIGNED, "--yes", code=1)
    assert out == ""
    assert err.startswith("checkback: transaction 0/12: ROLLBACK by operator (alice) has landed at ")


def test_resume_tells_the_new_place(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    lake.decide(lake.half(12), "DISCARD", "checkback")
    assert main(["tx", "resume", "tx", *SIGNED, "--yes", "-o", "json"]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["done"], found["repeated"], found["actor"]) == (True, False, "alice")
    assert (found["new_queue_id"], found["new_queue_offset"]) == (QUEUE, 0)
    assert found["transaction"]["state"] == "DISCARD"
    assert "body" not in line


def test_queue_of_resumed_messages_is_a_setting(lake: Lakehouse) -> None:
    lake.decide(lake.half(12), "DISCARD", "checkback")
    assert main(["tx", "resume", "tx", *SIGNED, "--yes", "--set", "operator.queue=77"]) == 0
    assert [row["queue_id"] for row in lake.rows("half")] == [0, 77]


def test_several_half_messages_are_listed(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    """And the group or the place asked for; nothing is done."""
    lake.half(12)
    lake.half(13, group="pay")
    before = lake.versions()
    out, err = fails(capfd, "tx", "resolve", "tx", "--commit", *SIGNED, "--yes")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["0/12", "orders"], ["0/13", "pay"]]
    assert "TX: 2 half messages have this transaction id; name one: --group G" in err
    out, _ = fails(capfd, "tx", "resolve", "tx", "--commit", *SIGNED, "--yes", "-o", "json")
    assert [json.loads(line)["producer_group"] for line in out.splitlines()] == ["orders", "pay"]
    assert lake.versions() == before
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED, "--yes", "--group", "pay"]) == 0
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED, "--yes", "--queue-id", "0", "--queue-offset", "12"]) == 0
    assert [row["queue_offset"] for row in lake.rows("op")] == [13, 12]


def test_unknown_transaction_is_told(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    lake.half(12)
    out, err = fails(capfd, "tx", "resume", "none", *SIGNED, "--yes")
    assert out == ""
    assert "no half message has this transaction id; `checkback tx list --state STATE`" in err
    wrong = ("--queue-id", "0", "--queue-offset", "99")
    assert "no half message at 0/99 has this" in fails(capfd, "tx", "resolve", "tx", "--commit", *SIGNED, *wrong)[1]


def test_ledger_that_lacks_an_action_is_shown_and_completed(lake: Lakehouse, capfd: pytest.CaptureFixture[str]) -> None:
    """As after a crash between the op and the ledger."""
    lake.op(lake.half(12), "COMMIT", source="operator", remark="bob: before the crash")
    before = lake.versions()
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED]) == 0
    assert "was done already, at 2026-01-01 00:00:02 UTC by bob; its row in `operations` is missing" in (
        capfd.readouterr().out
    )
    assert lake.versions() == before
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED, "--yes"]) == 0
    assert "its row in `operations` was missing, and is there now" in capfd.readouterr().out
    assert [(row["actor"], row["reason"]) for row in lake.rows("operations")] == [("bob", "before the crash")]
    assert len(lake.rows("op")) == 1


@pytest.mark.parametrize("command", [("resolve", "--rollback"), ("cancel",), ("resume",)])
def test_ledger_is_completed_by_a_command_that_is_refused_if_it_was_confirmed(lake: Lakehouse, command: Any) -> None:
    """Without --yes nothing is written."""
    lake.op(lake.half(12), "COMMIT", source="operator", remark="bob: before the crash")
    lake.half(13, "tx", "pay")
    assert main(["tx", *command, "tx", "--group", "orders", *SIGNED]) == 1
    assert lake.rows("operations") == []
    assert main(["tx", *command, "tx", "--group", "orders", *SIGNED, "--yes"]) == 1
    assert [(row["action"], row["actor"]) for row in lake.rows("operations")] == [("RESOLVE_COMMIT", "bob")]
    assert len(lake.rows("op")) == 1


def test_ledger_is_completed_by_a_command_that_names_several(lake: Lakehouse) -> None:
    lake.op(lake.half(12), "COMMIT", source="operator", remark="bob: before the crash")
    lake.half(13, "tx", "pay")
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED, "--yes"]) == 2
    assert [row["actor"] for row in lake.rows("operations")] == ["bob"]


_FAR = datetime(2999, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("delay", "told"),
    [
        ({"delay_ms": 5_400_000}, "is published in topics/payments 90m later, not before 2"),
        ({"delay_ms": 2**63 - 1}, "is published in topics/payments 36500d later, not before 2"),
        ({"deliver_at": _FAR}, "is published in topics/payments, not before 2999-01-01 00:00:00 UTC; no further"),
    ],
)
def test_preview_of_a_commit_with_a_delay(
    lake: Lakehouse, capfd: pytest.CaptureFixture[str], delay: dict[str, Any], told: str
) -> None:
    """It is scheduled, and may be cancelled until its time."""
    lake.half(12, **delay)
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED]) == 0
    shown = capfd.readouterr().out
    assert told in shown
    assert "Until then `tx cancel` ends it; nothing else undoes it." in shown
    before = datetime.now(timezone.utc)
    assert main(["tx", "resolve", "tx", "--commit", *SIGNED, "-o", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert told in found["follows"]
    least = delay.get("deliver_at") or before + timedelta(milliseconds=5_400_000 - 1)
    assert datetime.fromisoformat(found["deliver_at"].replace("Z", "+00:00")) >= least


@pytest.mark.parametrize(
    ("state", "delay"),
    [
        ("commit", {}),
        ("commit", {"deliver_at": T0}),
        ("commit", {"delay_ms": 0}),
        ("commit", {"delay_ms": -1}),
        ("rollback", {"delay_ms": 5_400_000}),
    ],
)
def test_preview_of_what_is_final(
    lake: Lakehouse, capfd: pytest.CaptureFixture[str], state: str, delay: dict[str, Any]
) -> None:
    """There is no delay, it has passed, or the message is never delivered."""
    lake.half(12, **delay)
    assert main(["tx", "resolve", "tx", f"--{state}", *SIGNED, "-o", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert "Nothing undoes it." in found["follows"]
    assert found["deliver_at"] is None


@pytest.mark.processes
def test_commands_without_spark(lake: Lakehouse, tmp_path: Path) -> None:
    """In local folders no JVM is started: there need not be one."""
    lake.half(12)
    run = subprocess.run(
        [sys.executable, "-m", "checkback", "tx", "resolve", "tx", "--commit", *SIGNED, "--yes"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"JAVA_HOME": "/nowhere"},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(lake.rows("op")) == 1


def on_a_terminal(answer: str, *arguments: str, meanwhile: Callable[[], object] = lambda: None) -> tuple[int, str]:
    """Runs a command whose stdin and stdout are a terminal; types the answer when asked. The code, and the text.

    ``meanwhile``: what happens before the answer.
    """
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "checkback", *arguments], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    said = b""
    while True:
        try:
            said += os.read(keyboard, 4096)
        except OSError:  # the other end is closed
            break
        if answer and b"[y/N]" in said:
            meanwhile()
            os.write(keyboard, answer.encode() + b"\n")
            answer = ""
    os.close(keyboard)
    return process.wait(60), said.decode()


@pytest.mark.processes
@pytest.mark.parametrize(("answer", "ops"), [("n", 0), ("y", 1)])
def test_on_a_terminal_it_asks(lake: Lakehouse, answer: str, ops: int) -> None:
    lake.half(12)
    code, said = on_a_terminal(answer, "tx", "resolve", "tx", "--commit", *SIGNED)
    assert code == 0
    assert "Do it? [y/N]" in said
    assert ("Nothing was done." in said) == (ops == 0)
    assert len(lake.rows("op")) == ops


@pytest.mark.processes
def test_a_dry_run_asks_nobody_and_does_nothing(lake: Lakehouse) -> None:
    lake.half(12)
    code, said = on_a_terminal("", "tx", "resolve", "tx", "--commit", *SIGNED, "--dry-run")
    assert code == 0
    assert "[y/N]" not in said
    assert "decides by it and publishes the message" in " ".join(said.split())
    assert lake.rows("op") == []


@pytest.mark.processes
def test_on_a_terminal_what_was_shown_is_done_or_nothing(lake: Lakehouse) -> None:
    """Another operator has resumed it before the answer, and cancelled the new one: that one was not shown."""
    lake.discarded()

    def bob() -> None:
        lake.resume(signed=BOB)
        lake.decide(Place(QUEUE, 0), "CANCEL", "operator")

    code, said = on_a_terminal("y", "tx", "resume", "tx", *SIGNED, meanwhile=bob)
    assert code == 1
    assert "transaction 0/12: was discarded, and resumed as 2000000000/0; that one goes on" in said
    assert [row["queue_id"] for row in lake.rows("half")] == [0, QUEUE]
    assert [row["actor"] for row in lake.rows("operations")] == ["bob"]


def test_control_characters_of_a_producer_are_shown_and_never_obeyed(
    lake: Lakehouse, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = "order-1\x1b[2K\x1b[1G\x1b]0;owned\x07\u202e\x9bhidden\nqueue 9/9"
    for offset in (7, 8):
        lake.half(offset, hostile)
    arguments = ("tx", "resolve", hostile, "--rollback", *SIGNED)
    out, err = fails(capfd, *arguments)
    assert main([*arguments, "--queue-id", "0", "--queue-offset", "7"]) == 0
    assert main([*arguments, "--queue-id", "0", "--queue-offset", "7", "--yes"]) == 0
    shown = capfd.readouterr().out
    for text in (out, err, shown):
        assert all(line.isprintable() for line in text.splitlines())
    assert "order-1\\u001b[2K\\u001b[1G" in shown
