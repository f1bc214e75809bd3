"""`checkback outages`: the evening on call of `support.outage`, in which one outage is over and two go on."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.cli import main
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support import outage
from support.stories import Transaction, in_batches, write

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evening's tables."""
    root = tmp_path_factory.mktemp("evening")
    outage.make(root)
    return root


def _lines(capfd: pytest.CaptureFixture[str], root: Path, *words: str) -> list[str]:
    assert main(["outages", *words, "--set", f"storage.root={root}"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out.splitlines()


def _rows(capfd: pytest.CaptureFixture[str], root: Path, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(capfd, root, *words, "-o", "json")]


def test_what_is_over_is_named_and_what_goes_on(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unknown, down, over = _rows(capfd, root)
    assert [row["producer_group"] for row in (unknown, down, over)] == ["invoices", "shipping", "orders"]
    assert [row["outcome"] for row in (unknown, down, over)] == ["UNKNOWN", "NO_ANSWER", "NO_ANSWER"]
    assert (unknown["over_at"], down["over_at"]) == (None, None)
    assert _text(outage.BEGAN) <= over["began_at"] < over["last_vain_at"] < _text(outage.OVER) <= over["over_at"]
    assert (over["said"], over["endpoints"]) == (outage.REFUSED, ["http://orders:8901/check"])
    assert over["discarded"] > 0
    assert over["transactions"] == over["discarded"] + over["decided"] + over["still_pending"]
    header, *_, line = _lines(capfd, root)
    assert header.split() == ["group", "from", "until", "said", "endpoints", "waited", "discarded", "still", "pending"]
    assert line.split()[:3] == ["orders", over["began_at"], over["over_at"]]
    assert f"NO_ANSWER {outage.REFUSED}" in line
    assert line.split()[-3:] == [str(over[name]) for name in ("transactions", "discarded", "still_pending")]
    assert (
        sum(f"goes on (asked {row['last_vain_at']})" in "\n".join(_lines(capfd, root)) for row in (unknown, down)) == 2
    )


def test_since_keeps_the_beginning_of_what_was_not_over(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (whole,) = _rows(capfd, root, "--group", "orders")
    amid = outage.BEGAN + (outage.OVER - outage.BEGAN) / 2
    assert _rows(capfd, root, "--group", "orders", "--since", f"{amid:%Y-%m-%dT%H:%M:%S}") == [whole]
    late = f"{outage.NOW:%Y-%m-%dT%H:%M:%S}"
    assert {row["producer_group"] for row in _rows(capfd, root, "--since", late)} == {"invoices", "shipping"}
    (line,) = _lines(capfd, root, "--group", "orders", "--since", late)
    assert line == f"No outage of the group orders is known since {late}."


def test_one_whose_messages_were_all_given_up_does_not_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = Transaction(0)
    asked = [one.born + timedelta(minutes=times) for times in (1, 2)]
    answers = [outage._answer(one, times, at, "orders", "NO_ANSWER") for times, at in enumerate(asked, 1)]
    tables = Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage)
    write(None, tables, in_batches([*one.given_up(), *answers])[0])
    *_, line = _lines(capfd, tmp_path)
    (row,) = _rows(capfd, tmp_path)
    assert f"- (not asked since {row['last_vain_at']})" in line
    assert _rows(capfd, tmp_path, "--since", row["last_vain_at"]) == [row]
    assert _rows(capfd, tmp_path, "--since", _text(asked[1] + timedelta(minutes=1))) == []


def test_a_group_without_any_is_told(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _lines(capfd, root, "--group", "payments") == ["No outage of the group payments is known."]
    (line,) = _lines(capfd, root, "--group", "nobody")
    assert line.startswith("No outage of the group nobody is known.")
    assert line != "No outage of the group nobody is known."


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}"
