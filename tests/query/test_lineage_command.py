"""`checkback tx describe`: by id, by the place of the half message, by key; several, and none."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from checkback.cli import main
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import Transaction, in_batches, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A committed message, one that is pending, both with the key 7; one whose id is the place of the first."""
    done, pending, odd = Transaction(0, 133), Transaction(1, 5), Transaction(2)
    rows = [done.half(keys="payments-30 7"), done.op(), done.decision(), done.published()]
    rows += [pending.half(keys="7", producer_group="pay"), odd.half(keys=None, transaction_id="1/5")]
    write(None, Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage), in_batches(rows)[0])
    return str(tmp_path)


def _lines(capfd: pytest.CaptureFixture[str], root: str, *words: str) -> list[str]:
    assert main(["tx", "describe", *words, "--set", f"storage.root={root}"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.mark.parametrize(
    "words", [["tx-0-133"], ["0/133"], ["--key", "payments-30"], ["--key", "7", "--group", "orders"]]
)
def test_a_transaction_is_found_by_id_place_and_key(
    root: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    events = [json.loads(line) for line in _lines(capfd, root, *words, "-o", "json")]
    assert [row["event"] for row in events] == ["HALF", "OP", "DECISION", "PUBLISHED"]
    assert {row["queue_offset"] for row in events} == {133}
    assert len(_lines(capfd, root, *words)) == 1 + 4


def test_an_id_that_looks_like_a_place_is_an_id(root: str, capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = _lines(capfd, root, "1/5", "-o", "json")
    assert json.loads(line)["queue_id"] == 2


def test_several_transactions_are_listed(root: str, capfd: pytest.CaptureFixture[str]) -> None:
    header, first, second, last = _lines(capfd, root, "--key", "7")
    assert header.split() == ["transaction", "group", "topic", "queue/offset", "keys", "decision"]
    assert first.split() == ["tx-0-133", "orders", "a", "0/133", "payments-30", "7", "COMMIT"]
    assert second.split() == ["tx-1-5", "pay", "a", "1/5", "7", "PENDING"]
    assert last == "several transactions: `checkback tx describe TX --group G` shows one"
    rows = [json.loads(line) for line in _lines(capfd, root, "--key", "7", "-o", "json")]
    assert [(row["transaction_id"], row["state"]) for row in rows] == [("tx-0-133", "COMMIT"), ("tx-1-5", None)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["payments-30"], "no table knows the transaction payments-30; TX is an id: a key is given as --key K, "),
        (["0/134"], "no table knows the transaction 0/134; TX is an id: "),
        ([f"0/{2**63}"], f"no table knows the transaction 0/{2**63}; "),
        (["9" * 5000 + "/1"], "no table knows the transaction 999"),
        (["--key", "payments"], "no half message has the key payments; a key is one whole word of a message's keys"),
        (["tx-0-133", "--group", "pay"], "no table knows the transaction tx-0-133 of the group pay; it is of orders"),
        (["0/133", "--group", "pay"], "no table knows the transaction 0/133 of the group pay; it is of orders"),
        (["--key", "7", "--group", "x"], "no half message has the key 7 of the group x; it is of orders, pay"),
        (["gone", "--group", "pay"], "no table knows the transaction gone of the group pay; TX is an id: "),
    ],
)
def test_nothing_found_is_told_with_what_to_give(
    root: str, words: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tx", "describe", *words, "--set", f"storage.root={root}"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"checkback: {told}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [["tx-0-133"], ["0/133"]])
def test_before_the_first_table_no_table_knows_it(
    root: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["tx", "describe", *words, "--as-of", "2020-01-01T00:00", "--set", f"storage.root={root}"]) == 1
    assert capfd.readouterr().err.startswith("checkback: no table knows the transaction ")


@pytest.mark.parametrize("name", ["a{b}", "a{", "{half}", ":name_of_table_0", "it's"])
def test_a_table_moved_aside_may_have_any_name(root: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    os.rename(f"{root}/topics/a", f"{root}/topics/{name}")
    events = [json.loads(line) for line in _lines(capfd, root, "tx-0-133", "-o", "json")]
    assert events[-1]["table"] == f"topics/{name}"


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_refused(root: str, key: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "describe", "--key", key, "--set", f"storage.root={root}"]) == 2
    assert "--key: is empty; a key is one whole word" in capfd.readouterr().err


@pytest.mark.parametrize("words", [[], ["tx-0-133", "--key", "7"]])
def test_it_is_named_in_one_way(root: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "describe", *words, "--set", f"storage.root={root}"]) == 2
    assert "a transaction is named by either; give one of the two" in capfd.readouterr().err
