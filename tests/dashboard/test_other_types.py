"""Tables that another writer has rewritten: every page, every command, the gateway and consumers read them."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
import requests
from deltalake import DeltaTable

from checkback.cli import main
from checkback.consumer import MessageSelector, PushConsumer
from checkback.storage.schemas import GROUP_PREFIX, SCHEMAS
from consumer.heard import Heard
from dashboard.extreme_times import build
from dashboard.test_extreme_times import PAGES, pages_of
from dashboard.visitors import client
from gateway.process import Gateway
from support.other_types import rewrite
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

TABLES = (*SCHEMAS, "topics/payments", "topics/invoices", f"{GROUP_PREFIX}ledger")
#: what delta-rs takes out of the tables of which tables.md allows it
DELETED = {
    "check_answers": "queue_id = 6",
    "discarded": "queue_offset = 2",
    "rejected": "reason LIKE '% 5/0'",
    "dead_letters": "half_queue_offset = 0",
    "unpublished": "half_queue_offset = 1",
    "topics/payments": "half_queue_offset = 2",
}
COMMANDS = (
    *(
        "status -o json",
        "tx list -o json",
        "topic list",
        "tx list --state scheduled",
        "tx list --state unpublished -o json",
        "tx decisions",
        "tx list --state discarded -o csv",
    ),
    *(
        "group list",
        "group describe ledger -o json",
        "tx describe tx-5-0",
        "tx describe --key key",
        "audit -o json",
        "what-if",
    ),
    *("topic consume payments", "outages", "group reconsume ledger --all --actor ann --reason why"),
    "tx resolve tx-6-0 --commit --actor ann --reason why --queue-id 6 --queue-offset 0",
    "tx resume tx-7-0 --actor ann --reason why",
)


@pytest.fixture(scope="module")
def evening_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in each table, as Checkback writes them."""
    root = tmp_path_factory.mktemp("lake")
    build(root, 1_767_225_600_000_000)
    given_up = Transaction(7, 0, datetime.now(timezone.utc) - timedelta(hours=1))
    for name, row in [*given_up.given_up(), given_up.rejected_half()]:
        append(root, name, [row])
    return root


#: Its types, whether delta-rs deletes rows, and the folder: one whose name is a pattern is read through delta-rs, as an
#: object store is. Other types of text and of times go together: they are other columns. Delta has no nanoseconds:
#: Spark and DuckDB do not read them.
CASES = [
    (("view", "milliseconds"), False, "lake"),
    (("large", "another zone"), False, "lake"),
    (("dictionary", "no zone"), False, "lake"),
    ((), True, "lake"),
    (("view",), True, "lake[1]"),
]


def _case(case: tuple[tuple[str, ...], bool, str]) -> str:
    kinds, by_delta_rs, folder = case
    return f"{', '.join([*kinds, *(['DELETE'] if by_delta_rs else [])])} in {folder}"


@pytest.fixture(scope="module", params=CASES, ids=_case)
def rewritten(request: pytest.FixtureRequest, evening_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, rewritten."""
    kinds, by_delta_rs, folder = request.param
    root = shutil.copytree(evening_lake, tmp_path_factory.mktemp("rewritten") / "lake")
    for name in TABLES:
        if kinds:
            rewrite(f"{root}/{name}", *kinds)
        table = DeltaTable(f"{root}/{name}")
        if by_delta_rs and name in DELETED:
            assert table.delete(DELETED[name])["num_deleted_rows"], name
        elif not kinds:
            table.optimize.compact()
    return root.rename(root.with_name(folder))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers(rewritten: Path, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """0; 1: the audit has found something. None is refused: what is asked for is there."""
    code = main([*command.split(), "--set", f"storage.root={rewritten}"])
    out, err = capfd.readouterr()
    assert (code in (0, 1), out != "") == (True, True), err


def test_every_page_answers(rewritten: Path) -> None:
    """As of now: what was before is in the files from before they were rewritten."""
    browser = client(rewritten)
    for path in (*(path for path in PAGES if "as_of=" not in path and "batch=" not in path), *pages_of(0)):
        answer = browser.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "cannot be read" not in answer.text, path


@pytest.mark.processes
def test_a_gateway_starts_and_knows_its_transactions(rewritten: Path) -> None:
    """And stores an op to one."""
    with Gateway(rewritten) as gateway:
        found = requests.get(f"{gateway.url}/v1/transactions/tx-5-0?producer_group=orders", timeout=30)
        assert found.status_code == 200, found.text
        assert found.json()["state"] == "COMMIT"


def test_messages_are_consumed(rewritten: Path) -> None:
    """By a new group, and by one whose state was rewritten: it has been given all queues' owners anew."""
    for group in ("fresh", "ledger"):
        heard = Heard()
        consumer = PushConsumer(group, str(rewritten), heard, session_timeout=timedelta(seconds=2.0))
        with consumer.subscribe("payments", MessageSelector.by_sql("TAGS IS NULL")).start():
            heard.wait(lambda heard: {0, 1, 3, 4, 5} <= set(heard.offsets))
