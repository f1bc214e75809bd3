"""Every page on real tables, with what a hostile producer may send."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from checkback.consumer.dead_letter_requests import Request, act, look
from checkback.consumer.group.group_reader import read_group
from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import Retry
from checkback.dashboard import overview
from checkback.dashboard.access import COOKIE, Access
from checkback.dashboard.app import HEADERS, create_app
from checkback.dashboard.pages import Pages
from checkback.query.audit.report import ENDS
from checkback.query.engines import duckdb_engine
from checkback.settings import Settings, Storage
from checkback.storage.tables import Tables
from checkback.urls import masked
from dashboard import incident
from dashboard.hostile import HOSTILE, PAGES, PENDING, SCRIPT, TOKEN
from dashboard.visitors import client, signed_in
from support.query_times import append, made_at
from support.stories import DONE, Transaction, batch, ms

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", PAGES)
def test_nothing_of_a_message_is_markup(root: Path, path: str) -> None:
    """Nor does it reorder or hide text; no page is large; its data are there as JSON, too."""
    browser = client(root)
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    assert SCRIPT not in answer.text
    assert "<img" not in answer.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", answer.text)
    assert "secret body" not in answer.text
    assert len(answer.content) < 200_000
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    page, _, query = path.partition("?")
    data = browser.get(f"{'/overview' if page == '/' else page}.json?{query}")
    assert data.headers["content-type"] == "application/json"
    assert isinstance(data.json(), dict)


def test_many_pending_messages_are_pages_the_oldest_first(root: Path) -> None:
    found: list[str] = []
    for page in range(4):
        data = client(root).get("/pending.json", params={"page": page}).json()
        found += [row["transaction_id"] for row in data["rows"]]
        assert data["more"] is (page < 2)
    assert sorted(found) == sorted([*HOSTILE, "large", *(f"t-{number}" for number in range(PENDING))])


def test_a_transaction_is_found_by_id_key_and_place(root: Path) -> None:
    browser = client(root)
    assert (
        browser.get("/transactions", params={"transaction_id": "t-7"}).url.path == f"/transactions/0/{len(HOSTILE) + 8}"
    )
    assert browser.get("/transactions", params={"queue_id": "0", "queue_offset": "1"}).url.path == "/transactions/0/1"
    assert len(browser.get("/transactions.json", params={"key": "key"}).json()["rows"]) == len(HOSTILE)
    story = browser.get("/transactions/0/0.json").json()
    assert [event["event"] for event in story["events"]] == ["HALF", "OP"]
    assert story["why"] == "COMMIT has landed, not yet read by reconcile: the next batch decides"


def test_another_transaction_at_the_offset_is_not_shown_in_its_place(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    append(
        root,
        "half",
        [Transaction(3, 1).half(transaction_id="tx B", real_topic="payments", store_timestamp=evening[1])[1]],
    )
    browser = client(root)
    found = browser.get("/transactions", params={"transaction_id": "tx B"})
    assert (found.url.path, "<h1><bdi>tx B</bdi></h1>" in found.text) == ("/transactions/3/1", True)
    assert _lead(found.text).count("NOT TAKEN") == 1
    assert "COMMIT" not in _lead(found.text)
    assert found.url.params["transaction_id"] == "tx B"
    assert "<h1><bdi>tx-3-1</bdi></h1>" in browser.get("/transactions/3/1").text
    assert browser.get("/transactions/3/1?transaction_id=tx-0-0").status_code == 404
    assert "/transactions/3/1?transaction_id=tx%20B" in browser.get("/transactions?topic=payments").text


def test_a_half_message_that_was_not_taken_is_not_pending(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """Nor on the list, nor in the page's JSON; be it of the same transaction id in another group."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    late = {"producer_group": "late", "real_topic": "not-taken", "keys": "late", "store_timestamp": now}
    append(root, "half", [Transaction(3, 1).half(**late)[1], Transaction(0, 0).half(**late)[1]])
    browser = client(root)
    found = browser.get("/transactions?topic=not-taken")
    assert (found.text.count("NOT TAKEN"), found.text.count("PENDING")) == (2, 0)
    rows = browser.get("/transactions.json?topic=not-taken").json()["rows"]
    then = datetime.now(timezone.utc).isoformat()
    assert [row["taken"] for row in rows] == [False, False]
    for row in rows:
        place = f"/transactions/{row['queue_id']}/{row['queue_offset']}"
        named = {"transaction_id": row["transaction_id"], "group": "late", "as_of": then}
        page = browser.get(place, params=named)
        assert "NOT TAKEN" in _lead(page.text)
        assert "NOT TAKEN" not in _lead(browser.get(place).text)
        told, now_link = (
            html.unescape(one) for one in re.findall(r'<a href="([^"]*)">(?:JSON|now)</a>', page.text)[::-1]
        )
        assert browser.get(told).json()["half"]["producer_group"] == "late"
        assert "as_of=" in told
        assert "NOT TAKEN" in _lead(browser.get(now_link).text)
        assert "as_of" not in now_link


def test_json_is_that_of_the_page(evening: tuple[Path, datetime]) -> None:
    """With its filters."""
    browser = client(evening[0])
    everything = browser.get("/decisions.json?since=1d ago").json()["rows"]
    group = everything[0]["producer_group"]
    page = browser.get("/decisions", params={"group": group, "since": "1d ago"}).text
    (told,) = re.findall(r'<a href="([^"]*)">JSON</a>', page)
    rows = browser.get(html.unescape(told)).json()["rows"]
    assert rows == [row for row in everything if row["producer_group"] == group]
    assert 0 < len(rows) < len(everything)


def test_lists_name_the_transaction_whose_offset_is_anothers_now(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    """`half` was restored to an older state, and the offset assigned again: the other is not shown in its place."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    gone = Transaction(77, 0)
    append(root, "decisions", [gone.decision("DISCARD", decided_at=now, transaction_id="gone", producer_group="g")[1]])
    append(root, "half", [Transaction(77, 0).half()[1]])
    browser = client(root)
    (there,) = re.findall(r'href="(/transactions/77/0[^"]*)"', browser.get("/decisions?group=g&since=1d ago").text)
    found = browser.get(html.unescape(there))
    assert (found.status_code, "this transaction has no half message" in found.text) == (404, True)


def test_a_scheduled_message_reads_as_scheduled_until_it_is_delivered_or_cancelled(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    """A cancelled one may be resumed."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    half, due = Transaction(8, 0, now - timedelta(minutes=2)), now + timedelta(hours=1)
    append(root, "half", [half.half()[1]])
    append(root, "decisions", [half.decision(decided_at=now, deliver_at=due)[1]])
    browser = signed_in(root)
    page = browser.get("/transactions/8/0").text
    assert f"scheduled for <time>{due:%Y-%m-%d %H:%M:%S}" in _lead(page)
    assert ("Cancel …" in page, "Resume …" in page) == (True, False)
    delivered = {name: half.decision()[1][name] for name in (*half.key, "real_topic", "batch_id")}
    then = now + timedelta(seconds=1)
    later = shutil.copytree(root, tmp_path / "later")
    append(later, "deliveries", [delivered | {"deliver_at": due, "delivered_at": then}])
    delivered_page = signed_in(later).get("/transactions/8/0").text
    assert ("scheduled for" in _lead(delivered_page), "Cancel …" in delivered_page) == (False, False)
    append(root, "decisions", [half.decision("CANCEL", source="operator", decided_at=then)[1]])
    page = browser.get("/transactions/8/0").text
    assert ("CANCEL" in _lead(page), "COMMIT" in _lead(page), "scheduled for" in _lead(page)) == (True, False, False)
    assert ("Cancel …" in page, "Resume …" in page) == (False, True)


def _lead(page: str) -> str:
    lead = re.search('<p class="lead.*?</p>', page, re.DOTALL)
    assert lead is not None
    return lead[0]


def test_pages_stay_at_the_batch_that_was_chosen(this_evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """Batches to come do not shift it: what links carry is its time, not how far back it is."""
    root = shutil.copytree(this_evening[0], tmp_path / "copy")
    browser = client(root)
    form = browser.get("/overview.json?batch=1").json()["as_of"]
    assert form["time"] == form["batches"][-2]["finished_at"]
    place = browser.get("/transactions", params={"transaction_id": "tx-0-0", "as_of": form["time"]}).url
    assert (place.path, place.params["as_of"]) == ("/transactions/0/0", form["time"])
    append(root, "batches", [batch(99, this_evening[1], "q")[1]])
    assert browser.get("/overview.json", params={"as_of": form["time"]}).json()["as_of"]["batch"] == 2
    form = browser.get("/overview.json", params={"as_of": "3m ago", "batch": "1"}).json()["as_of"]
    assert (form["batch"], form["as_of"]) == (3, "3m ago")


def test_a_page_of_a_time_says_the_time_and_the_batch(evening: tuple[Path, datetime]) -> None:
    """And the slider is at that batch."""
    browser, at = client(evening[0]), evening[1] - timedelta(minutes=3)
    page = browser.get("/", params={"as_of": at.isoformat()}).text
    assert f"As it was at <time>{at:%Y-%m-%d %H:%M:%S}</time> UTC, after batch " in page
    form = browser.get("/overview.json", params={"as_of": at.isoformat()}).json()["as_of"]
    assert form["batches"][-1 - form["batch"]]["batch_id"] == form["batch_id"]
    assert form["batch"] == 2
    assert f'<output id="when" for="batch">{at:%Y-%m-%d %H:%M:%S} UTC</output>' in page
    first = browser.get("/overview.json?as_of=50m ago").json()["as_of"]
    assert (first["batch"], first["batch_id"]) == (len(first["batches"]) - 1, None)
    assert "<h1>Now <small>as of <time>" in browser.get("/").text


def test_how_many_checks_are_left_is_told_by_the_limit_in_force(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """The last batch's, not that of the settings; after the last check comes the discard."""
    root = shutil.copytree(evening[0], tmp_path / "copy")
    for path in ("/pending", "/groups/billing"):
        page = client(root).get(path).text
        assert ("3 of 15" in page, "<td>check <time>" in page, "<td>discard" in page) == (True, True, False)
    assert "3 of 15 checks; next: check" in client(root).get("/transactions/0/0").text
    append(root, "batches", [batch(99, evening[1], "q", check_max=3)[1]])
    for path in ("/pending", "/groups/billing"):
        page = client(root).get(path).text
        assert ("3 of 3" in page, "<td>check <time>" in page, "<td>discard <time>" in page) == (True, False, True)
    assert "3 of 3 checks; next: discard" in client(root).get("/transactions/0/0").text


def test_a_message_that_waits_for_its_table_does_not_read_as_published(evening: tuple[Path, datetime]) -> None:
    browser = client(evening[0])
    lead = re.search('<p class="lead.*?</p>', browser.get("/transactions/2/0").text, re.DOTALL)
    assert lead is not None
    assert "not published yet</strong> waits for the table of <bdi>refunds</bdi> since" in lead[0]
    assert incident.NOT_TAKEN in lead[0]
    assert "not published yet" not in browser.get("/transactions/3/0").text


def test_dead_letters_are_told_with_their_reason(evening: tuple[Path, datetime]) -> None:
    (group,) = client(evening[0]).get("/consumers.json").json()["rows"]
    assert "with <code>--yes</code> it is" in client(evening[0]).get("/consumers").text
    (letter,) = group["dead_letters"]
    assert (letter["transaction_id"], letter["reason"]) == ("tx-3-1", incident.POISON)
    assert letter["fate"] == "given up"
    assert group["reconsume"] == "checkback group reconsume ledger --all --reason TEXT"


def test_a_dead_letter_is_part_of_its_transactions_story(evening: tuple[Path, datetime]) -> None:
    (event,) = client(evening[0]).get("/transactions/3/1.json").json()["events"][-1:]
    assert (event["event"], event["table"]) == ("DEAD_LETTER", "dead_letters")
    assert event["detail"] == f"given up by the consumer group ledger after 16 retries - {incident.POISON}"


def test_a_story_is_told_though_a_topic_cannot_be_read(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    for file in (root / "topics" / "payments").glob("*.parquet"):
        file.unlink()
    browser = client(root)
    page = browser.get("/transactions/3/1")
    assert page.status_code == 200
    assert '<span class="tag e-UNREADABLE">UNREADABLE</span>' in page.text
    *events, unread = browser.get("/transactions/3/1.json").json()["events"]
    assert (unread["table"], unread["at"], "No files found" in unread["detail"]) == ("topics/payments", None, True)
    assert (events[0]["event"], events[-1]["event"]) == ("HALF", "DEAD_LETTER")


def test_messages_that_wait_for_their_table_are_listed_with_the_reason(evening: tuple[Path, datetime]) -> None:
    browser = client(evening[0])
    found = browser.get("/unpublished.json").json()["rows"]
    assert [(row["transaction_id"], row["real_topic"]) for row in found] == [(f"tx-2-{n}", "refunds") for n in range(4)]
    assert {row["reason"] for row in found} == {incident.NOT_TAKEN}
    assert browser.get("/unpublished.json?topic=payments").json()["rows"] == []
    assert incident.NOT_TAKEN in browser.get("/unpublished").text


def test_an_endpoint_is_shown_with_its_breaker(evening: tuple[Path, datetime]) -> None:
    """Three checks of three messages fail within minutes of an answer; the settings name another endpoint, too."""
    other = "http://10.0.0.9:8080/check"
    about = {"storage": {"root": str(evening[0])}, "check": {"breaker_failures": 5}}
    settings = Settings.model_validate(about | {"producers": {"billing": {"endpoints": [incident.DOWN, other]}}})
    app = create_app(Pages(settings, Access(None, lambda: 1_000_000.0)))
    browser = TestClient(app, base_url="http://localhost:8902")
    down, unused = browser.get("/groups/billing.json").json()["endpoints"]
    assert (down["endpoint"], unused["endpoint"]) == (incident.DOWN, other)
    assert (down["breaker"]["breaker"], down["breaker"]["failures"]) == ("half-open", 9)
    assert down["breaker"]["last_error"] == incident.REFUSED
    assert (unused["breaker"], unused["outcomes"]) == (None, {})
    page = browser.get("/groups/billing").text
    assert "half-open" in page
    # One that answers each time with 404 is healthy for its breaker, not for its group.
    (wrong,) = browser.get("/groups/shipping.json").json()["endpoints"]
    assert (wrong["breaker"]["breaker"], wrong["breaker"]["failures"]) == ("closed", 0)
    assert wrong["breaker"]["last_error"] == incident.NOT_FOUND
    assert f'<tr class="bad"><td><bdi>{incident.WRONG}' in browser.get("/groups/shipping").text
    assert len(re.findall(r"<small>up to [0-9]+ in [0-9]+ s</small>", page)) == 2


def test_many_small_files_are_told_in_the_log_once(
    evening: tuple[Path, datetime], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "_MANY", 2)
    browser = client(evening[0])
    for _ in range(2):
        assert browser.get("/pending").status_code == 200
    said = [record.getMessage() for record in caplog.records if "small files" in record.getMessage()]
    assert all(line.endswith("run `checkback maintain`") for line in said)
    assert sum(line.count(" half ") for line in said) == 1


def test_a_page_of_another_site_has_no_audit_run(evening: tuple[Path, datetime]) -> None:
    browser, link = client(evening[0]), {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    link |= {"sec-fetch-dest": "document", "accept": "text/html"}
    assert browser.get("/audit", headers=link).status_code == 200
    for path in ("/audit?run=1", "/audit.json"):
        assert browser.get(path, headers=link).status_code == 403
    assert browser.get("/audit", headers=link | {"accept": "application/json"}).status_code == 403


def test_decisions_are_told_by_group_state_source_and_time(this_evening: tuple[Path, datetime]) -> None:
    browser = client(this_evening[0])
    found = browser.get("/decisions.json").json()
    assert [row["transaction_id"] for row in found["rows"]][-1] == "tx-0-9"
    assert {row["producer_group"]: row["COMMIT"] for row in found["counts"]} == {"orders": 10, "billing": 1}
    for query, ids in (
        ("source=check", ["tx-0-9"]),
        ("group=billing", ["tx-0-9"]),
        ("state=ROLLBACK", []),
        ("since=3m ago", [f"tx-3-{number}" for number in range(6)]),
        ("since=3m ago&as_of=3m ago", [f"tx-2-{number}" for number in range(4)]),
        ("since=1m ago", []),
    ):
        about = browser.get(f"/decisions.json?{query}").json()
        assert [row["transaction_id"] for row in about["rows"]] == ids, query
        assert sum(row["COMMIT"] for row in about["counts"]) == len(ids), query
    assert "since: &#39;1h&#39; is not a time" in browser.get("/decisions?since=1h").text
    assert 'href="/decisions"' in browser.get("/").text


def test_the_secret_of_an_endpoint_is_shown_nowhere(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """Neither of the settings' URL nor of one that was recorded, masked, under other settings."""
    root = shutil.copytree(evening[0], tmp_path / "copy")
    url, at = "http://10.0.0.9/check?token=s3cret&bare", evening[1] - timedelta(seconds=30)
    half = Transaction(7, 0, evening[1] - timedelta(minutes=1))
    answer = {
        "real_topic": "a",
        "check_times": 1,
        "endpoint": masked(url),
        "outcome": "NO_ANSWER",
        "error": "status 500",
    }
    answer |= {"latency_ms": 1, "answered_at": at, "batch_id": 1, "delivered": True}
    tried = [{"endpoint": masked(url).replace("10.0.0.9", "10.0.0.10"), "error": "status 500"}]
    tried.append({"endpoint": "http://10.0.0.9/check?token=****&****#2", "error": "status 501"})
    append(root, "half", [half.half()[1]])
    append(root, "check_answers", [half.key | answer | {"failed_tries": tried}])
    group = half.half()[1]["producer_group"]
    both = {group: {"endpoints": [url, url.replace("bare", "s3cret")]}}
    settings = Settings.model_validate({"storage": {"root": str(root)}, "producers": both})
    app = create_app(Pages(settings, Access(None, lambda: 1_000_000.0)))
    browser = TestClient(app, base_url="http://localhost:8902")
    for path in ("/", "/pending", f"/groups/{group}", "/transactions/7/0"):
        for kind in ("text/html", "application/json"):
            assert "s3cret" not in browser.get(path, headers={"accept": kind}).text, path
    (known, second, other) = browser.get(f"/groups/{group}.json").json()["endpoints"]
    assert known["endpoint"] == "http://10.0.0.9/check?token=****&****"
    assert known["breaker"]["last_error"] == "status 500"
    assert second["endpoint"] == "http://10.0.0.9/check?token=****&****#2"  # they have a breaker each
    assert second["breaker"]["last_error"] == "status 501"
    assert other["endpoint"].startswith("http://10.0.0.10/check?token=****")


def test_the_audit_runs_when_it_is_asked_for_one_at_a_time(
    evening: tuple[Path, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = client(evening[0])
    assert "Findings" not in browser.get("/audit").text
    page = browser.get("/audit?run=1").text
    found = browser.get("/audit.json").json()
    assert found["broken"] is (page.count("No promise is broken") != 1)
    assert found["figures"]["unpublished"] == 4
    assert sum(found["figures"][name] for name in ENDS) == found["figures"]["halves"]
    assert all(one["meaning"] in html.unescape(page) for one in found["findings"])
    with overview._running:
        assert browser.get("/audit.json").status_code == 503
    monkeypatch.setattr(overview, "WITHIN", timedelta(0))
    late = browser.get("/audit?run=1")
    assert (late.status_code, "takes too long" in late.text) == (409, True)
    monkeypatch.undo()
    assert browser.get("/audit.json").json()["broken"] is found["broken"]


def test_what_a_producer_said_last_is_told_of_a_group(evening: tuple[Path, datetime]) -> None:
    root, now = evening
    data = client(root).get("/overview.json").json()
    billing, shipping = (row for row in data["groups"] if row["overdue"])
    assert (billing["last_answer"], billing["last_answer_endpoint"]) == ("COMMIT", incident.DOWN)
    assert shipping["last_answer"] is None
    told = data["status"]["groups"][0]
    assert told["last_answer_at"].startswith(f"{now - incident.ANSWERED:%Y-%m-%dT%H:%M:%S}")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/transactions/0/999", 404),
        ("/transactions/x/1", 400),
        ("/transactions/0/99999999999999999999", 400),
        ("/transactions?queue_id=1", 400),
        ("/pending?older_than=soon", 400),
        ("/?as_of=tomorrow-ish", 400),
        ("/static/..%2fapp.py", 404),
        ("/static/app.py", 404),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(root: Path, path: str, status: int) -> None:
    assert client(root).get(path).status_code == status


def test_a_body_is_shown_when_it_is_allowed_and_asked_for(root: Path) -> None:
    path = "/transactions/0/6"
    assert "secret body" not in client(root).get(path, params={"body": "1"}).text
    allowed = client(root, bodies=True)
    assert "secret body" not in allowed.get(path).text
    assert "secret body" in allowed.get(path, params={"body": "1"}).text


@pytest.mark.parametrize(("erased", "said"), [(None, "removed by retention"), (DONE, "It was erased")])
def test_a_body_that_is_gone_is_told(tmp_path: Path, erased: datetime | None, said: str) -> None:
    half = Transaction(0).half(body=None, erased_at=erased)[1]
    append(tmp_path, "half", [half])
    assert said in client(tmp_path, bodies=True).get("/transactions/0/0", params={"body": "1"}).text


def test_other_hosts_and_strangers_see_nothing(root: Path) -> None:
    stranger = client(root).get("/", headers={"host": "evil.example"})
    assert (stranger.status_code, "orders" in stranger.text) == (421, False)
    guarded = client(root, TOKEN)
    assert guarded.get("/pending.json").status_code == 401
    assert guarded.get("/", headers={"accept": "text/html"}).url.path == "/login"
    assert guarded.get("/pending.json", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.post("/login", data={"token": "wrong"}).status_code == 401
    assert COOKIE not in guarded.cookies
    assert guarded.post("/login", data={"token": TOKEN}).status_code == 200
    assert guarded.get("/pending").status_code == 200
    assert TOKEN not in guarded.get("/").text


_PARAMETERS = {
    "/": ("as_of", "batch"),
    "/pending": ("group", "topic", "why", "older_than", "page"),
    "/unpublished": ("group",),
    "/transactions": ("find", "transaction_id", "key", "topic", "queue_id", "queue_offset"),
    "/transactions/0/6": ("body",),
    "/login": ("as_of",),
}


@pytest.mark.parametrize("value", ["9" * 5000, "x" * 50_000, "\xe9\u202e\u0663", "\x00", "-1", "99999999d ago"])
def test_no_value_of_a_parameter_is_an_error_of_the_dashboard(root: Path, value: str) -> None:
    browser = client(root)
    for path, names in _PARAMETERS.items():
        for name in names:
            answer = browser.get(path, params={name: value})
            assert answer.status_code < 500, (path, name)
            assert len(answer.content) < 400_000


def test_headers_that_no_browser_sends_are_answered(root: Path) -> None:
    browser = client(root, TOKEN, actions=True)
    for headers in ({"cookie": f"{COOKIE}=a.b.\xe9".encode("latin-1")}, {"host": b"["}, {"host": b"\xe9"}):
        assert browser.get("/login", headers=headers).status_code == 200
        assert browser.get("/", headers=headers).status_code == 401
        assert browser.post("/actions", headers=headers | {"origin": b"http://["}).status_code in (401, 403)


def test_what_is_not_known_of_a_group_is_not_zero(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    (before,) = client(root).get("/consumers.json").json()["rows"]
    topic = before["topics"][0]["topic"]
    tables = Tables.of(Storage(root=str(root)))
    state = read_group(tables, "ledger").state
    unread = {queue: QueueState(Position()) for queue in state.queues}
    GroupTable(tables, "ledger").update(lambda _: GroupState({}, unread))
    (root / "topics" / topic).rename(root / "aside")
    browser = client(root)
    (row,) = browser.get("/consumers.json").json()["rows"]
    assert (row["topics"][0]["lag_messages"], row["topics"][0]["lag_s"]) == (None, None)
    assert row["topics"][0]["retries"] == 0
    assert '<td class="n">?</td><td class="n">?</td><td class="n">0</td>' in browser.get("/consumers").text
    for log in (root / "consumer_groups/ledger/_delta_log").glob("*"):
        log.write_bytes(log.read_bytes()[:40])
    (row,) = browser.get("/consumers.json").json()["rows"]
    assert (row["members"], row["topics"]) == (None, [])
    assert "Members, lag and dead letters are not known" in browser.get("/consumers").text
    assert consumers_line(browser)["bad"]


def test_the_message_that_holds_up_a_queue_is_named(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """The overview marks the group; its page says which message of which queue, and why."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), ms(datetime.now(timezone.utc))
    table, queue = GroupTable(Tables.of(Storage(root=str(root))), "ledger"), MessageQueue("payments", 5)
    held = Retry(MessageKey(BatchKey("a", 9, now), 3, 70), 12, now, "ValueError at ledger.py:7", now - 3_600_000)
    table.update(lambda state: state.with_queues({queue: replace(state.queues[queue], retries=(held,))}))
    browser = client(root)
    line = consumers_line(browser)
    assert line["bad"]
    assert "1 queue blocked by a failing message for 1h" in line["text"]
    told = "payments, queue 5: blocked by message 3/70 since "
    assert told in browser.get("/consumers").text
    (row,) = browser.get("/consumers.json").json()["rows"]
    assert next(error for error in row["errors"] if error.startswith(told)).endswith(
        "; 12 failed tries, the last: ValueError at ledger.py:7"
    )


def test_a_group_whose_only_member_was_killed_is_red_and_its_queues_are_nobodys(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    place = root / "consumer_groups/ledger"
    newest = len([*(place / "_delta_log").glob("*.json")]) - 1
    made_at(str(place), newest, ms(evening[1] - timedelta(hours=1)))
    browser = client(root)
    (row,) = browser.get("/consumers.json").json()["rows"]
    assert (row["not_heard_of"], row["topics"][0]["queues_without_owner"]) == (["ledger-1"], 64)
    assert "Not heard of since: <bdi>ledger-1</bdi>" in browser.get("/consumers").text
    told = consumers_line(browser)
    assert told["bad"], told
    assert "members 0 (1 not heard of for 1h" in told["text"]


def consumers_line(browser: TestClient) -> dict[str, Any]:
    """What the overview says of the only consumer group."""
    (line,) = (line for line in browser.get("/overview.json").json()["lines"] if line["name"] == "consumers")
    return dict(line)


def test_new_dead_letters_are_red_until_they_are_consumed_again(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    told = consumers_line(client(root))
    assert (told["bad"], "given up 1 time, new dead letters 1" in told["text"]) == (True, True)
    tables = Tables.of(Storage(root=str(root)))
    asked = Request.of("ledger", None, (), True, "ann", "mended")
    act(tables, asked, look(tables, asked), ms(evening[1]))
    assert "new" not in consumers_line(client(root))["text"]


def test_discards_of_the_last_minutes_are_red(this_evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root = shutil.copytree(this_evening[0], tmp_path / "copy")

    def red() -> bool:
        lines = client(root).get("/overview.json").json()["lines"]
        return any(line["bad"] for line in lines if line["name"] == "decisions")

    half = Transaction(6, 0, this_evening[1])
    append(root, "decisions", [half.decision("DISCARD", decided_at=this_evening[1] - timedelta(minutes=9))[1]])
    assert not red()
    append(root, "decisions", [half.decision("DISCARD", decided_at=this_evening[1] - timedelta(minutes=2))[1]])
    assert red()


@pytest.mark.parametrize("path", ["/consumers", "/audit", "/audit?run=1"])
def test_a_page_that_only_shows_now_says_so_when_a_time_is_chosen(evening: tuple[Path, datetime], path: str) -> None:
    browser = client(evening[0])
    said = "This page shows what is there now, not as of"
    assert said not in browser.get(path).text
    then = f"{evening[1] - timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"
    page = browser.get(path, params={"as_of": then, "run": "1" if "run" in path else ""}).text
    assert f"{said} {then}" in page
    assert f'href="/pending?{urlencode({"as_of": then})}"' in page


@pytest.mark.parametrize("token", [None, TOKEN])
def test_probes_need_no_token_and_no_localhost(root: Path, tmp_path: Path, token: str | None) -> None:
    """Nor do they say anything of the tables; without tables the dashboard can show nothing."""
    for lake, status in ((root, 200), (tmp_path, 503)):
        browser = client(lake, token)
        for path, expected in (("/healthz", 200), ("/readyz", status)):
            answer = browser.get(path, headers={"host": "10.1.2.3:8902"})
            assert (answer.status_code, str(tmp_path) in answer.text) == (expected, False), path


def test_a_dashboard_whose_batches_are_gone_is_not_ready(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    lake = shutil.copytree(evening[0], tmp_path / "lake")
    assert client(lake).get("/readyz").status_code == 200
    shutil.rmtree(lake / "batches")
    assert client(lake).get("/readyz").status_code == 503
