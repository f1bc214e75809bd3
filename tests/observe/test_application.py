"""A running application is heard: its batches, its checks, its end; over Spark's own listener, and over HTTP."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import requests

from checkback.application.queries import reconcile
from checkback.observe.logs import EVENTS
from checkback.settings import Settings
from conftest import TRACE
from support import expected
from support.lines import land_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.spark.shutdown import GracefulShutdown

pytestmark = pytest.mark.spark


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append((record.getMessage(), getattr(record, "checkback_fields", {})))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]


def test_application_tells_what_it_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = Settings.model_validate(
        {
            "storage": {"root": str(tmp_path)},
            "transaction": {"timeout": "0s", "max_age": "36500d", "check_interval": "1h"},
            "reconcile": {"partitions": 2, "segment_size": 64, "trigger": "200ms"},
            "metrics": {"port": port},
        }
    )
    heard = _Heard()
    monkeypatch.setattr(EVENTS, "handlers", [heard])
    EVENTS.setLevel(logging.INFO)  # not by monkeypatch: a logger remembers what its level let through
    request.addfinalizer(lambda: EVENTS.setLevel(logging.NOTSET))
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    states = Counter(state for state, _ in expected.decisions(TRACE, 0).values())
    scraped: list[str] = []
    batches: list[int] = []

    def meanwhile(stopper: GracefulShutdown) -> None:
        batches.append(len(list((tmp_path / "_checkpoints/reconcile/commits").glob("[0-9]*"))))
        answered = sum(fields["no_answer"] for fields in heard.of("checks_done"))
        done = [fields["query"] for fields in heard.of("batch_done") if fields.get("half_rows", 1)]
        # When all is done nothing is due for an hour, and no batch is made.
        if answered == states["DISCARD"] and "reconcile" in done and len(set(batches[-4:])) == 1 < len(batches) - 2:
            scraped.append(requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text)
            stopper.stop()
        elif len(batches) > 300:
            stopper.stop()

    reconcile(spark, settings, available_now=False, meanwhile=meanwhile)

    assert scraped, "it goes on making batches"
    published = heard.of("batch_published")
    assert {name: sum(each[name] for each in published) for name in ("commit", "rollback", "check")} == {
        "commit": states["COMMIT"],
        "rollback": states["ROLLBACK"],
        "check": states["DISCARD"],
    }
    done_batches = [fields for fields in heard.of("batch_done") if fields["query"] == "reconcile"]
    assert (sum(each["half_rows"] for each in done_batches), {each["rows_dropped"] for each in done_batches}) == (
        154,
        {0},
    )
    ended = [(fields["query"], fields["failed"]) for fields in heard.of("query_ended")]
    assert sorted(ended) == [("check", False), ("reconcile", False)]
    lines = scraped[0].splitlines()
    # No group is in the settings.
    assert f'checkback_decisions_total{{producer_group="other",state="COMMIT"}} {states["COMMIT"]:.1f}' in lines
    assert f'checkback_pending{{producer_group="other"}} {states["DISCARD"]:.1f}' in lines
    assert 'checkback_lag_seconds{table="half"} 0.0' in lines
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10)
