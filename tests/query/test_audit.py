"""The audit: tables that keep the promises, and tables broken in every way, a queue for each."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkback.application.queries import reconcile
from checkback.cli import main
from checkback.errors import SettingsError
from checkback.query.answers import Answers
from checkback.query.audit.promises import FINDINGS
from checkback.settings import Settings
from checkback.storage.tables import Tables
from conftest import TRACE
from support import expected
from support.audit_cases import BROKEN, CLEAN, NUMBER, RESUMED
from support.broken_batch import reconcile_without_decisions
from support.lines import land_lines
from support.stories import (
    BORN,
    DECIDED,
    Transaction,
    checkpoint,
    in_batches,
    ms,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.query.audit.findings import Report


def settings_at(root: Path) -> Settings:
    """Those of the tables below a folder."""
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "reconcile": {"partitions": 2},
            "operator": {"queue": NUMBER[RESUMED]},
        }
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables in which everything has happened, each in a queue of its own, and the log of their batches."""
    root = tmp_path_factory.mktemp("audit")
    stories = CLEAN | {name: story for name, (_, story) in BROKEN.items()}
    told = [row for name, story in stories.items() for row in story(Transaction(NUMBER[name]))]
    rows, done = in_batches(told)
    write(None, Tables.of(settings_at(root).storage), rows)
    # Somebody's own, in a topic's place: not a message without a half message (the topic's wait in `unpublished`).
    write_deltalake(str(root / "topics" / "others"), pa.table({"number": [1]}))
    checkpoint(root, batch_id=done)
    return root


@pytest.fixture(scope="module")
def found(root: Path) -> dict[int, set[str]]:
    """Names of the findings in each queue."""
    names: dict[int, set[str]] = {}
    for row in Answers(settings_at(root)).findings().to_pylist():
        finding = FINDINGS[row["finding"]]
        assert (row["level"], row["promise"], row["meaning"]) == (finding.level, finding.promise, finding.meaning)
        assert row["queue_offset"] == 0
        names.setdefault(row["queue_id"], set()).add(row["finding"])
    return names


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_as_promised_is_not_found(found: dict[int, set[str]], name: str) -> None:
    assert found.get(NUMBER[name], set()) == set()


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found_and_nothing_else(found: dict[int, set[str]], name: str) -> None:
    assert found.get(NUMBER[name], set()) == BROKEN[name][0]


def test_every_finding_has_a_case() -> None:
    """Those that need other rules are in test_rules, those of what batches had read in test_audit_order.

    What RESTORE has brought back is in maintain's test_row_retention.
    """
    cases = {name for names, _ in BROKEN.values() for name in names} | {"discard_not_received", "half_back"}
    of_transactions = {name for name, finding in FINDINGS.items() if finding.about == "transaction"}
    assert cases == {name for name in of_transactions if FINDINGS[name].level != "figure"}


def test_command_counts_the_same_and_exits_with_1(
    root: Path, found: dict[int, set[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """One JSON object on stdout, nothing on stderr: that a promise is broken is a result, not an error."""
    # Of the settings only the place counts: batches are judged by what they were decided with.
    options = ["--set", f"storage.root={root}", "--set", "transaction.check_max=1", "--set", "transaction.timeout=1d"]
    options += ["--set", f"operator.queue={NUMBER[RESUMED]}"]
    assert main(["audit", "-o", "json", *options]) == 1
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
    checked = [BORN + timedelta(seconds=seconds) for seconds in (7, 67, 127)]
    report = Answers(settings, spark).audit()
    spark.sql("DROP SCHEMA spark_catalog.audited CASCADE")
    figures = {each.finding.name: (each.count, each.samples) for each in report.found}
    assert figures == {
        "halves": (8, ((2, last), (2, 5), (2, 1), (1, 3), (1, 4))),
        "published": (3, ((1, 3), (1, 4), (1, 8))),
        "rolled_back": (1, ((1, 9),)),
        "discarded": (1, ((2, 0),)),
        "pending": (3, ((2, last), (2, 5), (2, 1))),
        "scheduled": (0, ()),
        "cancelled": (0, ()),
        "half_repeated": (0, ()),
        "op_rejected": (0, ()),
        "offset_gap": (3 + last + 1 - 4, ()),
        "batches": (0, ()),
        "batch_not_judged": (4, tuple((0, ms(time)) for time in (*checked, DECIDED))),
    }
    assert report.first is None
    assert (report.done, report.under_way, report.broken) == (None, (), False)
    assert report.oldest_pending == ms(BORN - timedelta(seconds=7))


def test_no_tables_are_an_error(tmp_path: Path) -> None:
    """Else an audit of the wrong folder would find nothing broken."""
    with pytest.raises(SettingsError, match="there is no such table"):
        Answers(settings_at(tmp_path)).audit()


def test_crash_between_the_tables_of_a_batch_breaks_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The batch is told to be under way, by its own time; when it is done again, all figures are there."""
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path)},
            "transaction": {"timeout": "0s", "max_age": "36500d", "check_interval": "1h"},
            "reconcile": {"partitions": 2, "segment_size": 64},
        }
    )
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    reconcile_without_decisions(spark, settings)
    tables = Tables.of(settings.storage)
    assert tables.topics(spark), "the failure must come after some tables were written"
    report = Answers(settings).audit()
    assert _counts(report) == {"halves": 154, "pending": 154}
    assert [batch.batch_id for batch in report.under_way] == [0]
    row = tables.read(spark, tables.topics(spark)[0]).selectExpr("unix_millis(published_at) AS ms").first()
    assert row is not None
    assert report.under_way[0].time == row["ms"]

    reconcile(spark, settings, available_now=True)
    report = Answers(settings).audit()
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
