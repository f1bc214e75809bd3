"""What an operator does in the browser: previewed, then confirmed."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from checkback.errors import printable
from checkback.gateway.appender import Appender, half_rows
from checkback.gateway.health import now_ms
from checkback.operate.operator_tables import FileStore
from checkback.settings import Storage
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from dashboard.hostile import HOSTILE, TOKEN, message
from dashboard.visitors import SAME, as_sent, client, form_of, signed_in
from operate.fixtures import Lakehouse
from support.query_times import append

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_an_operator_resolves_a_transaction_after_a_preview(root: Path) -> None:
    browser = signed_in(root)
    offset = str(len(HOSTILE) + 3)
    page = browser.get(f"/transactions/0/{offset}").text
    place = {"transaction_id": "t-2", "group": "orders", "queue_id": "0", "queue_offset": offset}
    form = form_of(page, action="commit", **place)
    preview = browser.post("/actions", data=form, headers=SAME)
    assert preview.status_code == 200, preview.text
    assert "Your COMMIT is appended to `op`" in preview.text
    for written in ("ann", "paid by hand"):  # what operations will tell
        assert f"<dd><bdi>{written}</bdi></dd>" in preview.text
    ops = DeltaLog("op", f"{root}/op").version()
    for wrong in ({"csrf": "0" * 64}, {"csrf": ""}):
        assert browser.post("/actions", data=form | wrong | {"confirmed": "yes"}, headers=SAME).status_code == 403
    elsewhere = {"origin": "http://evil.example"}
    assert browser.post("/actions", data=form | {"confirmed": "yes"}, headers=elsewhere).status_code == 403
    assert DeltaLog("op", f"{root}/op").version() == ops
    done = browser.post("/actions", data=form | {"confirmed": "yes"}, headers=SAME)
    assert "the op is appended" in done.text
    story = browser.get(f"/transactions/0/{offset}.json").json()
    assert {"OP", "OPERATION"} <= {event["event"] for event in story["events"]}
    assert json.dumps(story).count("ann") >= 1


def test_preview_says_when_a_message_with_a_delay_is_delivered(tmp_path: Path) -> None:
    """As the command."""
    Lakehouse(tmp_path).half(5, delay_ms=3_600_000)
    browser = signed_in(tmp_path)
    form = form_of(browser.get("/transactions/0/5").text, action="commit", transaction_id="tx")
    preview = browser.post("/actions", data=form, headers=SAME)
    assert "schedules the message, which is published in topics/payments 1h later, not before 2" in preview.text
    assert "Nothing undoes it" not in preview.text


def test_action_that_is_refused_once_it_is_confirmed_completes_the_ledger(tmp_path: Path) -> None:
    """Another operator's command has died in between."""
    lake = Lakehouse(tmp_path)
    place = lake.half(5)
    browser = signed_in(tmp_path)
    form = form_of(browser.get("/transactions/0/5").text, action="rollback", transaction_id="tx")
    preview = browser.post("/actions", data=form, headers=SAME)
    lake.op(place, "COMMIT", source="operator", remark="bob: before the crash")
    assert browser.post("/actions", data=form, headers=SAME).status_code == 409
    assert lake.rows("operations") == []
    assert browser.post("/actions", data=as_sent(preview.text), headers=SAME).status_code == 409
    assert [(row["action"], row["actor"]) for row in lake.rows("operations")] == [("RESOLVE_COMMIT", "bob")]


#: that browsers alter, and that look like what stands for these
_ALTERED = ("a\nb", "a\r\nb", "\r", "a\0b", "50%0A", "%25", " a\t")


@pytest.fixture
def altered(tmp_path: Path) -> Path:
    """Pending messages of such names."""
    for name in SCHEMAS:
        DeltaLog.create(name, f"{tmp_path}/{name}", sync=False)
    halves = [message(name, producer_group=name) for name in _ALTERED]
    Appender(str(tmp_path), "half", [0], sync=False).append(half_rows(halves, 0, 0, now_ms()))
    return tmp_path


def test_ids_that_browsers_alter_are_the_same_when_a_form_is_sent(altered: Path) -> None:
    browser = signed_in(altered)
    for offset, name in enumerate(_ALTERED):
        sent = as_sent(browser.get(f"/transactions/0/{offset}").text)
        preview = browser.post(
            "/actions", data=sent | {"action": "commit", "actor": "ann", "reason": "x"}, headers=SAME
        )
        assert preview.status_code == 200, (name, preview.text)
        done = browser.post("/actions", data=as_sent(preview.text), headers=SAME)
        assert "the op is appended" in done.text, name
        assert f'"/transactions/0/{offset}?transaction_id={quote(name)}&amp;group={quote(name)}"' in done.text
        instead = browser.post("/actions", data=as_sent(preview.text), headers=SAME)
        assert instead.status_code == 409, name
    ops = FileStore(Tables.of(Storage(root=str(altered)))).rows("op", {}).to_pylist()
    assert sorted(op["transaction_id"] for op in ops) == sorted(_ALTERED)


def test_actions_are_off_unless_they_are_allowed(root: Path) -> None:
    browser = client(root, TOKEN)
    browser.post("/login", data={"token": TOKEN})
    assert 'action="/actions"' not in browser.get("/transactions/0/6").text
    assert browser.post("/actions", data={"action": "commit"}).status_code == 403
    assert client(root, actions=True).post("/actions", data={"action": "commit"}).status_code == 403


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"action": "destroy"}, 400),
        ({"action": "commit", "actor": ""}, 400),
        ({"action": "commit", "queue_id": "-1"}, 400),
        ({"action": "commit", "queue_id": str(2**31)}, 400),
        ({"action": "resume", "queue_offset": str(2**63)}, 400),
        ({"action": "commit", "transaction_id": "nobody's"}, 400),
        ({"action": "commit", "reason": "x" * (64 << 10)}, 413),
    ],
)
def test_a_form_that_is_wrong_does_nothing(root: Path, fields: dict[str, str], status: int) -> None:
    browser = signed_in(root)
    form = form_of(browser.get("/transactions/0/8").text, transaction_id="t-1", queue_id="0", queue_offset="8")
    answer = browser.post("/actions", data=form | fields, headers=SAME)
    assert answer.status_code in (status, 409), answer.text


@pytest.fixture
def given_up(evening: tuple[Path, datetime], tmp_path: Path) -> Path:
    """The evening, with dead letters whose ids are parts of one another's."""
    root = shutil.copytree(evening[0], tmp_path / "copy")
    append(root, "dead_letters", [_dead_letter(evening[0], name, offset) for offset, name in _NAMES.items()])
    return root


_NAMES = {2: "tx 3", 3: "tx", 4: "3", 5: " tx", 6: "tx\n3"}


def _dead_letter(root: Path, name: str, offset: int) -> dict[str, Any]:
    """Another message of the batch of the evening's dead letter."""
    store = FileStore(Tables.of(Storage(root=str(root))))
    row: dict[str, Any] = store.rows("dead_letters", {"transaction_id": ["tx-3-1"]}).to_pylist()[0]
    return row | {"transaction_id": name, "half_queue_offset": offset, "dead_at": row["dead_at"] - timedelta(seconds=1)}


def _listed(data: dict[str, Any]) -> list[str]:
    return [row[3] for row in data["preview"]["rows"]]


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ({"transaction_id": "tx 3"}, ["tx 3"]),
        ({"transaction_id": "tx%0A3\r\ntx"}, ["tx\n3", "tx"]),
        ({"transaction_id": "\r\ntx 3\r\n tx\r\n"}, ["tx 3", " tx"]),
        ({"everything": "yes"}, ["tx-3-1", " tx", "3", "tx", "tx 3", "tx\n3"]),
    ],
)
def test_dead_letters_are_named_one_a_line_and_listed_before(
    given_up: Path, given: dict[str, str], listed: list[str]
) -> None:
    browser = signed_in(given_up)
    consumers = browser.get("/consumers").text
    assert 'value="tx%0A3"' in consumers
    form = form_of(consumers, action="reconsume", group="ledger", **given)
    preview = browser.post("/actions", data=form, headers=SAME | {"accept": "application/json"}).json()
    assert sorted(_listed(preview)) == sorted(listed)
    page = browser.post("/actions", data=form, headers=SAME).text
    assert all(f"<bdi>{printable(name)}</bdi>" in page for name in listed)
    done = browser.post(
        "/actions",
        data=form | {"confirmed": "yes", "seen": preview["form"]["seen"]},
        headers=SAME | {"accept": "application/json"},
    ).json()
    assert (done["preview"]["done"], sorted(_listed(done))) == (True, sorted(listed))
    (group,) = browser.get("/consumers.json").json()["rows"]
    resumed = {one["transaction_id"] for one in group["dead_letters"] if one["fate"] == "pending as a retry"}
    assert resumed == set(listed)
    again = browser.post("/actions", data=form, headers=SAME)
    assert ("Do it" in again.text, again.status_code) == (False, 200 if "everything" in given else 409)


@pytest.mark.parametrize("given", [{}, {"transaction_id": "tx", "everything": "yes"}, {"transaction_id": "\r\n"}])
def test_all_dead_letters_are_meant_only_if_they_are_asked_for(given_up: Path, given: dict[str, str]) -> None:
    browser = signed_in(given_up)
    form = form_of(browser.get("/consumers").text, action="reconsume", group="ledger", **given)
    assert browser.post("/actions", data=form, headers=SAME).status_code == 400


def test_dead_letters_that_were_not_shown_are_not_consumed_again(given_up: Path) -> None:
    browser = signed_in(given_up)
    form = form_of(browser.get("/consumers").text, action="reconsume", group="ledger", everything="yes")
    seen = browser.post("/actions", data=form, headers=SAME | {"accept": "application/json"}).json()["form"]["seen"]
    append(given_up, "dead_letters", [_dead_letter(given_up, "later", 0)])
    for wrong in (seen, ""):
        answer = browser.post("/actions", data=form | {"confirmed": "yes", "seen": wrong}, headers=SAME).text
        assert ("Not done" in answer, "<bdi>later</bdi>" in answer, "Do it" in answer) == (True, True, True)
