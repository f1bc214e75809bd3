"""Rows of another writer whose text is not UTF-8: every question is answered, about the others, too."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.cli import main
from checkback.query.answers import Answers, records
from checkback.settings import Settings
from checkback.storage.tables import Tables
from dashboard.visitors import client
from support.odd_rows import REPLACED, append_odd
from support.stories import DECIDED, DONE, Row, Transaction, batch, write

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

NAMES = {"transaction_id": "bad", "producer_group": "bad", "real_topic": "bad"}
CONTENT = {"tags": "bad", "keys": "key bad", "properties": [("bad", "bad")]}


def _odd(row: dict[str, Any]) -> dict[str, Any]:
    """With text that is not UTF-8 in every column of text."""
    return {name: (NAMES | CONTENT).get(name, value) for name, value in row.items()}


def _answer(one: Transaction) -> Row:
    more = {"check_times": 1, "endpoint": "http://there/check", "outcome": "UNKNOWN", "answered_at": DONE}
    return "check_answers", one.key | {"real_topic": "a", "batch_id": 0} | more


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In each table a row as it should be, and one of another writer, in a file of its own."""
    root = str(tmp_path_factory.mktemp("odd"))
    good, bad = Transaction(0), Transaction(0, 1)
    waiting = Transaction(0, 2)
    stories = [
        [
            *(one.half(), one.op("MAYBE"), *one.checks(), _answer(one), one.decision("DISCARD")),
            *(one.discarded(), one.published(), one.unpublished()),
        ]
        for one in (good, bad)
    ]
    batches = [batch(0, DECIDED, "q"), batch(1, DONE, "q")]
    write(None, Tables(root=root, by_files=True), [*stories[0], waiting.half(), *batches])
    for name, row in [*stories[1], Transaction(0, 3).half()]:
        append_odd(root, name, [_odd(row)])
    return root


QUESTIONS: dict[str, Callable[[Answers], Any]] = {
    "pending": Answers.pending,
    "groups": Answers.groups,
    "status": Answers.status,
    "transactions": lambda answers: answers.transactions(bodies=True),
    "lineage": lambda answers: answers.lineage("tx-0-0"),
    "discarded": Answers.discarded,
    "unpublished": Answers.unpublished,
    "decided": Answers.decided,
    "decisions": Answers.decisions,
    "outcomes": Answers.check_outcomes,
    "breakers": Answers.breakers,
    "scheduled": Answers.scheduled,
    "audit": Answers.audit,
    "findings": Answers.findings,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_is_answered(root: str, question: str) -> None:
    """With replacement characters in the place of what is not UTF-8."""
    with Answers(Settings.model_validate({"storage": {"root": root}})) as answers:
        found = QUESTIONS[question](answers)
    if question in ("pending", "transactions", "discarded", "unpublished", "decided"):
        ids = {row["transaction_id"]: row for row in records(found)}
        assert REPLACED in ids
        assert len(ids) > 1 or question == "unpublished"
    if question == "transactions":
        assert ids[REPLACED]["properties"] == {REPLACED: REPLACED}
        assert ids["tx-0-0"]["body"] == b"body"
    if question == "lineage":
        assert {"HALF", "DECISION", "DISCARDED", "PUBLISHED"} <= {row["event"] for row in records(found)}


COMMANDS = (
    *("status", "tx list", "tx list --state scheduled", "tx list --state unpublished -o json", "what-if", "topic list"),
    *("tx list --state discarded -o csv", "tx decisions", "tx describe tx-0-0"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers(root: str, command: str) -> None:
    """As the questions."""
    assert main([*command.split(), "--set", f"storage.root={root}"]) == 0


@pytest.mark.parametrize(
    "path", ["/", "/pending", "/transactions?topic=a", "/transactions/0/1", f"/groups/{REPLACED}", "/discarded"]
)
def test_every_page_is_shown(root: str, path: str) -> None:
    """And the odd transaction's own, to which lists lead."""
    browser = client(Path(root))
    found = browser.get(path)
    assert found.status_code == 200
    if path == "/discarded":
        (link,) = re.findall(r'href="(/transactions/0/1[^"]*)"', found.text)
        assert browser.get(html.unescape(link)).status_code == 200
