"""The audit: tables that keep the promises, and tables broken in every way, a queue for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from checkback.application.run import reconcile
from checkback.cli import main
from checkback.errors import CheckbackError, SettingsError
from checkback.inspect.audit import Report, audit, findings
from checkback.inspect.audit_findings import FINDINGS
from checkback.landing.file_query import land
from checkback.reconcile.records import Reason
from checkback.settings import Settings
from checkback.storage.tables import Tables
from conftest import TRACE
from support import expected
from support.stories import (
    BORN,
    CHECK_MAX,
    DECIDED,
    DONE,
    LONG_AGO,
    UNDER_WAY,
    Row,
    Transaction,
    checkpoint,
    in_batches,
    ms,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Story: TypeAlias = Callable[[Transaction], list[Row]]

_LATER = timedelta(hours=10)
_OTHER_GROUP = {"producer_group": "pay"}
_RESUMED = "one discarded message, resumed twice and published twice"


def _resumed(t: Transaction, offset: int) -> list[Row]:
    """All rows of a message that was resumed from 7/9, and committed."""
    properties: dict[str, Any] = {"properties": [("CHECKBACK_RESUMED_FROM", "7/9")]}
    again, same = replace(t, offset=offset), {"transaction_id": "resumed"}
    return [
        *(again.half(**properties, **same), again.op(**same), again.decision(**same)),
        again.published(**properties, **same),
    ]


_EXPIRED: dict[str, Any] = {"reason": "EXPIRED"}
_LANDED_LATE: dict[str, Any] = {"born_timestamp": LONG_AGO}


def _long_pending(t: Transaction, last: timedelta) -> list[Row]:
    """Pending since long ago: checked as often as can be, the last time ``last`` after its birth."""
    old = replace(t, born=LONG_AGO)
    return [old.half(), *old.checks(CHECK_MAX - 1), old.check(CHECK_MAX, last)]


#: What breaks nothing.
_CLEAN: dict[str, Story] = {
    "committed": Transaction.committed,
    "published late": lambda t: [*t.committed(), t.unpublished()],
    "rolled back": Transaction.rolled_back,
    "given up": Transaction.given_up,
    "pending": lambda t: [t.half(), *t.checks(2)],
    "pending for long, and never checked": lambda t: [replace(t, born=LONG_AGO).half()],
    "pending for long, and last checked before it was too old": lambda t: _long_pending(t, timedelta(hours=71)),
    "expired": lambda t: [
        *(*_long_pending(t, timedelta(hours=72, minutes=5)), replace(t, born=LONG_AGO).discarded(**_EXPIRED)),
        t.decision("DISCARD", **_EXPIRED),
    ],
    "pending, and its op has just landed": lambda t: [t.half(), t.op(store_timestamp=UNDER_WAY)],
    "pending, and all of it has just landed": lambda t: [t.half(store_timestamp=UNDER_WAY), t.op()],
    "committed by a check, in the batched form, and said again": lambda t: [
        *(t.half(), t.check(), t.op(source="check", transaction_id=None), t.op(), t.published()),
        t.decision(source="check", check_times=1),
    ],
    "half message that came again, and was rejected": lambda t: [
        *t.committed(),
        t.half(store_timestamp=BORN + _LATER, body=b"other", **_OTHER_GROUP),
        t.rejected_half(),
    ],
    "op of another group, and was rejected": lambda t: [
        *t.committed(),
        t.op("ROLLBACK", **_OTHER_GROUP),
        t.rejected_op(Reason.WRONG_GROUP),
    ],
    "op without half message, and was rejected": lambda t: [t.op(), t.rejected_op(Reason.NO_HALF)],
    "own immunity of 0": lambda t: [t.half(check_immunity_s=0), t.check(1, timedelta(milliseconds=1))],
    "check that reached nobody, and was taken back": lambda t: [
        *(t.half(), t.check(), t.check(1, timedelta(seconds=70)), t.op("UNDELIVERED", source="check")),
        *(t.check(2, timedelta(seconds=140)), t.op(), t.published(), t.decision(check_times=1)),
        t.op("UNDELIVERED", source="check"),
    ],
    "resumed: given up here, committed under its id elsewhere": lambda t: [
        *t.given_up(),
        *(
            (name, row | {"transaction_id": f"tx-{t.queue}-0"})
            for name, row in replace(t, queue=t.queue + 5000).committed()
        ),
    ],
    "batch under way: published, not yet decided": lambda t: [
        t.half(),
        t.op(store_timestamp=DONE),
        t.published(committed_at=UNDER_WAY, batch_id=1),
    ],
    "batch under way: decided and asked, not yet published or discarded": lambda t: [
        *(t.half(), t.op(store_timestamp=DONE), t.decision(decided_at=UNDER_WAY, batch_id=1)),
        t.discarded(discarded_at=UNDER_WAY, batch_id=1),
    ],
}

#: The findings of each, and what has them.
_BROKEN: dict[str, tuple[set[str], Story]] = {
    "half message is gone, committed": (
        {"decision_without_half", "published_without_half", "op_without_half"},
        lambda t: t.committed()[1:],
    ),
    "half message is gone, given up": (
        {"decision_without_half", "discarded_without_half", "check_without_half"},
        lambda t: t.given_up()[1:],
    ),
    "not published": ({"commit_not_published"}, lambda t: [t.half(), t.op(), t.decision()]),
    "waits for its topic's table": ({"unpublished"}, lambda t: [t.half(), t.op(), t.decision(), t.unpublished()]),
    "published late, in a batch under way": (
        {"unpublished"},
        lambda t: [t.half(), t.op(), t.decision(), t.unpublished(), t.published(committed_at=UNDER_WAY, batch_id=1)],
    ),
    "decided by nobody's ROLLBACK": ({"rollback_without_op"}, lambda t: [t.half(), t.decision("ROLLBACK")]),
    "not kept": ({"discard_not_kept"}, lambda t: t.given_up()[:-1]),
    "discarded, not decided": ({"discarded_without_decision"}, lambda t: [t.half(), t.discarded()]),
    "published and discarded": (
        {"published_and_discarded", "discarded_without_decision"},
        lambda t: [*t.committed(), t.discarded()],
    ),
    "discarded twice": ({"discarded_twice"}, lambda t: [*t.given_up(), t.discarded()]),
    "published with another body": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(body=b"bodY"), t.decision()],
    ),
    "published with other properties": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(properties=[("a", "2"), ("b", "1")]), t.decision()],
    ),
    "published with tags for keys": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(tags="key", keys=None), t.decision()],
    ),
    "published in another topic": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published("b"), t.decision()],
    ),
    "published under another transaction_id": (
        {"published_differs"},
        lambda t: [t.half(), t.op(), t.published(transaction_id="other"), t.decision()],
    ),
    "discarded with another body": ({"discarded_differs"}, lambda t: [*t.given_up()[:-1], t.discarded(body=None)]),
    "op passed over": ({"pending_overdue"}, lambda t: [t.half(), t.op()]),
    "too old": ({"pending_overdue"}, lambda t: _long_pending(t, timedelta(hours=72, minutes=30))),
    "published twice": ({"published_twice"}, lambda t: [*t.committed(), t.published()]),
    "published in two topics": (
        {"published_twice", "published_differs"},
        lambda t: [*t.committed(), t.published("b")],
    ),
    "published, not decided": ({"published_without_commit"}, lambda t: t.committed()[:-1]),
    "published, rolled back": (
        {"published_without_commit"},
        lambda t: [*t.rolled_back(), t.published()],
    ),
    "committed by nobody's op": ({"commit_without_op"}, lambda t: [t.half(), t.published(), t.decision()]),
    "committed by an op of another group": (
        {"commit_without_op"},
        lambda t: [t.half(), t.op(**_OTHER_GROUP), t.published(), t.decision(), t.rejected_op(Reason.WRONG_GROUP)],
    ),
    "committed by an op of another transaction": (
        {"commit_without_op", "op_not_rejected"},
        lambda t: [t.half(), t.op(transaction_id="other"), t.published(), t.decision()],
    ),
    "committed by a check that nobody answered": (
        {"commit_without_op"},
        lambda t: [t.half(), t.op(), t.published(), t.decision(source="check")],
    ),
    "decided twice": ({"decided_twice"}, lambda t: [*t.committed(), t.decision()]),
    "decided both ways": (
        {"decided_twice"},
        lambda t: [*t.committed(), t.op("ROLLBACK"), t.decision("ROLLBACK")],
    ),
    "decided for another group": (
        {"decision_of_another"},
        lambda t: [*t.committed()[:-1], t.decision(**_OTHER_GROUP)],
    ),
    "a check too many": ({"check_over_limit"}, lambda t: [t.half(), *t.checks(CHECK_MAX + 1)]),
    "checked after the decision, by the count": ({"check_after_decision"}, lambda t: [*t.committed(), t.check()]),
    "checked after the decision, by the batch": (
        {"check_after_decision"},
        lambda t: [*t.committed()[:-1], t.decision(check_times=1), t.check(1, DECIDED - BORN + timedelta(minutes=1))],
    ),
    "checked in the immunity": ({"check_too_early"}, lambda t: [t.half(), t.check(1, timedelta(seconds=6))]),
    "checked in its own immunity": ({"check_too_early"}, lambda t: [t.half(check_immunity_s=7), t.check()]),
    "checked too soon again": (
        {"check_too_close"},
        lambda t: [t.half(), t.check(), t.check(2, timedelta(seconds=66.999))],
    ),
    "one check twice": ({"check_twice"}, lambda t: [t.half(), t.check(), t.check(1, timedelta(seconds=67))]),
    "given up one check early": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(), *t.checks(CHECK_MAX - 1), t.decision("DISCARD", check_times=CHECK_MAX - 1)),
            t.discarded(),
        ],
    ),
    "given up before the last check could be answered": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(), *t.checks(CHECK_MAX - 1), t.check(CHECK_MAX, DECIDED - BORN - timedelta(seconds=59))),
            *(t.decision("DISCARD"), t.discarded()),
        ],
    ),
    "expired, and never checked": (
        {"discard_too_soon"},
        lambda t: [
            *(replace(t, born=LONG_AGO).half(), replace(t, born=LONG_AGO).discarded(**_EXPIRED)),
            t.decision("DISCARD", **_EXPIRED, check_times=0),
        ],
    ),
    "expired by its birth, not by its landing": (
        {"discard_too_soon"},
        lambda t: [
            *(t.half(**_LANDED_LATE), *replace(t, born=BORN).checks()),
            *(t.discarded(**_LANDED_LATE, **_EXPIRED), t.decision("DISCARD", **_EXPIRED)),
        ],
    ),
    "ops contradict": ({"op_conflict"}, lambda t: [*t.committed(), t.op("ROLLBACK")]),
    "COMMIT after the discard": ({"op_conflict"}, lambda t: [*t.given_up(), t.op()]),
    "op of another group": ({"op_not_rejected"}, lambda t: [*t.committed(), t.op(**_OTHER_GROUP)]),
    "half message that came again": (
        {"half_not_rejected"},
        lambda t: [*t.committed(), t.half(store_timestamp=BORN + _LATER)],
    ),
    "one id, published under two offsets": (
        {"id_published_twice"},
        lambda t: [
            *t.committed(),
            *(
                (name, row | {"transaction_id": f"tx-{t.queue}-0"})
                for name, row in replace(t, queue=t.queue + 5000).committed()
            ),
        ],
    ),
    _RESUMED: (
        {"id_published_twice", "resumed_twice"},
        lambda t: [*_resumed(t, 0), *_resumed(t, 1)],
    ),
}
_NUMBER = {name: 100 + number for number, name in enumerate([*_CLEAN, *_BROKEN])}


def _settings(root: Path) -> Settings:
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "reconcile": {"partitions": 2},
            "operator": {"queue": _NUMBER[_RESUMED]},
        }
    )


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables in which everything has happened, each in a queue of its own, and the log of their batches."""
    root = tmp_path_factory.mktemp("audit")
    stories = _CLEAN | {name: story for name, (_, story) in _BROKEN.items()}
    told = [row for name, story in stories.items() for row in story(Transaction(_NUMBER[name]))]
    rows, done = in_batches(told)
    write(spark, Tables.of(_settings(root).storage), rows)
    checkpoint(root, batch_id=done)
    return root


@pytest.fixture(scope="module")
def found(spark: SparkSession, root: Path) -> dict[int, set[str]]:
    """Names of the findings in each queue."""
    names: dict[int, set[str]] = {}
    for row in findings(spark, _settings(root)).collect():
        finding = FINDINGS[row["finding"]]
        assert (row["level"], row["promise"], row["meaning"]) == (finding.level, finding.promise, finding.meaning)
        assert row["queue_offset"] == 0
        names.setdefault(row["queue_id"], set()).add(row["finding"])
    return names


@pytest.mark.parametrize("name", _CLEAN)
def test_what_is_as_promised_is_not_found(found: dict[int, set[str]], name: str) -> None:
    assert found.get(_NUMBER[name], set()) == set()


@pytest.mark.parametrize("name", _BROKEN)
def test_what_is_broken_is_found_and_nothing_else(found: dict[int, set[str]], name: str) -> None:
    assert found.get(_NUMBER[name], set()) == _BROKEN[name][0]


def test_every_finding_has_a_case() -> None:
    """Those that need other rules are in test_rules, those of batches in test_account."""
    cases = {name for names, _ in _BROKEN.values() for name in names} | {"discard_not_received"}
    of_transactions = {name for name, finding in FINDINGS.items() if finding.about == "transaction"}
    assert cases == {name for name in of_transactions if FINDINGS[name].level != "figure"}


def test_command_counts_the_same_and_exits_with_1(
    root: Path, found: dict[int, set[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """One JSON object on stdout, nothing on stderr: that a promise is broken is a result, not an error."""
    # Of the settings only the place counts: batches are judged by what they were decided with.
    options = ["--set", f"storage.root={root}", "--set", "transaction.check_max=1", "--set", "transaction.timeout=1d"]
    options += ["--set", f"operator.queue={_NUMBER[_RESUMED]}"]
    assert main(["audit", "--json", *options]) == 1
    out, err = capfd.readouterr()
    assert err == ""
    told = json.loads(out)
    assert told["broken"] is True
    done = told["batch"]["batch_id"]
    assert told["batch"]["time"] == "2026-01-02T00:00:00.000Z"
    assert [batch["batch_id"] for batch in told["under_way"]] == [done + 1]
    assert told["judged_from"]["batch_id"] == 0
    assert told["figures"]["batches"] == done + 1
    assert told["figures"]["batch_not_judged"] == 0
    counts = Counter(name for names in found.values() for name in names)
    assert {each["finding"]: each["count"] for each in told["findings"]} == counts
    for each in told["findings"]:
        queues = sorted(number for number, names in found.items() if each["finding"] in names)
        samples = {int(sample.partition("/")[0]) for sample in each["samples"]}
        assert len(samples) == min(len(queues), 5)
        assert samples <= set(queues)
    assert "body" not in str(told["findings"][0]["samples"])


def test_figures_add_up(spark: SparkSession, tmp_path: Path) -> None:
    """Each half message is one of published, rolled back, discarded and pending; offsets may have gaps.

    The tables are names of a catalog; one that is missing counts as empty.
    """
    storage = {"root": str(tmp_path), "catalog": "spark_catalog", "schema": "audited", "checkpoints": str(tmp_path)}
    settings = Settings.model_validate({"storage": storage, "reconcile": {"partitions": 2}})
    spark.sql("CREATE SCHEMA spark_catalog.audited")
    last = 2**63 - 1
    rows = [
        *(row for offset in (3, 4, 8) for row in Transaction(1, offset).committed()),
        *Transaction(1, 9).rolled_back(),
        *Transaction(2, 0).given_up(),
        *(Transaction(2, offset, BORN - timedelta(seconds=offset % 10)).half() for offset in (1, 5, last)),
    ]
    write(spark, Tables.of(settings.storage), rows)
    report = audit(spark, settings)
    spark.sql("DROP SCHEMA spark_catalog.audited CASCADE")
    figures = {each.finding.name: (each.count, each.samples) for each in report.found}
    assert figures == {
        "halves": (8, ((2, last), (2, 5), (2, 1), (1, 3), (1, 4))),
        "published": (3, ((1, 3), (1, 4), (1, 8))),
        "rolled_back": (1, ((1, 9),)),
        "discarded": (1, ((2, 0),)),
        "pending": (3, ((2, last), (2, 5), (2, 1))),
        "half_repeated": (0, ()),
        "op_rejected": (0, ()),
        "offset_gap": (3 + last + 1 - 4, ()),
        "batches": (0, ()),
        "batch_not_judged": (0, ()),
    }
    assert report.first is None
    assert (report.done, report.under_way, report.broken) == (None, (), False)
    assert report.oldest_pending == ms(BORN - timedelta(seconds=7))


def test_no_tables_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Else an audit of the wrong folder would find nothing broken."""
    with pytest.raises(SettingsError, match="there is no such table"):
        audit(spark, _settings(tmp_path))


def test_crash_between_the_tables_of_a_batch_breaks_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is told to be under way, by its own time; when it is done again, all figures are there."""
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path)},
            "transaction": {"timeout": "0s", "reserved": "36500d", "check_interval": "1h"},
            "reconcile": {"partitions": 2, "segment_size": 64},
        }
    )
    land(spark, settings, str(TRACE / "half.jsonl"), str(TRACE / "op.jsonl"), available_now=True)
    commit = Tables.commit

    def fail_once(self: Tables, spark: SparkSession, name: str, *args: Any) -> None:
        if name == "decisions":
            raise OSError("no space left on device")
        commit(self, spark, name, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Tables, "commit", fail_once)
        with pytest.raises(CheckbackError, match="no space left"):
            reconcile(spark, settings, available_now=True)
    tables = Tables.of(settings.storage)
    assert tables.topics(spark), "the failure must come after some tables were written"
    report = audit(spark, settings)
    assert _counts(report) == {"halves": 154, "pending": 154}
    assert [batch.batch_id for batch in report.under_way] == [0]
    row = tables.read(spark, tables.topics(spark)[0]).selectExpr("unix_millis(committed_at) AS ms").first()
    assert row is not None
    assert report.under_way[0].time == row["ms"]

    reconcile(spark, settings, available_now=True)
    report = audit(spark, settings)
    counts = _counts(report)
    decided = expected.decisions(TRACE, 0).values()
    states = Counter(state for state, _ in decided)
    assert (counts["published"], counts["rolled_back"]) == (states["COMMIT"], states["ROLLBACK"])
    assert counts["pending"] == states["DISCARD"]
    assert report.under_way == ()
    assert report.done is not None
    # The trace has late ops that contradict, and ops of other groups: that breaks nothing.
    figures = {"halves", "published", "rolled_back", "pending", "offset_gap", "op_rejected", "batches"}
    assert set(counts) <= {*figures, "op_conflict"}
    assert not report.broken


def _counts(report: Report) -> dict[str, int]:
    return {each.finding.name: each.count for each in report.found if each.count}
