"""`checkback topic consume` as typed: what is printed of which messages, and what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from checkback.cli import main
from checkback.consumer.browse import Browser
from checkback.errors import StorageError
from checkback.storage.files.table_files import commit_file
from checkback.storage.tables import Tables
from checkback.storage.timestamps import iso
from consumer.published import START, Published

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SET = ("--set", "storage.root=data")
COMMAND = [sys.executable, "-m", "checkback", "topic", "consume", "payments", *SET]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    lake = Published(Tables(root=str(tmp_path / "data"), by_files=True, sync=False))
    lake.log("batches")  # `reconcile` makes it when it starts
    return lake


def consumed(capfd: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["topic", "consume", "payments", "-o", "json", *SET, *options]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def offsets(found: list[dict[str, Any]]) -> list[int]:
    return [each["half_queue_offset"] for each in found]


def test_complete_batches_in_order_and_nothing_is_written(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    first = lake.messages(5, (0, 7))
    lake.publish({"payments": [first[3:], first[:3]]})
    lake.publish({"payments": [lake.messages(2)]})
    lake.publish({"payments": [lake.messages(2)]}, concluded=False)
    before = {path: path.stat().st_mtime_ns for path in Path("data").rglob("*")}
    found = consumed(capfd)
    assert offsets(found) == list(range(7))
    assert {path: path.stat().st_mtime_ns for path in Path("data").rglob("*")} == before
    assert found[1] == {
        "topic": "payments",
        "published_at": iso(START + 1000),
        "batch_id": 0,
        "queue_id": 7,
        "half_queue_id": 0,
        "half_queue_offset": 1,
        "transaction_id": "tx-1",
        "producer_group": "orders",
        "tags": None,
        "keys": "key-1",
        "properties": {"number": "1"},
        "born_timestamp": iso(START + 900),
        "body_size": 6,
    }


def test_where_to_begin_and_end(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        lake.publish({"payments": [lake.messages(2)]})
    assert offsets(consumed(capfd, "--from", "first", "--limit", "3")) == [0, 1, 2]
    assert offsets(consumed(capfd, "--from", iso(START + 1001)[:-1])) == [2, 3, 4, 5]
    assert offsets(consumed(capfd, "--from", iso(START + 3000))) == [4, 5]
    assert offsets(consumed(capfd, "--from", "1")) == [2, 3, 4, 5]
    assert offsets(consumed(capfd, "--from", "last")) == []


def test_selectors(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    lake.publish({"payments": [[lake.messages(1, tags=tag)[0] for tag in ("A", "B", None, "A B")]]})
    assert offsets(consumed(capfd, "--tag", "A || B")) == [0, 1]
    assert offsets(consumed(capfd, "--tag", "*")) == [0, 1, 2, 3]
    pytest.importorskip("lark", reason="SQL92 needs lark")
    assert offsets(consumed(capfd, "--sql", "number > 1")) == [2, 3]


def test_bodies_only_if_asked_for(lake: Published, capfd: pytest.CaptureFixture[str]) -> None:
    bodies = ["grüße\x1b[2J".encode(), b"\xff\x00", b""]
    lake.publish({"payments": [[lake.messages(1, body=body)[0] for body in bodies]]})
    assert not any("body" in each or "body_base64" in each for each in consumed(capfd))
    found = consumed(capfd, "--bodies")
    assert [each.get("body") for each in found] == ["grüße\x1b[2J", None, ""]
    assert [each.get("body_base64") for each in found] == [None, "/wA=", None]
    assert [each["body_size"] for each in found] == [len(body) for body in bodies]
    assert main(["topic", "consume", "payments", *SET, "--bodies"]) == 0
    out = capfd.readouterr().out
    assert "grüße\\u001b[2J" in out
    assert "\x1b" not in out


def test_text_is_one_line_a_message_without_control_characters(
    lake: Published, capfd: pytest.CaptureFixture[str]
) -> None:
    lake.publish({"payments": [lake.messages(1, (3,), tags="A\nB\x1b[31m", keys=None)]})
    assert main(["topic", "consume", "payments", *SET]) == 0
    header, line = capfd.readouterr().out.splitlines()
    assert header.split() == ["published_at", "queue", "half", "transaction", "body", "tags", "keys"]
    assert line.split() == [iso(START + 1000), "3", "0/0", "tx-0", "6", "B", "A\\nB\\u001b[31m", "-"]
    assert "body-0" not in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["payment"], "payment: there is no such topic; there are pays, o29, "),
        (["../half"], "is not the name of a topic"),
        (["_delta_log"], "is not the name of a topic"),
        (
            ["payments", "--from", "yesterday"],
            "--from: 'yesterday' is not a time; write first, last, a batch id, or a time",
        ),
        (["payments", "--tag", "A", "--sql", "a > 1"], "--tag, --sql: a message is selected by either"),
        (["payments", "--tag", "|| |"], ""),
        (["payments", "--limit", "0"], "--limit"),
        ([], "Missing argument 'TOPIC'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    lake: Published, arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for topic in ("pays", *(f"o{number}" for number in range(10, 30))):
        lake.log(f"topics/{topic}")
    assert main(["topic", "consume", *arguments, *SET]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert told in err


def environment() -> dict[str, str]:
    """That of these tests, whose folder is another one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def _following() -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """`topic consume -o json --follow`, its stdout and its stderr."""
    with subprocess.Popen(
        [*COMMAND, "-o", "json", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield process, process.stdout, process.stderr


@pytest.mark.processes
def test_follow_goes_on_until_it_is_interrupted(lake: Published) -> None:
    """Messages of batches that become complete later are shown at once; Ctrl-C ends it with exit code 0."""
    lake.publish({"payments": [lake.messages(1)]})
    with _following() as (process, out, said):
        assert json.loads(out.readline())["half_queue_offset"] == 0
        lake.publish({"payments": [lake.messages(1)]}, concluded=False)
        lake.conclude({"topics/payments": lake.log("topics/payments").version()})
        assert json.loads(out.readline())["half_queue_offset"] == 1
        process.send_signal(signal.SIGINT)
        assert out.read() == ""
        assert said.read() == ""
        assert process.wait() == 0


@pytest.mark.processes
def test_follow_goes_on_when_tables_that_could_not_be_read_can_be_read_again(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    unreadable = Path(commit_file("data/batches", lake.log("batches").version() + 1))
    with _following() as (process, out, said):
        assert json.loads(out.readline())["half_queue_offset"] == 0
        unreadable.mkdir()
        assert "batches" in said.readline()
        unreadable.rmdir()
        lake.publish({"payments": [lake.messages(1)]})
        assert json.loads(out.readline())["half_queue_offset"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_reading_that_breaks_off_goes_on_where_it_did(lake: Published) -> None:
    for _ in range(3):
        lake.publish({"payments": [lake.messages(2)]})
    browser = Browser(lake.tables, "payments")
    found, last = [], lake.log("topics/payments").data_files()[0].path
    rows = Path(last).read_bytes()
    with pytest.raises(StorageError):  # noqa: PT012
        for message in browser.read():
            found.append(message.half_queue_offset)
            Path(last).write_bytes(bytes(len(rows)))
    assert found == [0, 1, 2, 3]
    Path(last).write_bytes(rows)
    assert [message.half_queue_offset for message in browser.read()] == [4, 5]


@pytest.mark.processes
def test_follow_waits_for_a_topic(lake: Published) -> None:
    with subprocess.Popen(
        [*COMMAND, "--follow", "--limit", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("published_at")
        lake.publish({"payments": [lake.messages(1)]})
        assert "0/0" in process.stdout.readline()
        assert "payments: there is no such topic; a topic is there once" in process.stderr.read()
        assert process.wait() == 0


@pytest.mark.parametrize(
    "command", [("topic", "consume", "payments"), ("topic", "consume", "payments", "--follow"), ("group", "list")]
)
def test_a_root_without_tables_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """It may be mistyped: nothing would ever come."""
    assert main([*command, "--set", f"storage.root={tmp_path}"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{tmp_path}: there are no tables of Checkback; name their root" in err
    assert not any(tmp_path.iterdir())


@pytest.mark.processes
@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_closed_pipe_ends_it_silently(lake: Published, follow: tuple[str, ...]) -> None:
    """Also while it waits for messages that never come."""
    lake.publish({"payments": [lake.messages(3_000)]})
    with subprocess.Popen(
        [*COMMAND, *follow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(3_001 if follow else 1)]
        assert lines[0].startswith("published_at")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "consume", "payments", "--from", "10m ago"],
        ["group", "list"],
        ["group", "reconsume", "credits", "--all", "--actor", "a", "--reason", "r"],
    ],
)
def test_neither_spark_nor_java_is_imported(lake: Published, arguments: list[str]) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    code = (
        "import sys; from checkback.cli import main; code = main(sys.argv[1:]);"
        "print(code, {name.partition('.')[0] for name in sys.modules} & {'pyspark', 'delta', 'py4j'})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments, *SET], capture_output=True, text=True, check=True, env=environment()
    )
    expected = "2 set()" if "reconsume" in arguments else "0 set()"  # there is no such group
    assert run.stdout.splitlines()[-1] == expected
