"""What the lists tell beside their rows: how many of what, the keys that people know, what is typed wrongly."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dashboard import incident
from dashboard.hostile import HOSTILE
from dashboard.visitors import SAME, client, signed_in
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_rows_have_the_keys_of_their_messages(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    """Those of the half message that a row names, not of another at its offset."""
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    stranger = Transaction(0, 0, now).half(transaction_id="stranger", keys="strange")[1]
    scheduled, gone = Transaction(8, 0, now), Transaction(8, 1, now)
    append(root, "half", [stranger, scheduled.half(keys="later")[1], gone.half(keys="poison-20")[1]])
    append(root, "decisions", [scheduled.decision(decided_at=now, deliver_at=now + timedelta(hours=1))[1]])
    append(root, "decisions", [gone.decision("DISCARD", decided_at=now)[1]])
    append(root, "discarded", [gone.discarded(discarded_at=now)[1]])
    browser = client(root)
    of = {path: browser.get(f"{path}.json").json() for path in ("/pending", "/scheduled", "/discarded", "/unpublished")}
    keys = {path: [row["keys"] for row in data["rows"]] for path, data in of.items()}
    assert set(keys["/pending"]) == {"key"}
    assert (keys["/scheduled"], keys["/discarded"], keys["/unpublished"]) == (["later"], ["poison-20"], ["key"] * 4)
    (group,) = browser.get("/consumers.json").json()["rows"]
    assert [letter["keys"] for letter in group["dead_letters"]] == ["key"]
    for path in (*of, "/groups/billing", "/consumers"):
        assert "<small><bdi>" in browser.get(path).text, path


def test_lists_tell_how_many_of_what(evening: tuple[Path, datetime], tmp_path: Path) -> None:
    root, now = shutil.copytree(evening[0], tmp_path / "copy"), evening[1]
    for offset, reason in enumerate(("CHECK_MAX", "CHECK_MAX", "EXPIRED")):
        half = Transaction(8, offset, now)
        append(root, "discarded", [half.discarded(reason=reason, discarded_at=now - timedelta(minutes=offset))[1]])
    for offset, topic in enumerate(("a", "b", "b")):
        later: dict[str, Any] = {"deliver_at": now + timedelta(hours=offset), "real_topic": topic}
        append(root, "decisions", [Transaction(9, offset, now).decision(decided_at=now, **later)[1]])
    browser = client(root)
    found = browser.get("/discarded.json").json()
    assert [(row["reason"], row["messages"]) for row in found["counts"]] == [("CHECK_MAX", 2), ("EXPIRED", 1)]
    assert found["total"] == 3
    assert browser.get("/discarded.json?group=nobody").json()["total"] == 0
    found = browser.get("/scheduled.json").json()
    assert [(row["real_topic"], row["messages"]) for row in found["counts"]] == [("a", 1), ("b", 2)]
    assert "<h2>3 discarded</h2>" in browser.get("/discarded").text
    assert "<h2>3 scheduled</h2>" in browser.get("/scheduled").text


def test_what_waits_for_a_table_is_told_with_the_table_and_once_why(evening: tuple[Path, datetime]) -> None:
    page = client(evening[0]).get("/unpublished").text
    assert f"{evening[0]}/topics/refunds</bdi></code>" in page
    assert page.count(incident.NOT_TAKEN) == 1
    assert ("<h2>4 wait" in page, "nothing more is needed" in page) == (True, True)
    (line,) = (one for one in client(evening[0]).get("/overview.json").json()["lines"] if one["name"] == "unpublished")
    assert re.match("4 for refunds, since [0-9]", line["text"])
    pending = client(evening[0]).get("/groups/shipping").text
    assert pending.count("<small>as above</small>") == 1


@pytest.mark.parametrize(
    ("find", "found"),
    [("t-7", 1), ("key", len(HOSTILE)), (" 0/2 ", 1), ("nobody", 0), ("3000000000/1", 0), (f"0/{10**20}", 0), (" ", 0)],
)
def test_the_search_finds_an_id_or_else_a_key_or_a_place(root: Path, find: str, found: int) -> None:
    browser = client(root)
    assert len(browser.get("/transactions.json", params={"find": find}).json()["rows"]) == found
    answer = browser.get("/transactions", params={"find": find})
    assert (answer.url.path != "/transactions") is (found == 1)
    assert ("has it among its keys" in answer.text) is (found == 0)


@pytest.mark.parametrize(
    ("path", "typed", "wrong"),
    [
        ("/pending?group=orders&older_than=abc", "abc", "older_than: "),
        ("/decisions?since=1h", "1h", "since: "),
        ("/transactions?queue_id=7", "7", "queue_id, queue_offset: is no place"),
    ],
)
def test_what_is_typed_wrongly_stays_in_its_form(root: Path, path: str, typed: str, wrong: str) -> None:
    browser = client(root)
    answer = browser.get(path)
    assert answer.status_code == 400
    assert f'value="{typed}"' in answer.text
    assert re.search(f'role="alert"><bdi>{wrong}', answer.text)
    page, _, query = path.partition("?")
    assert browser.get(f"{page}.json?{query}").status_code == 400


def test_a_time_before_the_first_batch_is_told_to_have_no_data(evening: tuple[Path, datetime]) -> None:
    browser = client(evening[0])
    assert "There are no data of that time: the first batch was complete at" in browser.get("/?as_of=50m ago").text
    assert "There are no data" not in browser.get("/?as_of=3m ago").text
    assert "There are no data" not in browser.get("/").text


def _letters(root: Path, now: datetime) -> None:
    """A message that was given up twice, and another."""
    letter: dict[str, Any] = {"consumer_group": "ledger", "topic": "payments", "reconsume_times": 16, "reason": "no"}
    for offset, back in ((0, 40), (0, 50), (2, 30)):
        half = Transaction(3, offset, now - timedelta(minutes=3))
        row = half.published("payments", published_at=now - timedelta(minutes=2))[1]
        append(root, "dead_letters", [row | letter | {"batch_id": 3, "dead_at": now - timedelta(seconds=back)}])


def test_dead_letters_are_counted_as_messages_and_ticked_one_by_one(
    evening: tuple[Path, datetime], tmp_path: Path
) -> None:
    root = shutil.copytree(evening[0], tmp_path / "copy")
    _letters(root, evening[1])
    browser = signed_in(root)
    (group,) = browser.get("/consumers.json").json()["rows"]
    assert sum(group["fates"].values()) == len(group["dead_letters"]) == 3
    page = browser.get("/consumers").text
    assert "<p>3 messages: " in page
    assert '<th class="n">times given up</th>' in page
    ids = re.findall(r'type="checkbox" name="transaction_id" value="([^"]*)" form="again-1"', page)
    assert "tx-3-1" in ids
    assert 'id="again-1" method="post" action="/actions"' in page
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert csrf is not None
    fields = [("csrf", csrf[1]), ("action", "reconsume"), ("group", "ledger"), ("actor", "ann"), ("reason", "mended")]
    body = "&".join(f"{name}={value}" for name, value in (*fields, *(("transaction_id", one) for one in ids)))
    headers = SAME | {"content-type": "application/x-www-form-urlencoded"}
    preview = browser.post("/actions", content=body, headers=headers).text
    assert all(f"<bdi>{one}</bdi>" in preview for one in ids)
    assert ("topic" in re.findall("<dt>(.*?)</dt>", preview), "Do it" in preview) == (False, True)
    none = browser.post("/actions", content=body.partition("&transaction_id")[0], headers=headers)
    assert (none.status_code, "dead letters: tick some" in none.text) == (400, True)
