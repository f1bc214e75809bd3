"""The metrics as a scrape shows them; dashboard and alarms ask for no others."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from checkback.consumer.metrics import ConsumerMetrics
from checkback.errors import SettingsError
from checkback.observe.counts import PendingCount, names_by_hash
from checkback.observe.metrics import Metrics
from checkback.observe.observer import Observer
from checkback.observe.progress import Lag
from checkback.reconcile.records.actions import GROUP, QUEUED, SEGMENT, Actions
from checkback.reconcile.records.segment_records import Action
from checkback.storage.files.table_files import commit_file
from checkback.storage.schemas import arrow_schema

_CONF = Path(__file__).parents[2] / "conf"
_NOW = 1_000.0
_OTHERS = "checkback_{}{{producer_group=other}}"
_KINDS = (Action.COMMIT, Action.COMMIT, Action.ROLLBACK, Action.DISCARD, Action.CHECK, Action.REJECT_OP, Action.LATE_OP)


class _Application:
    """An observer whose metrics are served."""

    def __init__(self, folder: Path) -> None:
        pending = PendingCount(("orders",))
        self.metrics = Metrics(Lag({"half": str(folder)}), pending, ("orders",), lambda: _NOW)
        self.observer = Observer(self.metrics, pending)

    def scrape(self) -> dict[str, float]:
        """Over HTTP: name or name{label=value,..}, and the value."""
        with self.metrics.served("127.0.0.1", 0) as port:
            text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def publish(self, *segments: tuple[int, int, int, int], kinds: tuple[Action, ...] = _KINDS) -> None:
        records = np.zeros(len(kinds), QUEUED)
        records["action"] = kinds
        self.observer.published(
            Actions(records, 5), 1, np.array([(*told[:3], 0, told[3], -1, 0) for told in segments], SEGMENT)
        )

    def ask(self, *outcomes: tuple[str, str]) -> None:
        schema = arrow_schema("check_answers")
        rows = [{"outcome": outcome, "producer_group": group} for outcome, group in outcomes]
        self.observer.asked(pa.Table.from_pylist(rows, schema), 1)

    def progress(self, **other: Any) -> None:
        told = {"name": "reconcile", "batchId": 1, "durationMs": {"triggerExecution": 1500}, "sources": []}
        self.observer.progressed(told | other)


@pytest.fixture
def application(tmp_path: Path) -> _Application:
    return _Application(tmp_path)


def test_decisions_checks_and_what_is_pending(application: _Application) -> None:
    application.publish((0, 0, 3, 400_000), (0, 7, 2, 900_000))
    application.publish((0, 0, 0, 0), kinds=(Action.COMMIT,))
    found = application.scrape()
    assert {
        state: found[f"checkback_decisions_total{{producer_group=other,state={state}}}"]
        for state in ("COMMIT", "ROLLBACK", "DISCARD")
    } == {
        "COMMIT": 3,
        "ROLLBACK": 1,
        "DISCARD": 1,
    }
    assert found["checkback_check_requests_total"] == 1
    assert found["checkback_rejected_total{table=op}"] == 1
    assert (found[_OTHERS.format("pending")], found[_OTHERS.format("oldest_pending_seconds")]) == (2, 100)
    application.publish((0, 7, 0, 0), kinds=())
    found = application.scrape()
    assert (found[_OTHERS.format("pending")], found[_OTHERS.format("oldest_pending_seconds")]) == (0, 0)


def test_scheduled_messages(application: _Application) -> None:
    """A COMMIT that schedules is a COMMIT; the lateness is that of the latest delivery."""
    records = np.zeros(4, QUEUED)
    records["action"] = (Action.SCHEDULE, Action.DELIVER, Action.DELIVER, Action.CANCEL)
    records["due"] = (90_000, 7_000, 9_500, 80_000)
    told = np.array([(0, 0, 0, 3, 0, -1, 0), (0, 1, 1, 2, 900_000, -1, 0)], SEGMENT)
    application.observer.published(Actions(records, 10_000), 1, told)
    found = application.scrape()
    assert found["checkback_scheduled"] == 5
    assert (found[_OTHERS.format("pending")], found[_OTHERS.format("oldest_pending_seconds")]) == (1, 100)
    assert (found["checkback_deliveries_total"], found["checkback_delivery_lateness_seconds"]) == (2, 3)
    states = {
        state: found[f"checkback_decisions_total{{producer_group=other,state={state}}}"]
        for state in ("COMMIT", "CANCEL")
    }
    assert states == {"COMMIT": 1, "CANCEL": 1}


def test_groups_that_are_not_configured_are_one_label(application: _Application) -> None:
    """A half message may name any group: labels must not grow with them."""
    application.ask(("COMMIT", "orders"), ("NO_ANSWER", "x1"), ("NO_ANSWER", "x2"))
    found = application.scrape()
    assert found["checkback_checks_total{outcome=COMMIT,producer_group=orders}"] == 1
    assert found["checkback_checks_total{outcome=NO_ANSWER,producer_group=other}"] == 2
    assert not [name for name in found if "x1" in name]


def test_pending_and_decisions_are_told_by_group(application: _Application) -> None:
    """A delivery does not tell what is pending."""
    (orders,) = names_by_hash(("orders",))
    records = np.zeros(3, QUEUED)
    records["action"], records["group"] = Action.DISCARD, (orders, orders, 7)
    groups = np.array([(0, 0, orders, 2, 400_000), (0, 0, 7, 1, 300_000), (0, 1, orders, 3, 200_000)], GROUP)
    told = np.array([(0, 0, 4, 0, 100_000, -1, 0), (0, 1, 3, 1, 200_000, -1, 0)], SEGMENT)
    application.observer.published(Actions(records, 5, groups), 1, told)
    application.observer.published(Actions(records[:0], 6), 2, np.array([(0, 1, 3, 0, 200_000, -1, 0)], SEGMENT))
    found = application.scrape()
    discards = "checkback_decisions_total{{producer_group={},state=DISCARD}}"
    assert (found[discards.format("orders")], found[discards.format("other")]) == (2, 1)
    assert (found["checkback_pending{producer_group=orders}"], found[_OTHERS.format("pending")]) == (5, 2)
    age = "checkback_oldest_pending_seconds{producer_group=orders}"
    assert (found[age], found[_OTHERS.format("oldest_pending_seconds")]) == (800, 900)


def test_batches_and_state(application: _Application) -> None:
    operator = {"numRowsTotal": 2, "memoryUsedBytes": 10, "numRowsDroppedByWatermark": 1}
    application.progress(stateOperators=[operator])
    application.observer.started("check")
    application.observer.ended("reconcile", failed=True)
    found = application.scrape()
    assert found["checkback_batch_seconds_sum{query=reconcile}"] == 1.5
    assert found["checkback_last_batch_timestamp_seconds{query=reconcile}"] == _NOW
    assert (found["checkback_state_segments"], found["checkback_state_bytes"]) == (2, 10)
    assert found["checkback_rows_dropped_total"] == 1
    assert (found["checkback_query_running{query=check}"], found["checkback_query_running{query=reconcile}"]) == (1, 0)
    assert found["checkback_query_failures_total{query=reconcile}"] == 1


def test_nothing_that_is_told_can_fail_a_batch(application: _Application) -> None:
    application.observer.progressed({"nonsense": 1})
    application.observer.published(None, 1, None)  # type: ignore[arg-type]
    application.observer.asked(None, 1)
    application.observer.ended(None, None)  # type: ignore[arg-type]
    application.progress()
    assert application.scrape()["checkback_batch_seconds_count{query=reconcile}"] == 1


def test_ready_while_both_queries_run_and_batches_come(application: _Application, tmp_path: Path) -> None:
    """A query that hangs while rows wait, or has ended, is told of; one without anything to do is ready."""
    now, made = [_NOW], {name: tmp_path / name for name in ("half", "op", "check_requests")}
    metrics = Metrics(Lag({name: str(place) for name, place in made.items()}), PendingCount(), (), lambda: now[0])
    observer = Observer(metrics, PendingCount())

    def lands(name: str, version: int) -> None:
        file = Path(commit_file(str(made[name]), version))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (now[0], now[0]))

    def batch(query: str, *sources: str) -> None:
        ends = [{"numInputRows": 1, "endOffset": {"reservoirVersion": 1}} for _ in sources]
        observer.progressed({"name": query, "batchId": 1, "durationMs": {"triggerExecution": 1}, "sources": ends})

    assert metrics.unready() == "does not run: reconcile, check"
    observer.started("reconcile")
    observer.started("check")
    assert metrics.unready() is None
    now[0] += 3600
    assert metrics.unready() == "reconcile has done no batch for 3600 s, and rows wait", "the first one hangs"
    batch("reconcile", "half", "op", "ticks")
    batch("check", "check_requests")
    now[0] += 3600
    assert metrics.unready() is None, "there is nothing to do"
    for name, query in (("op", "reconcile"), ("check_requests", "check")):
        lands(name, 1)
        now[0] += 3600
        assert metrics.unready() == f"{query} has done no batch for {now[0] - _NOW - 3600:.0f} s, and rows wait"
        Path(commit_file(str(made[name]), 1)).unlink()
    observer.ended("check", False)
    assert metrics.unready() == "does not run: check"


def test_port_that_is_taken_is_an_error(application: _Application) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(SettingsError, match="cannot listen"),
            application.metrics.served("127.0.0.1", taken.getsockname()[1]),
        ):
            pass


def _served(application: _Application) -> set[str]:
    """Names of all series, of the gateway and of consumers too."""
    pytest.importorskip("prometheus_client", reason="the gateway's metrics need checkback[gateway]")
    from checkback.gateway.metrics import Metrics as Gateway

    text = application.metrics, Gateway()
    text[1].watch_journal(messages=float, bytes=float, behind_seconds=float)
    application.publish((0, 0, 1, 1))
    application.progress(stateOperators=[{"numRowsTotal": 1, "memoryUsedBytes": 1}], sources=[{"numInputRows": 1}] * 3)
    application.observer.started("reconcile")
    found = {name.partition("{")[0] for name in application.scrape()}
    for family in text_string_to_metric_families(text[1].text().decode()):
        kind = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + end for end in kind}
    return found | ConsumerMetrics.names()


def _asked(expression: str) -> set[str]:
    return set(re.findall(r"\bcheckback_\w+", expression))


def test_dashboard_is_whole_and_asks_for_what_is_there(application: _Application) -> None:
    dashboard = json.loads((_CONF / "grafana/checkback.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
    assert all(0 <= panel["gridPos"]["x"] < panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    used = set().union(*(_asked(target["expr"]) for panel in panels for target in panel["targets"]))
    assert used <= _served(application)
    wanted = {
        "lag_seconds",
        "pending",
        "oldest_pending_seconds",
        "decisions_total",
        "checks_total",
        "rows_dropped_total",
        "consumer_lag_seconds",
        "consumer_group_dead_letters",
        "gateway_journal_behind_seconds",
    }
    assert {f"checkback_{name}" for name in wanted} <= used
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) - {"__rate_interval"} <= variables


def test_alarms_ask_for_what_is_there_and_are_explained(application: _Application) -> None:
    alarms = yaml.safe_load((_CONF / "prometheus/alarms.yml").read_text())
    rules = [rule for group in alarms["groups"] for rule in group["rules"]]
    served = _served(application)
    told = (_CONF.parent / "docs/runbook.md").read_text()
    for rule in rules:
        assert _asked(rule["expr"]) <= served, rule["alert"]
        assert rule["annotations"]["summary"]
        assert f"## {rule['alert']}\n" in told, "each alarm has its section: what it means, what to do"
