"""Options of `land --table` that cannot be: one line, before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.cli import main

if TYPE_CHECKING:
    from pathlib import Path

OUTBOX = ["--table", "--outbox", "main.shop.outbox"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--table"], "--table: nothing to land; give --outbox TABLE, or --half TABLE, --op TABLE or both"),
        (["--outbox", "main.shop.outbox"], "are of tables; give --table"),
        (["--half", ".", "--changes"], "are of tables; give --table"),
        ([*OUTBOX, "--half", "main.shop.half"], "--outbox: an outbox and half messages land in commands of their own"),
        ([*OUTBOX, "--kafka", "host:9092"], "--table: tables and Kafka land in commands of their own"),
        ([*OUTBOX, "--starting-version", "-1"], "--starting-version: '-1' is no version"),
        ([*OUTBOX, "--starting-version", "1", "--starting-timestamp", "2026-01-01"], "two starts; give one of them"),
        ([*OUTBOX, "--map", "real_topic"], "--map: 'real_topic' is not NAME=EXPRESSION"),
        ([*OUTBOX, "--map", "topic=kind"], "--map: topic: no such field, did you mean real_topic?"),
        ([*OUTBOX, "--map", "body=a", "--map", "body=b"], "--map: body is given twice"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # no Java: Spark would not start
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["land", *arguments]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
