"""Erasure on tables of a folder: nothing of what was selected is left, and all that was not is as it was."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.errors import CheckbackError, SettingsError
from checkback.maintain.erasure import Erasure, OwedError
from checkback.maintain.erasure_selection import BATCH, Selection, of_whole_batches
from checkback.messages.limits import RAW_MAX
from checkback.query.answers import Answers
from checkback.reconcile.records.segment_records import Reason
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import CONTENT
from checkback.storage.tables import Tables
from maintain.fixtures import maintained, rows_of
from support.examples import fewer
from support.stories import DONE, UNDER_WAY, Row, Transaction, batch, checkpoint, in_batches, ms, write, written

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

NOW = datetime(2026, 2, 1, tzinfo=timezone.utc)
#: whose data is to be erased; another's keys contain the name
SECRET, OTHER = "customer-17", "customer-171"
_OWED = "pending", "scheduled", "unpublished"


def settings_of(root: Path) -> Settings:
    maintain = {"min_files": 2, "target_file_size": "1MiB"}
    return Settings.model_validate({"storage": {"root": str(root)}, "maintain": maintain})


def _content(name: str) -> dict[str, Any]:
    return {
        "keys": f"order {name} x",
        "tags": f"tag-{name}",
        "properties": [("customer", name)],
        "body": f"body of {name}".encode(),
    }


def _story(random: Random, t: Transaction, name: str, fate: str) -> list[Row]:
    mine = _content(name)
    at = t.born + timedelta(minutes=30)
    letter = t.published()[1] | mine | {"consumer_group": "g", "topic": "a", "reconsume_times": 3, "dead_at": at}
    again = json.dumps({**t.key, "keys": mine["keys"], "properties": dict(mine["properties"]), "body": name})
    rejected = {"source": "half", "raw": again, "reason": "repeated", "file": "f", "rejected_at": at}
    if fate == "pending":
        return [t.half(**mine), t.check()]
    if fate == "scheduled":
        due = DONE + timedelta(days=9)
        return [t.half(deliver_at=due, **mine), t.op(), t.decision(decided_at=at, deliver_at=due)]
    if fate == "unpublished":
        waits = t.unpublished(unpublished_at=at, application="query", **mine)
        return [t.half(**mine), t.op(), t.decision(decided_at=at), waits]
    if fate == "discarded":
        given_up = [t.decision("DISCARD", decided_at=at), t.discarded(discarded_at=at, **mine)]
        return [t.half(**mine), *t.checks(), *given_up, ("rejected", rejected)]
    published = [t.half(**mine), t.op(), t.published(published_at=at, **mine), t.decision(decided_at=at)]
    return [*published, ("dead_letters", letter)] if random.random() < 0.5 else published


def lake(root: Path, seed: int, fates: list[str], ago: timedelta = timedelta(hours=9)) -> dict[int, tuple[str, str]]:
    """Tables with a transaction of each fate; by offset whose it is, and its fate."""
    rows, whose = stories(seed, fates, ago)
    found, done = in_batches(rows)
    tables = Tables.of(settings_of(root).storage)
    for first in range(0, len(found), 20):
        write(None, tables, found[first : first + 20])
    checkpoint(root, batch_id=done)
    return whose


def stories(
    seed: int, fates: list[str], ago: timedelta = timedelta(hours=9)
) -> tuple[list[Row], dict[int, tuple[str, str]]]:
    """The rows of `lake`, and by offset whose each transaction is, and its fate."""
    random, rows, whose = Random(seed), list[Row](), dict[int, tuple[str, str]]()
    for offset, fate in enumerate(fates):
        whose[offset] = random.choice([SECRET, OTHER]), fate
        t = Transaction(offset % 2, offset, DONE - ago + timedelta(seconds=offset))
        rows += _story(random, t, *whose[offset])
    return rows, whose


def everything(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables."""
    logs = sorted(root.glob("**/_delta_log"))
    return {str(log.parent.relative_to(root)): rows_of(root, str(log.parent.relative_to(root))) for log in logs}


def traces(root: Path, secret: str) -> list[str]:
    """Files that have the secret: as bytes, or in a column."""
    found = []
    for path in (path for path in root.rglob("*") if path.is_file()):
        content = repr(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else ""
        whole = content.replace(OTHER, "").encode() + path.read_bytes().replace(OTHER.encode(), b"")
        if secret.encode() in whole:
            found.append(str(path.relative_to(root)))
    return found


def erased(root: Path, selection: Selection, now: bool = False) -> dict[str, int]:
    """An erasure; its rows by table."""
    erasure = Erasure(Tables.of(settings_of(root).storage), selection)
    with erasure.lock():
        found = erasure.find()
        erasure.erase(found, NOW)
        if now:
            stay = erasure.remove_files(round(datetime.now(timezone.utc).timestamp() * 1000))
            assert all("no commit names" in line for line in stay)  # of one that broke off: what it had written
    return {name: number for name, number in found.rows.items() if number}


SELECTIONS = [
    Selection.of(SECRET, None, None, None),
    Selection.of(None, None, "orders", f"properties.customer = '{SECRET}'"),
    Selection.of(None, None, "orders", f"KEYS IS NOT NULL AND customer = '{SECRET}'"),
]


@fewer(25)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["published", "discarded"])), st.sampled_from(SELECTIONS))
def test_nothing_of_it_is_left_and_all_else_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, fates: list[str], selection: Selection
) -> None:
    root = tmp_path_factory.mktemp("tables")
    whose = lake(root, seed, fates)
    before = everything(root)
    erased(root, selection, now=True)
    assert traces(root, SECRET) == []
    after = everything(root)
    assert {name: len(rows) for name, rows in after.items()} == {name: len(rows) for name, rows in before.items()}
    for name, rows in before.items():
        texts = {repr(row) for row in after[name]}
        for row in (row for row in rows if SECRET not in repr(row).replace(OTHER, "")):
            assert repr(row) in texts, name
    for row in after.get("half", ()):
        mine = whose[row["queue_offset"]][0] == SECRET
        assert (row["erased_at"] == NOW) == mine
        assert all((row[name] is None) == mine for name in CONTENT)
    assert not Answers(settings_of(root)).audit().broken
    assert erased(root, selection) == {}


@fewer(25)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["published", *_OWED]), min_size=1))
def test_what_is_owed_is_refused(tmp_path_factory: pytest.TempPathFactory, seed: int, fates: list[str]) -> None:
    root = tmp_path_factory.mktemp("tables")
    whose = lake(root, seed, fates)
    erasure = Erasure(Tables.of(settings_of(root).storage), SELECTIONS[0])
    mine = {offset: fate for offset, (name, fate) in whose.items() if name == SECRET and fate in _OWED}
    found = erasure.find()
    assert {row["queue_offset"]: row["state"] for row in found.owed} == mine
    if mine:
        before = everything(root)
        with pytest.raises(
            OwedError, match="waits in `unpublished`" if "unpublished" in mine.values() else "not ended"
        ):
            erasure.erase(found, NOW)
        assert everything(root) == before


def test_a_delivery_of_a_batch_under_way_is_still_owed(tmp_path: Path) -> None:
    t, mine = Transaction(0, 0, DONE - timedelta(hours=9)), _content(SECRET)
    at = t.born + timedelta(minutes=30)
    delivery = {**t.key, "real_topic": "a", "deliver_at": UNDER_WAY, "delivered_at": UNDER_WAY, "batch_id": 9}
    rows = [t.half(deliver_at=UNDER_WAY, **mine), t.op(), t.decision(decided_at=at, deliver_at=UNDER_WAY)]
    written(tmp_path, [*rows, ("deliveries", delivery)])
    assert [row["state"] for row in Erasure(Tables.of(settings_of(tmp_path).storage), SELECTIONS[0]).find().owed] == [
        "scheduled"
    ]


def test_topic_that_a_batch_creates_meanwhile_is_erased_too(tmp_path: Path) -> None:
    """It is published after the first look at the tables, and before what has ended is looked up."""
    t, mine = Transaction(0, 0, DONE - timedelta(minutes=2)), _content(SECRET)
    found, done = in_batches([t.half(**mine), t.op()])
    tables = Tables.of(settings_of(tmp_path).storage)
    write(None, tables, found)
    checkpoint(tmp_path, batch_id=done)
    owed = Erasure._owed

    def publish(self: Erasure, *halves: Any) -> Any:
        of: dict[str, Any] = {"batch_id": done + 1}
        rows = [
            t.published("new", published_at=UNDER_WAY, **of, **mine),
            t.decision("COMMIT", decided_at=UNDER_WAY, **of),
        ]
        write(None, tables, [*rows, batch(done + 1, UNDER_WAY, committed=1)])
        return owed(self, *halves)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Erasure, "_owed", publish)
        assert erased(tmp_path, SELECTIONS[0], now=True) == {"half": 1, "topics/new": 1}
    assert traces(tmp_path, SECRET) == []


def test_a_decision_of_a_batch_under_way_is_still_owed_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """Its message is not published yet, and is to be with its content; the last batch's time is later."""
    t, mine = Transaction(0, 0, DONE - timedelta(hours=9)), _content(SECRET)
    found, done = in_batches([t.half(**mine), t.op()])
    name, decision = t.decision(decided_at=DONE - timedelta(hours=1))
    write(None, Tables.of(settings_of(tmp_path).storage), [*found, (name, decision | {"batch_id": done + 1})])
    checkpoint(tmp_path, batch_id=done)
    with pytest.raises(OwedError, match="1 pending"):
        erased(tmp_path, SELECTIONS[0])


def test_rows_of_whole_batches_are_those_of_batches_and_runs() -> None:
    """A batch has an id and a time; a run those from the first to the last one's."""

    def at(*times: int | None) -> pa.Array:
        return pa.array(times, pa.timestamp("us", "UTC"))

    rows = pa.table({"batch_id": [2, 2, 4, 6, 9, None], "at": at(7, 8, 20, 30, 31, 40)})
    batches = pa.table(dict(zip(BATCH, ([2, 8, 9], at(7, 30, 30), [None, 3, None], at(None, 20, None)), strict=True)))
    found = of_whole_batches(rows, "at", batches)
    assert found.column("batch_id").to_pylist() == [2, 4, 6]
    assert found.column("at").equals(rows.column("at").take([0, 2, 3]))


def test_ops_that_reconcile_has_rejected_stay_known(tmp_path: Path) -> None:
    """Their rows have no content, and a rebuild must not take such an op again; a line of a file goes."""
    t = Transaction(0, 0, DONE - timedelta(hours=9))
    rejected = t.rejected_op(Reason.WRONG_GROUP)[1] | {"raw": json.dumps(t.key)}
    written(tmp_path, [*t.committed(), ("rejected", rejected), ("rejected", rejected | {"file": "f"})])
    erased(tmp_path, Selection.of(None, "tx-0-0", None, None))
    assert {(row["file"], row["raw"] is None) for row in rows_of(tmp_path, "rejected")} == {(None, False), ("f", True)}


@contextmanager
def broken_after(commits: int) -> Iterator[None]:
    """A process that ends before its next commit."""
    with pytest.MonkeyPatch.context() as patch:
        original: Callable[..., bool] = DeltaLog.remove
        left = iter(range(commits))

        def remove(self: DeltaLog, *args: Any, **kwargs: Any) -> bool:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        patch.setattr(DeltaLog, "remove", remove)
        yield


@pytest.mark.parametrize("commits", range(5))
def test_one_that_breaks_off_is_continued(tmp_path: Path, commits: int) -> None:
    lake(tmp_path, 1, ["published", "discarded"] * 10)
    with broken_after(commits), pytest.raises(KeyboardInterrupt):
        erased(tmp_path, SELECTIONS[0])
    erased(tmp_path, SELECTIONS[0], now=True)
    assert traces(tmp_path, SECRET) == []
    assert not Answers(settings_of(tmp_path)).audit().broken


def test_without_now_the_files_leave_with_maintain(tmp_path: Path) -> None:
    lake(tmp_path, 1, ["published", "discarded"] * 10)
    erased(tmp_path, SELECTIONS[0])
    assert traces(tmp_path, SECRET)
    later = round(datetime.now(timezone.utc).timestamp() * 1000) + 9 * 24 * 3_600_000
    maintained(settings_of(tmp_path), later)
    assert traces(tmp_path, SECRET) == []


def test_files_that_retention_has_replaced_go_too(tmp_path: Path) -> None:
    """No row of theirs is left to be selected, except in the topic."""
    lake(tmp_path, 1, ["published"] * 20, timedelta(days=40))
    maintained(settings_of(tmp_path), ms(DONE))
    assert rows_of(tmp_path, "half") == []
    erased(tmp_path, SELECTIONS[0], now=True)
    assert traces(tmp_path, SECRET) == []


@pytest.mark.parametrize("name", ['"a" b', "ä\\n", "x y"])
def test_rejected_input_of_any_form_is_erased(tmp_path: Path, name: str) -> None:
    raws = [json.dumps({"keys": name}), json.dumps({"properties": {"KEYS": [name]}})[:-1], f"not JSON, {name}.", "x"]
    row = {"source": "half", "reason": "why", "file": "f", "rejected_at": DONE}
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", row | {"raw": raw}) for raw in raws])
    erased(tmp_path, Selection.of(name, None, None, None))
    assert Counter(row["raw"] for row in rows_of(tmp_path, "rejected")) == {None: 3, "x": 1}


@pytest.mark.parametrize(
    "raw",
    [
        r'{"keys":"kund\u00e4\/17"}',
        r'{"keys":"kund\u00E4/17"}',
        r'{"keys":"a\tkundä/17", "bod',
        r'{"body": "{\"keys\": \"\\ud83d\\ude00 kund\\u00e4\\/17\"}"}',
        r'{"keys":"\ud83d kund\u00e4/17"}',
    ],
)
def test_rejected_json_is_erased_however_it_is_escaped(tmp_path: Path, raw: str) -> None:
    """As PHP, Jackson and others write it, cut off, within JSON, with half a pair; and not another's."""
    row = {"source": "half", "reason": "why", "file": "f", "rejected_at": DONE}
    raws = raw, raw.replace("17", "171")
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", row | {"raw": each}) for each in raws])
    erased(tmp_path, Selection.of("kundä/17", None, None, None))
    assert {each["raw"] for each in rows_of(tmp_path, "rejected")} == {None, raws[1]}


def test_key_beyond_the_basic_plane_is_found_in_escaped_json(tmp_path: Path) -> None:
    row = {"source": "half", "reason": "why", "file": "f", "rejected_at": DONE, "raw": r'{"keys": "\uD83D\uDE00"}'}
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", row)])
    assert erased(tmp_path, Selection.of("\U0001f600", None, None, None)) == {"rejected": 1}


def test_rejected_input_is_erased_of_which_not_all_is_known(tmp_path: Path) -> None:
    """In UTF-16 or Latin-1, cut off before its keys, or with escapes without end; another's stays."""
    name = '{"keys": "müller-17"}'
    utf16, latin1 = (name.encode(code).decode("utf-8", "replace") for code in ("utf-16-le", "latin-1"))
    raws = [utf16, latin1, "x" * (RAW_MAX - 1), r"\u005c" * 2000, latin1.replace("17", "171")]
    row = {"source": "half", "reason": "why", "file": "f", "rejected_at": DONE}
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", row | {"raw": raw}) for raw in raws])
    erased(tmp_path, Selection.of("müller-17", None, None, None))
    assert Counter(row["raw"] for row in rows_of(tmp_path, "rejected")) == {None: 4, raws[-1]: 1}


def test_key_of_another_encoding_is_looked_for_in_linear_time(tmp_path: Path) -> None:
    """In a long line of bytes that are no text."""
    key = "łódźłódź-17"
    raws = ["\ufffd" * 100_000, "\ufffd" * 9 + "d\ufffd" * 100_000, key.encode("iso8859-2").decode("utf-8", "replace")]
    row = {"source": "half", "reason": "why", "file": "f", "rejected_at": DONE}
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", row | {"raw": raw}) for raw in raws])
    erased(tmp_path, Selection.of(key, None, None, None))
    assert Counter(row["raw"] for row in rows_of(tmp_path, "rejected")) == {None: 1, raws[0]: 1, raws[1]: 1}


def test_where_finds_rejected_messages_however_they_came(tmp_path: Path) -> None:
    """After a byte order mark or a schema registry's header, several on a line, without a group; or by their offset."""
    t, place = Transaction(0, 0, DONE - timedelta(hours=9)), "repeated (queue_id, queue_offset) 0/{}"
    sent: dict[str, Any] = {"properties": [("customer", "17")]}
    row = {"source": "half", "file": "f", "rejected_at": DONE}
    one = json.dumps({"producer_group": "orders", "properties": {"customer": "17"}})
    mine = ["\ufeff" + one, "\0\0\0\0{" + one, f"[{{}}, {one}]", one.replace("producer_group", "group")]
    others = [one.replace("orders", "pay"), one.replace('"17"', '"171"'), "[1, {}]"]
    rejected = [row | {"raw": raw, "reason": "why"} for raw in mine + others]
    rejected += [row | {"raw": "no JSON", "reason": place.format(offset)} for offset in range(2)]
    found, done = in_batches([t.half(**sent), t.op(), t.decision(), t.published(**sent)])
    write(None, Tables.of(settings_of(tmp_path).storage), [*found, *(("rejected", each) for each in rejected)])
    checkpoint(tmp_path, batch_id=done)
    erased(tmp_path, Selection.of(None, None, "orders", "properties.customer = '17'"))
    assert Counter(each["raw"] for each in rows_of(tmp_path, "rejected")) == {None: 5, "no JSON": 1} | dict.fromkeys(
        others, 1
    )


def test_reasons_that_quote_what_is_erased_go_with_it(tmp_path: Path) -> None:
    """But not those that only name an offset, by which retention knows of what the row is."""
    t, repeated = Transaction(0, 0, DONE - timedelta(hours=9)), "repeated (queue_id, queue_offset) 0/0"
    row = {"source": "half", "raw": f'{{"keys": "{SECRET}"}}', "file": "f", "rejected_at": DONE}
    reasons = [f"properties: {SECRET} is an integer, not a string", repeated]
    rows = [t.half(keys=SECRET), t.op(), t.decision(), t.published(keys=SECRET)]
    rows.append(t.unpublished(keys=SECRET, reason=f"no key like {SECRET}"))
    found, done = in_batches([*rows, *(("rejected", row | {"reason": reason}) for reason in reasons)])
    tables = Tables.of(settings_of(tmp_path).storage)
    write(None, tables, found)
    DeltaLog("unpublished", tables.location("unpublished")).commit_after([], {}, {"published/q/a": 10})
    checkpoint(tmp_path, batch_id=done)
    erased(tmp_path, SELECTIONS[0], now=True)
    assert traces(tmp_path, SECRET) == []
    assert {row["reason"] for row in rows_of(tmp_path, "rejected")} == {"erased", repeated}


def test_topic_without_its_log_is_refused(tmp_path: Path) -> None:
    """Nothing of it would be found."""
    lake(tmp_path, 1, ["published"] * 3)
    shutil.rmtree(tmp_path / "topics/a/_delta_log")
    with pytest.raises(SettingsError, match="topics/a: has files but no log"):
        erased(tmp_path, SELECTIONS[0])


def test_keys_that_were_sent_as_a_property_are_keys(tmp_path: Path) -> None:
    t = Transaction(0, 0, DONE - timedelta(hours=9))
    sent: dict[str, Any] = {"properties": [("KEYS", f"order {SECRET}")]}
    written(tmp_path, [t.half(**sent), t.op(), t.decision(), t.published(**sent)])
    assert erased(tmp_path, SELECTIONS[0])["half"] == 1


def test_transaction_is_erased_with_its_rejected_input(tmp_path: Path) -> None:
    lake(tmp_path, 1, ["discarded"] * 3)
    assert erased(tmp_path, Selection.of(None, "tx-1-1", "orders", None)) == {"discarded": 1, "half": 1, "rejected": 1}
    assert [row["raw"] for row in rows_of(tmp_path, "rejected") if row["erased_at"]] == [None]
    assert erased(tmp_path, Selection.of(None, "tx-1-1", "pay", None)) == {}


@pytest.mark.parametrize(
    "options",
    [(None, None, None, None), ("k", "t", None, None), (None, None, None, "a = 'b'"), ("", None, None, None)],
)
def test_what_selects_nothing_is_refused(options: tuple[str | None, ...]) -> None:
    with pytest.raises(SettingsError):
        Selection.of(*options)


@pytest.mark.parametrize(
    "where",
    [
        "customer = ",
        "properties.",
        "customer == 'a'",
        *("region = 'eu' customer = '17'", "region = 'eu', customer = '17'", "customer-id = '17'"),
        *("region = 'eu') OR (customer = '17'", "region = 'eu') x", "(region = 'eu'"),
    ],
)
def test_no_expression(where: str) -> None:
    with pytest.raises(CheckbackError):
        Selection.of(None, None, "orders", where)


def _run(root: Path, *options: str) -> int:
    common = ["--set", f"storage.root={root}", "--actor", "ada", "--reason", "asked to be forgotten"]
    return main(["erase", *options, *common])


def test_command_shows_then_erases_and_records_without_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whose = lake(tmp_path, 1, ["published", "discarded"] * 3)
    assert _run(tmp_path, "--key", SECRET) == 0
    shown = capsys.readouterr().out
    assert "half" in shown
    assert "Nothing was done" in shown
    assert "read_stream of yours that has not come to these messages gets them as they were until then" in shown
    assert traces(tmp_path, SECRET)
    assert _run(tmp_path, "--key", SECRET, "--now", "--yes") == 0
    assert "files before are removed." in capsys.readouterr().out
    mine = {offset for offset, (name, _) in whose.items() if name == SECRET}
    ledger = rows_of(tmp_path, "operations")
    assert {(row["action"], row["actor"], row["queue_offset"]) for row in ledger} == {
        ("ERASE", "ada", offset) for offset in mine
    }
    assert DeltaLog("operations", str(tmp_path / "operations")).applications() == {"operator/ERASE": len(mine) - 1}
    assert traces(tmp_path, SECRET) == []
    assert _run(tmp_path, "--key", SECRET, "--yes") == 0
    assert "nothing to erase" in capsys.readouterr().out
    assert len(rows_of(tmp_path, "operations")) == len(ledger)


def test_columns_that_somebody_has_added_keep_their_values(tmp_path: Path) -> None:
    whose = lake(tmp_path, 1, ["published"] * 6)
    table = DeltaTable(f"{tmp_path}/topics/a")
    table.alter.add_columns([Field("note", PrimitiveType("string"))])
    table.update(updates={"note": "'mine'"})
    assert _run(tmp_path, "--key", SECRET, "--yes") == 0
    rows = rows_of(tmp_path, "topics/a")
    assert {(row["note"], row["body"] is None) for row in rows} == {("mine", False), ("mine", True)}
    assert len(rows) == len(whose)


def test_erasure_of_rejected_input_alone_is_recorded(tmp_path: Path) -> None:
    """In a row that names no message, for it names none."""
    lake(tmp_path, 1, ["discarded"])
    rejected = {"source": "half", "raw": f"no JSON, of {SECRET}2", "reason": "r", "file": "f", "rejected_at": DONE}
    write(None, Tables.of(settings_of(tmp_path).storage), [("rejected", rejected)])
    assert _run(tmp_path, "--key", f"{SECRET}2", "--yes") == 0
    assert traces(tmp_path, f"{SECRET}2") != []  # until the files leave
    (row,) = rows_of(tmp_path, "operations")
    assert [row[name] for name in ("action", "actor", "queue_id", "transaction_id")] == ["ERASE", "ada", None, None]
    assert _run(tmp_path, "--key", f"{SECRET}2", "--yes") == 0
    assert len(rows_of(tmp_path, "operations")) == 1


def test_command_ends_what_is_owed_with_cancel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whose = lake(tmp_path, 3, ["pending", "scheduled", "published"] * 3)
    assert _run(tmp_path, "--key", SECRET, "--yes") == 1
    assert "--cancel" in capsys.readouterr().err
    assert _run(tmp_path, "--key", SECRET, "--cancel", "--yes") == 0
    assert "run this again" in capsys.readouterr().out
    states = {"pending": "ROLLBACK", "scheduled": "CANCEL"}
    wanted = {(offset, states[fate]) for offset, (name, fate) in whose.items() if name == SECRET and fate in states}
    ops = {(row["queue_offset"], row["state"]) for row in rows_of(tmp_path, "op") if row["source"] == "operator"}
    assert ops == wanted


def test_erased_message_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whose = lake(tmp_path, 1, ["discarded"] * 6)
    erased(tmp_path, SELECTIONS[0])
    mine = next(offset for offset, (name, _) in whose.items() if name == SECRET)
    resume = ["tx", "resume", "--set", f"storage.root={tmp_path}", "--actor", "a", "--reason", "r"]
    assert main([*resume, f"tx-{mine % 2}-{mine}"]) == 1
    told = capsys.readouterr()
    assert ("was erased" in told.err, told.out) == (True, "")  # and nothing is shown that would be done
    resume.append("--yes")
    assert main([*resume, "--all"]) == 0
    assert len(rows_of(tmp_path, "half")) == 6 + sum(name == OTHER for name, _ in whose.values())
