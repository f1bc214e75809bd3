"""Logs as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from checkback.cli import main
from checkback.observe.logs import EVENTS, event, set_up

if TYPE_CHECKING:
    from pathlib import Path


def test_an_event_is_one_flat_object(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json", None, debug=False)
    event("batch_done", query="reconcile", seconds=1.5)
    logging.getLogger("checkback.x").warning("two\nlines %s", 'and "more"')
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(line.pop("time").endswith("Z") for line in lines)
    assert lines == [
        {"level": "info", "event": "batch_done", "query": "reconcile", "seconds": 1.5},
        {"level": "warning", "event": "message", "logger": "checkback.x", "message": 'two\nlines and "more"'},
    ]


def test_json_tells_an_error_without_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json", None, debug=False)
    logging.getLogger("checkback.x").error("failed", exc_info=ValueError("first\nlast"))
    line = json.loads(capsys.readouterr().err)
    assert line["error"] == "last"
    assert "Traceback" not in str(line)


@pytest.mark.parametrize(
    ("level", "debug", "lines"),
    [(None, False, []), ("info", False, ["checkback: batch_done batch_id=3"]), ("error", False, [])],
)
def test_text_is_quiet_unless_told(
    level: str | None, debug: bool, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    set_up("text", level, debug)
    event("batch_done", batch_id=3)
    logging.getLogger("others").info("not ours")
    assert capsys.readouterr().err.splitlines() == lines


def test_debug_shows_all_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("text", "error", debug=True)
    assert EVENTS.isEnabledFor(logging.INFO)
    logging.getLogger("checkback.x").debug("detail")
    assert capsys.readouterr().err == "checkback: detail\n"


def test_json_is_all_that_is_printed_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """By whomever; an object stays as it is."""
    set_up("json", None, debug=False)
    print("no\n\nrows", file=sys.stderr)
    print('{"msg": "of another program"}', file=sys.stderr)
    print("the end", end="", file=sys.stderr, flush=True)
    logging.getLogger("checkback.x").warning("ours")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("message") for line in lines[:3]] == ["no", "rows", None]
    assert lines[2] == {"msg": "of another program"}
    assert [(line["logger"], line["message"]) for line in lines[3:]] == [("stderr", "the end"), ("checkback.x", "ours")]
    set_up("text", None, debug=False)
    print("plain", file=sys.stderr)
    assert capsys.readouterr().err == "plain\n"


@pytest.mark.slow
def test_error_that_ends_a_command_is_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--set", f"storage.root={tmp_path / 'none'}"]
    assert main(["tx", "list", *where, "--set", "log.format=json"]) == 2
    said = json.loads(capsys.readouterr().err)
    assert (said["level"], said["event"], said["exit_code"]) == ("error", "failed", 2)
    assert main(["tx", "list", *where]) == 2
    assert capsys.readouterr().err == f"checkback: {said['error']}\n"
