"""No text reaches a terminal that it would obey, whatever prints it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.commands.printing import console, print_lines, print_table
from checkback.errors import printable
from checkback.observe.logs import TextFormatter

if TYPE_CHECKING:
    import pytest

HOSTILE = "tx\x1b[2K\x1b]0;owned\x07\x9b8m\u202e\u2028\r\n\t\x7f\x00\U000e0041"
SHOWN = r"tx\u001b[2K\u001b]0;owned\u0007\u009b8m\u202e\u2028\r\n\t\u007f\u0000\udb40\udc41"


@given(st.text())
def test_what_is_shown_can_be_printed(text: str) -> None:
    shown = printable(text)
    assert shown.replace("\u3000", "").replace("\xa0", "").isprintable() or any(char.isspace() for char in shown)
    assert not any(char in shown for char in "\x1b\x07\x9b\r\n\x00\u202e")
    shown.encode("utf-8")


@given(st.dictionaries(st.text(), st.text()))
def test_json_stays_the_same_json(fields: dict[str, str]) -> None:
    assert json.loads(printable(json.dumps(fields, ensure_ascii=False))) == fields


def test_words_of_people_stay_as_they_are() -> None:
    for text in ("plain", "日本語\u3000注文", "naïve café", "زبان", "🎉 a\xa0b"):
        assert printable(text) == text
    assert printable(HOSTILE) == SHOWN


def test_all_that_prints_shows_it(capfd: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [[HOSTILE, "x"]])
    console().print(HOSTILE)
    print_lines([HOSTILE])
    assert main(["tx", "describe", "tx", "--config", HOSTILE.replace("\0", "")]) == 2
    out, err = capfd.readouterr()
    assert out.count(SHOWN) == 3
    assert r"checkback: tx\u001b[2K" in err
    assert all(line.isprintable() for line in (out + err).split("\n"))


def test_logs_show_it() -> None:
    record = logging.LogRecord("checkback.x", logging.WARNING, "", 0, "about %s", (HOSTILE,), None)
    assert TextFormatter().format(record) == f"checkback: about {SHOWN}"
