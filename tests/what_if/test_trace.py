"""The trace of a real broker, decided by the real job and replayed: as it happened, and with fewer checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from checkback import Checkback
from checkback.application.queries import reconcile
from checkback.cli import main
from checkback.landing.file_query import land
from checkback.settings import Settings
from checkback.what_if.replayed_tables import replay
from conftest import TRACE
from examples.producer import ExampleProducer
from support import expected
from support.rows import count_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.what_if.replayed_tables import Change

_CHECK_MAX, _TRANSACTIONS = 6, 154
_GONE = frozenset({"g_gone", "g_main1"})
_STATES = {"COMMIT", "ROLLBACK", "DISCARD"}


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Its tables, all decided: run after run, each check in the next one."""
    root = tmp_path_factory.mktemp("trace")
    groups = {line["producer_group"] for line in expected.lines(TRACE / "half.jsonl")}
    with ExampleProducer(TRACE / "check_answers.json") as producer:
        nobody = ["http://127.0.0.1:9/check"]
        rules = {"timeout": "0s", "max_age": "36500d", "check_interval": "1ms", "check_max": _CHECK_MAX}
        settings = Settings.model_validate(
            {
                "storage": {"root": str(root)},
                "transaction": rules | {"check_jitter": "1ms"},
                "reconcile": {"partitions": 2, "segment_size": 64},
                "producers": {
                    group: {"endpoints": nobody if group in _GONE else producer.endpoints} for group in groups
                },
            }
        )
        land(spark, settings, str(TRACE / "half.jsonl"), str(TRACE / "op.jsonl"), available_now=True)
        for _ in range(_CHECK_MAX + 2):
            reconcile(spark, settings, available_now=True)
    assert count_of(root, "decisions") == _TRANSACTIONS
    return settings


def _changes(settings: Settings, changes: dict[str, Any]) -> list[Change]:
    found: list[Change] = []
    replay(settings, changes, tell=found.append)
    return sorted(found, key=lambda change: change.queue_offset)


def test_rules_in_force_come_to_what_happened(recorded: Settings) -> None:
    found = Checkback(settings=recorded).what_if({}).total
    assert (found.recorded.transactions, found.not_reproduced, found.assumed) == (_TRANSACTIONS, 0, 0)
    assert found.recorded.states == found.what_if.states
    assert found.recorded.checks == found.what_if.checks == count_of(recorded.storage.root, "check_requests")
    assert found.recorded.pending.tolist() == found.what_if.pending.tolist()


def test_spark_is_told_the_same(spark: SparkSession, recorded: Settings) -> None:
    found = Checkback(settings=recorded, spark=spark).what_if({}).total
    assert (found.recorded.transactions, found.not_reproduced) == (_TRANSACTIONS, 0)


@pytest.mark.parametrize("check_max", range(1, _CHECK_MAX - 1))
def test_fewer_checks_discard_whom_the_broker_would(recorded: Settings, check_max: int) -> None:
    """All that they answer was asked for. The fifth answer is the last that decides anything."""
    as_it_was, otherwise = (expected.decisions(TRACE, most, _GONE) for most in (_CHECK_MAX, check_max))
    found = _changes(recorded, {"check_max": check_max})
    assert {change.queue_offset: (change.was, change.now) for change in found} == {
        offset: (as_it_was[offset][0], state)
        for offset, (state, _) in otherwise.items()
        if state != as_it_was[offset][0]
    }
    assert found
    assert not any(change.assumed for change in found)


def test_more_checks_are_assumed_to_be_answered_as_the_last(recorded: Settings) -> None:
    """Nobody is saved: a producer that does not answer the last check answers none after it."""
    found = Checkback(settings=recorded).what_if({"transaction.check_max": 15}).total
    assert found.recorded.states == found.what_if.states
    assert found.assumed == found.what_if.checks - found.recorded.checks > 0


def test_command_prints_tables_and_json(recorded: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["what-if", "--set", f"storage.root={recorded.storage.root}", "--set", "reconcile.segment_size=64"]
    arguments += ["--set", "transaction.check_max=1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("transaction.check_max 6 -> 1; ")
    assert "comes to what happened for 154 of 154 transactions" in text
    assert main([*arguments, "-o", "json"]) == 0
    *transactions, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert {row["transaction"]["now"] for row in transactions} == {"DISCARD"}
    total = last["what_if"]["total"]
    assert total["lost"] == len(transactions) > 0
    assert set(total["recorded"]["states"]) >= _STATES
    assert sum(bucket["transactions"] for bucket in total["what_if"]["pending"]) == _TRANSACTIONS
