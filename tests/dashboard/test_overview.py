"""What the overview and a group's page say of an evening: who is stuck, since when, and what comes next."""

from __future__ import annotations

import re
import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from checkback.query.engines import duckdb_engine
from checkback.settings import Settings
from dashboard import incident
from dashboard.visitors import client
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_outcomes_older_than_five_minutes_are_not_among_those_of_the_last_five(
    this_evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root, now = shutil.copytree(this_evening[0], tmp_path / "copy"), this_evening[1]
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
    assert "<bdi>ops have landed, not yet read by reconcile: the next batch decides</bdi>" in page
    assert re.search(r"<dd>1, the oldest [0-9]+s; 0 overdue</dd>", page)
    assert "<td>COMMIT by the next batch</td>" in page
    assert "<td>check <time>" not in page


def test_the_discard_forecast_of_a_stuck_group_is_told(evening: tuple[Path, datetime]) -> None:
    """When the message that had most checks has had them all, each an interval after the one before."""
    browser = client(evening[0])
    (billing,) = (row for row in browser.get("/overview.json").json()["groups"] if row["producer_group"] == "billing")
    interval = Settings().transaction.check_interval
    pending = browser.get("/pending.json?group=billing").json()["rows"]
    due = min(datetime.fromisoformat(row["next_check_at"]) + (15 - row["check_times"]) * interval for row in pending)
    assert datetime.fromisoformat(billing["discard_forecast"]) == due
    told = f"<time>{due:%Y-%m-%d %H:%M:%S}</time>"
    for path in ("/", "/groups/billing"):
        assert told in browser.get(path).text


def test_the_overview_of_a_time_tells_what_was_pending_and_waited(this_evening: tuple[Path, datetime]) -> None:
    browser, then = client(this_evening[0]), f"{this_evening[1] - timedelta(minutes=3):%Y-%m-%dT%H:%M:%SZ}"
    data = browser.get("/overview.json", params={"as_of": then}).json()
    told = {line["name"]: line["text"] for line in data["lines"]}
    assert told["pending"] == "5"
    assert told["unpublished"].startswith("4 for refunds, since ")
    assert "last 5 minutes: COMMIT 4, " in told["decisions"]
    assert {group for group, *_ in data["endpoints"]} == {"shipping", "billing"}
    assert f'href="/unpublished?as_of={then.replace(":", "%3A")}"' in browser.get("/", params={"as_of": then}).text


def test_the_overview_of_now_is_shown_anew_and_tells_its_time(evening: tuple[Path, datetime]) -> None:
    browser, began = client(evening[0]), datetime.now(timezone.utc).replace(microsecond=0)
    page = browser.get("/").text
    shown = re.search(r"<h1>Now <small>as of <time>([^<]*)</time> UTC", page)
    assert shown is not None
    assert datetime.fromisoformat(f"{shown[1]}+00:00") >= began
    assert ('data-refresh="30"' in page, 'http-equiv="refresh" content="30"' in page) == (True, True)
    assert "refresh" not in browser.get("/", params={"as_of": "5m ago"}).text.replace("refreshed", "")


def test_what_needs_attention_leads_on(this_evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root = shutil.copytree(this_evening[0], tmp_path / "copy")
    half = Transaction(6, 0, this_evening[1])
    append(root, "decisions", [half.decision("DISCARD", decided_at=this_evening[1] - timedelta(minutes=2))[1]])
    page = client(root).get("/").text
    for where in ("discarded", "unpublished", "consumers"):
        assert f'<a class="flag" href="/{where}">look here</a>' in page
    assert page.count('<a href="/groups/shipping"><bdi>shipping</bdi></a>') == 3  # stuck, its endpoint, its reason


def test_a_groups_page_says_what_to_do_and_how_often_nobody_answered(
    this_evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root, now = shutil.copytree(this_evening[0], tmp_path / "copy"), this_evening[1]
    half = Transaction(6, 0, now - timedelta(minutes=2))
    answer = incident._answer(half, 1, now - timedelta(minutes=1), "UNKNOWN", incident.DOWN)[1]
    append(root, "half", [half.half(producer_group="invoices")[1]])
    append(root, "check_requests", [half.check(1)[1] | {"producer_group": "invoices"}])
    append(root, "check_answers", [answer | {"producer_group": "invoices"}])
    browser = client(root)
    shipping = browser.get("/groups/shipping").text
    assert "then start reconcile again" in shipping
    assert "opens no breaker" in shipping
    (wrong,) = browser.get("/groups/shipping.json").json()["endpoints"]
    assert (wrong["breaker"]["breaker"], wrong["breaker"]["unanswered"]) == ("closed", 6)
    assert "once it answers" in browser.get("/groups/billing").text
    assert "ask its team what became of these" in browser.get("/groups/invoices").text


def test_many_small_files_are_told_on_the_page(evening: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they are few."""
    browser, said = client(evening[0]), "Many small files make these pages slow"
    assert said not in browser.get("/pending").text
    monkeypatch.setattr(duckdb_engine, "_MANY", 2)
    assert said in browser.get("/pending").text
    monkeypatch.undo()
    assert said not in browser.get("/pending").text


def test_an_outage_that_is_over_stays_on_its_groups_page(this_evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root, now = shutil.copytree(this_evening[0], tmp_path / "copy"), this_evening[1]
    (lasting,) = client(root).get("/groups/billing.json").json()["outages"]
    assert lasting["over_at"] is None
    assert "<td>goes on</td>" in client(root).get("/groups/billing").text
    over = now - timedelta(minutes=1)
    answer = incident._answer(Transaction(6, 0, now - timedelta(minutes=2)), 1, over, "COMMIT", incident.DOWN)[1]
    append(root, "check_answers", [answer | {"producer_group": "billing"}])
    page = client(root).get("/groups/billing").text
    assert "goes on" not in page
    assert f"<td><time>{over:%Y-%m-%d %H:%M:%S}</time></td><td>NO_ANSWER</td>" in page
