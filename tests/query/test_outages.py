"""Outages against a model in plain Python; and figures of nothing."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.query.answers import Answers, records
from checkback.query.frames import Frames
from checkback.settings import Settings
from support.query_times import append, table
from support.stories import BORN, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OUTCOMES = ("COMMIT", "UNKNOWN", "NO_ANSWER", "NO_ANSWER", "SKIPPED")


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}, "reconcile": {"partitions": 2}})


def _answers(random: Random, count: int) -> list[dict[str, Any]]:
    """Outcomes that mostly stay as they are, a second apart."""
    found = []
    outcome = "COMMIT"
    for number in range(count):
        outcome = random.choice(_OUTCOMES) if random.random() < 0.3 else outcome
        key = Transaction(0, random.randrange(20)).key | {"producer_group": random.choice("ab")}
        row = {"check_times": 1, "outcome": outcome, "answered_at": BORN + timedelta(seconds=number), "latency_ms": 1}
        error = {"SKIPPED": "too late", "NO_ANSWER": random.choice(["refused", "not tried: breaker"])}.get(outcome)
        found.append(key | row | {"endpoint": "http://e", "error": error, "failed_tries": []})
    return found


def _kind(row: dict[str, Any]) -> str:
    return row["outcome"] if row["outcome"] in ("UNKNOWN", "NO_ANSWER") else "ANSWER"


def _expected(rows: list[dict[str, Any]], decided: set[int]) -> set[tuple[Any, ...]]:
    found = set()
    for group in "ab":
        of_group = [row for row in rows if row["producer_group"] == group and row["outcome"] != "SKIPPED"]
        runs = [(kind, list(run)) for kind, run in groupby(of_group, _kind)]
        for number, (kind, run) in enumerate(runs):
            if kind == "ANSWER" or len(run) == 1:
                continue
            asked = {row["queue_offset"] for row in run}
            over = runs[number + 1][1][0]["answered_at"] if number + 1 < len(runs) else None
            seconds = ((over or run[-1]["answered_at"]) - run[0]["answered_at"]).total_seconds()
            found.add((group, kind, seconds, over is None, len(run), len(asked), len(asked - decided)))
    return found


def test_outages_are_the_runs_of_checks_in_vain(spark: SparkSession, tmp_path: Path) -> None:
    seed = Random().randrange(10**6)
    print(f"seed {seed}")
    rows = _answers(Random(seed), 300)
    discarded = {0, 1, 2}
    table(tmp_path, "half")
    append(tmp_path, "check_answers", rows)
    append(tmp_path, "decisions", [Transaction(0, offset).decision("DISCARD")[1] for offset in discarded])
    settings = _settings(tmp_path)
    found = Frames(settings, spark).outages()
    names = ("producer_group", "outcome", "lasted_s", "goes_on", "checks", "transactions", "still_pending")
    got = found.withColumn("goes_on", F.isnull("over_at")).select(*names).collect()
    assert {tuple(row) for row in got} == _expected(rows, discarded)
    names_s = ("producer_group", "outcome", "lasted_s", "checks", "transactions", "endpoints", "said", "discarded")
    asked = {tuple(map(str, (row[name] for name in names_s))) for row in records(Answers(settings).outages())}
    assert asked == {tuple(map(str, row)) for row in found.select(*names_s).collect()}
    worst = Answers(settings).worst_outage(group="a")
    assert worst == Answers(settings, spark).worst_outage(group="a")
    harm = [F.desc(name) for name in ("discarded", "still_pending", "transactions", "checks")]
    first = found.where("producer_group = 'a'").orderBy(*harm, "began_at").first()
    assert first is not None
    assert (worst.happened, worst.lasted.total_seconds()) == (True, first["lasted_s"])
    harmed = Answers(settings).damage(worst).to_pylist()
    assert len(harmed) == first["transactions"]
    assert [row["state"] for row in harmed] == ["DISCARD"] * first["discarded"] + [None] * first["still_pending"]
    said = Answers(settings).what_endpoints_said().to_pylist()
    assert said
    assert not [row for row in said if row["said"] in ("not tried: breaker", "too late")]


@pytest.mark.slow
def test_without_rows_figures_say_so(tmp_path: Path) -> None:
    from checkback.query import plots

    table(tmp_path, "half")
    answers = Answers(_settings(tmp_path))
    none = answers.worst_outage()
    assert (none.happened, str(none).startswith("No outage")) == (False, True)
    figures = [
        plots.ages(answers.pending()),
        plots.pending(none.around(answers.pending_over_time()), none.every, none),
        plots.decisions(answers.decisions()),
        plots.outcomes(answers.check_outcomes()),
        plots.latency(answers.decision_latency()),
    ]
    for figure in figures:
        (text,) = figure.texts
        assert text.get_text().startswith(("No data", "Nothing is pending"))
    assert answers.pick_every() == timedelta(seconds=1)


def test_an_interval_is_longer_than_nothing(tmp_path: Path) -> None:
    table(tmp_path, "half")
    with pytest.raises(SettingsError, match="is not an interval"):
        Answers(_settings(tmp_path)).decisions(every=timedelta(0))
