"""What the overview and a group's page say of an evening: who is stuck, since when, and what comes next."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from dashboard import incident
from dashboard.visitors import client
from support.inspect_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_outcomes_older_than_five_minutes_are_not_among_those_of_the_last_five(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    asked = client(root).get("/overview.json").json()["status"]["checks"]
    assert {row["producer_group"] for row in asked} == {"shipping"}  # billing was asked last eight minutes ago
    half = Transaction(6, 0, now - timedelta(minutes=2))
    answer = incident._answer(half, 1, now - timedelta(minutes=1), "COMMIT", incident.DOWN)[1]
    append(root, "check_answers", [answer | {"producer_group": "billing"}])
    browser = client(root)
    asked = browser.get("/overview.json").json()["status"]["checks"]
    assert {(row["outcome"], row["checks"]) for row in asked if row["producer_group"] == "billing"} == {("COMMIT", 1)}


@pytest.mark.parametrize("path", ["/", "/pending", "/groups/billing", "/decisions", "/audit", "/consumers"])
def test_a_time_that_is_counted_back_becomes_a_fixed_one(evening: tuple[Path, datetime], path: str) -> None:
    """In the address and in all links; what else was asked for is kept."""
    browser, asked = client(evening[0]), datetime.now(timezone.utc)
    shown = browser.get(path, params={"as_of": "3m ago", "group": "billing & sons"})
    then = datetime.fromisoformat(shown.url.params["as_of"])
    assert timedelta(0) <= then - (asked - timedelta(minutes=3)).replace(microsecond=0) <= timedelta(seconds=30)
    assert (shown.url.path, shown.url.params["group"]) == (path, "billing & sons")
    assert browser.get(str(shown.url)).url == shown.url
    assert "ago" not in " ".join(re.findall(r"as_of=[^\"&]*", shown.text))
    assert f"as_of={then:%Y-%m-%dT%H%%3A%M%%3A%SZ}" in shown.text


def test_a_batch_that_is_counted_back_becomes_its_time(evening: tuple[Path, datetime]) -> None:
    browser = client(evening[0])
    form = browser.get("/overview.json?batch=2").json()["as_of"]
    shown = browser.get("/?batch=2&as_of=")
    assert dict(shown.url.params) == {"as_of": form["time"]}
    assert browser.get("/?batch=0&as_of=").history == []


def test_a_young_group_whose_ops_have_landed_waits_for_the_next_batch(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    """Its page says how old the oldest is; of its messages no check comes next."""
    root = shutil.copytree(evening[0], tmp_path / "copy")
    half = Transaction(6, 0, datetime.now(timezone.utc))
    append(root, "half", [half.half(producer_group="young")[1]])
    append(root, "op", [half.op(producer_group="young")[1]])
    page = client(root).get("/groups/young").text
    assert "<bdi>ops have landed: the next batch decides</bdi>" in page
    assert re.search(r"<dd>1, the oldest [0-9]+s; 0 overdue</dd>", page)
    assert "<td>decision by the next batch</td>" in page
    assert "<td>check <time>" not in page
