"""What became of a message, and what its page offers to do with it."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from dashboard import incident
from dashboard.visitors import SAME, form_of, signed_in
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

pytestmark = pytest.mark.slow

#: queue of resumed messages
_QUEUE = 2_000_000_000
_SHIPPING = {"producer_group": "shipping", "real_topic": "parcels"}


@pytest.fixture
def outage(evening: tuple[Path, datetime], tmp_path: Path) -> Path:
    """The evening, with two messages of shipping that were discarded; the first was resumed, and is pending."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    at = now - timedelta(minutes=2)
    for offset in (0, 1):
        half = Transaction(5, offset, now - timedelta(minutes=5))
        append(root, "half", [half.half(**_SHIPPING)[1]])
        append(root, "decisions", [half.decision("DISCARD", decided_at=at, **_SHIPPING)[1]])
        append(root, "discarded", [half.discarded(discarded_at=at, **_SHIPPING)[1]])
    first = Transaction(5, 0)
    names = first.key | _SHIPPING
    again = replace(first, queue=_QUEUE, born=now - timedelta(minutes=1))
    came = [("CHECKBACK_RESUMED_FROM", "5/0"), ("CHECKBACK_RESUMED_BY", "ann: mended")]
    resumed = again.half(**_SHIPPING, transaction_id="tx-5-0", properties=came)[1]
    append(root, "half", [resumed])
    row = {"at": now - timedelta(minutes=1), "action": "RESUME", "actor": "ann", "reason": "mended"}
    append(root, "operations", [names | row | {"new_queue_id": _QUEUE, "new_queue_offset": 0}])
    return root


def _form(page: str, action: str, offset: int, **more: str) -> dict[str, str]:
    place = {"queue_id": "5", "queue_offset": str(offset), "transaction_id": f"tx-5-{offset}", "group": "shipping"}
    return form_of(page, action=action, **place | more)


def test_a_resumed_message_leads_to_the_one_that_was_made_of_it(outage: Path) -> None:
    """It is not offered to be resumed again, and the two rounds are told apart."""
    browser = signed_in(outage)
    page = browser.get("/transactions/5/0").text
    (there,) = set(re.findall(rf'resumed as <a href="(/transactions/{_QUEUE}/0[^"]*)">{_QUEUE}/0</a>', page))
    assert '<span class="tag k-PENDING">PENDING</span>' in page
    assert '<span class="tag k-DISCARD">DISCARD</span> <bdi>CHECK_MAX' in page
    assert '<i class="e-DISCARDED"></i>DISCARDED' in page
    assert "Resume …" not in page
    assert page.count('<tr class="other">') == 1
    new = browser.get(html.unescape(there)).text
    assert 'resumed from <a href="/transactions/5/0' in new
    assert ("Commit …" in new, "Resume …" in new) == (True, False)
    assert "Resume …" in browser.get("/transactions/5/1").text


def test_a_resumed_message_that_a_restore_has_undone_is_gone_and_may_be_resumed_again(outage: Path) -> None:
    half = DeltaTable(str(outage / "half"))
    half.restore(half.version() - 1)
    browser = signed_in(outage)
    page = browser.get("/transactions/5/0").text
    assert f"resumed as {_QUEUE}/0, which is gone" in page
    assert ("Resume …" in page, "k-PENDING" in page, f'href="/transactions/{_QUEUE}/0' in page) == (True, False, False)
    done = browser.post("/actions", data=_form(page, "resume", 0) | {"confirmed": "yes"}, headers=SAME).text
    assert "<h1>Resume: done</h1>" in done
    page = browser.get("/transactions/5/0").text
    assert ("is gone" in page, "Resume …" in page, "k-PENDING" in page) == (False, False, True)


def test_what_is_refused_says_why_leads_back_and_keeps_what_was_typed(outage: Path) -> None:
    browser = signed_in(outage)
    page = browser.get("/transactions/5/1").text
    answer = browser.post("/actions", data=_form(page, "resume", 0), headers=SAME)
    assert (answer.status_code, "<h1>Resume: not done</h1>" in answer.text) == (409, True)
    assert f"was discarded, and resumed as {_QUEUE}/0" in answer.text
    assert 'href="/transactions/5/0?transaction_id=tx-5-0' in answer.text
    commit = browser.post("/actions", data=_form(page, "commit", 1), headers=SAME)
    assert (commit.status_code, "Resume …" in commit.text, "Commit …" in commit.text) == (409, True, False)
    wrong = browser.post("/actions", data=_form(page, "resume", 1, actor=""), headers=SAME)
    assert (wrong.status_code, "Who: is empty" in wrong.text, "Resume …" in wrong.text) == (400, True, True)
    unknown = browser.post("/actions", data=_form(page, "resume", 1, transaction_id="none"), headers=SAME)
    assert "has this transaction id" in unknown.text
    for told in (answer.text, commit.text, wrong.text, unknown.text):
        assert "<title>" in told
        assert not re.search(r"`checkback (?!reconcile)|--[a-z]|leave out", told)
    assert 'name="reason" value="paid by hand"' in commit.text
    assert 'name="reason" value="paid by hand"' in wrong.text


def test_a_preview_of_a_resume_tells_that_the_group_does_not_answer(outage: Path) -> None:
    browser = signed_in(outage)
    form = _form(browser.get("/transactions/5/1").text, "resume", 1)
    page = browser.post("/actions", data=form, headers=SAME).text
    assert "The group does not answer since" in page
    assert f"{incident.NOT_FOUND}: is its path right (producers.shipping.endpoints)?" in page
    done = browser.post("/actions", data=form | {"confirmed": "yes"}, headers=SAME).text
    assert "<h1>Resume: done</h1>" in done
    (new,) = re.findall(rf'href="(/transactions/{_QUEUE}/[^"]*)"', done)
    assert "resumed from" in browser.get(html.unescape(new)).text


def test_a_group_that_answers_is_not_warned_of(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    half = Transaction(5, 1, now - timedelta(minutes=5))
    rows: list[tuple[str, dict[str, Any]]] = [half.half(), half.decision("DISCARD"), half.discarded()]
    for name, row in rows:
        append(root, name, [row | {"producer_group": "orders"}])
    browser = signed_in(root)
    form = _form(browser.get("/transactions/5/1").text, "resume", 1, group="orders")
    page = browser.post("/actions", data=form, headers=SAME).text
    assert ("Do it" in page, "does not answer" in page) == (True, False)


def test_a_dead_letter_is_consumed_again_from_its_page(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """A message that is published is not offered to be cancelled."""
    browser = signed_in(shutil.copytree(evening[0], tmp_path / "copy"))
    page = browser.get("/transactions/3/1").text
    assert ("Consume again …" in page, "Cancel …" in page) == (True, False)
    place = {"queue_id": "3", "queue_offset": "1", "transaction_id": "tx-3-1"}
    form = form_of(page, action="reconsume", group="ledger", topic="payments", **place)
    asked = browser.post("/actions", data=form, headers=SAME | {"accept": "application/json"}).json()
    assert [row[3] for row in asked["preview"]["rows"]] == ["tx-3-1"]
    done = browser.post("/actions", data=form | {"confirmed": "yes", "seen": asked["form"]["seen"]}, headers=SAME).text
    assert "<h1>Consume again: done</h1>" in done
    assert '<a href="/transactions/3/1">3/1</a>' in done
    later = browser.get("/transactions/3/1").text
    assert ("Consume again …" in later, "pending as a retry" in later) == (False, True)
    assert "Cancel …" not in browser.get("/transactions/3/0").text


@pytest.mark.parametrize("damaged", [False, True])
def test_a_message_is_shown_though_the_group_that_gave_it_up_cannot_be_read(
    evening: tuple[Path, datetime], tmp_path: Path, damaged: bool
) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    group = root / "consumer_groups" / "ledger"
    if damaged:
        for file in group.glob("*.parquet"):
            file.write_bytes(b"x")
    else:
        shutil.rmtree(group)
    page = signed_in(root).get("/transactions/3/1")
    assert (page.status_code, "given up by the consumer group ledger" in page.text) == (200, True)
    assert "<bdi>ledger</bdi></a>: <bdi>not known: " in page.text
    assert "Consume again …" not in page.text


def test_consumer_groups_are_shown_though_their_dead_letters_cannot_be_read(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    for file in (root / "dead_letters").glob("*.parquet"):
        file.write_bytes(b"x")
    answer = signed_in(root).get("/consumers.json")
    assert answer.status_code == 200
    (group,) = answer.json()["rows"]
    assert (group["group"], group["topics"][0]["dead_letters"], group["dead_letters"]) == ("ledger", 1, [])
    assert group["errors"][0].startswith("its dead letters are not known: ")
