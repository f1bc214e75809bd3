"""What an audit's report says in a table and in JSON."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from checkback.query.audit.findings import Found, Report
from checkback.query.audit.promises import FINDINGS, PROMISES
from checkback.query.audit.report import COLUMNS, as_json, conclusion, table_rows
from checkback.storage.checkpoints.checkpoint import Batch

_DONE, _NEXT = Batch(4, 1_767_225_600_250), Batch(5, 1_767_225_602_000)
_FOUND = (
    Found(FINDINGS["halves"], 7, ((0, 1),)),
    Found(FINDINGS["published_twice"], 2, ((0, 1), (3, 2**63 - 1))),
    Found(FINDINGS["op_conflict"], 1, ((0, 4),)),
)


def test_what_is_broken_stands_last_and_is_named() -> None:
    """A terminal shows the end of a table."""
    report = Report(_FOUND, _DONE, (_NEXT,), 1_767_225_600_000, _DONE)
    rows = table_rows(report)
    assert [row[0] for row in rows] == ["figure", "warning", "broken"]
    assert dict(zip(COLUMNS, rows[-1], strict=True)) == {
        "level": "broken",
        "promise": "P2",
        "finding": "published_twice",
        "count": "2",
        "meaning": FINDINGS["published_twice"].meaning,
        "samples": f"0/1 3/{2**63 - 1}",
    }
    assert conclusion(report, datetime(2026, 1, 1, 0, 1, tzinfo=timezone.utc)) == [
        "as of batch 4, 2026-01-01T00:00:00.250Z",
        "in progress, not audited: batch 5 (2026-01-01T00:00:02.000Z); if nothing runs, the next start ends it",
        "the oldest pending transaction is 60s old",
        f"P2 is broken: {PROMISES['P2']}",
    ]


def test_figures_add_up_with_what_waits_for_its_table() -> None:
    """It is a warning, too."""
    found = tuple(Found(FINDINGS[name], count, ()) for name, count in (("halves", 7), ("published", 4), ("pending", 1)))
    for waiting in ((), (Found(FINDINGS["unpublished"], 2, ((0, 4),)),)):
        report = Report((*found, *waiting), None, (), None)
        told = as_json(report)
        assert told["figures"] == {"halves": 7, "published": 4, "unpublished": 2 if waiting else 0, "pending": 1}
        assert [one["finding"] for one in told["findings"]] == ["unpublished"] * len(waiting)
        levels = [row[0] for row in table_rows(report) if row[2] == "unpublished"]
        assert levels == ["figure", "warning"][: 1 + len(waiting)]


def test_warnings_break_nothing() -> None:
    report = Report((_FOUND[0], _FOUND[2]), None, (), None, _DONE)
    assert not report.broken
    assert conclusion(report, datetime.now(timezone.utc)) == ["No promise is broken."]


def test_what_cannot_be_judged_is_told() -> None:
    """Where `batches` has lost its first rows, or all of them."""
    now = datetime.now(timezone.utc)
    assert conclusion(Report((), None, (), None, _DONE, past=True), now)[0] == (
        "batches before 2026-01-01T00:00:00.250Z have no row in `batches`: judged without their rules"
    )
    assert conclusion(Report((), None, (), None), now)[0].startswith("no batch has a row in `batches`")


def test_batches_are_named_by_id_and_time() -> None:
    """The id alone begins anew with a rebuild."""
    found = Found(FINDINGS["batch_twice"], 2, ((4, 1_767_225_600_250), (5, None)))
    assert as_json(Report((found,), None, (), None))["findings"][0]["samples"] == ["4@2026-01-01T00:00:00.250Z", "5@-"]


def test_json_has_figures_and_findings() -> None:
    told = json.loads(json.dumps(as_json(Report(_FOUND, None, (_NEXT,), None))))
    assert told["figures"] == {"halves": 7}
    assert (told["broken"], told["batch"], told["oldest_pending"]) == (True, None, None)
    assert told["under_way"] == [{"batch_id": 5, "time": "2026-01-01T00:00:02.000Z"}]
    assert [(each["level"], each["promise"], each["samples"]) for each in told["findings"]] == [
        ("broken", "P2", ["0/1", f"3/{2**63 - 1}"]),
        ("warning", None, ["0/4"]),
    ]
