"""As of a time whose rows retention has removed: refused by the horizon of each table that is read, or as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from checkback.errors import SettingsError
from checkback.query.answers import Answers
from checkback.reconcile.publish.published_notes import note
from checkback.settings import Settings
from checkback.storage.tables import Tables
from maintain.fixtures import maintained
from support.stories import DONE, Row, Transaction, checkpoint, in_batches, ms, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def _answers(root: Path, rows: list[Row], noted: bool = False) -> Answers:
    """After `maintain`, which keeps messages for five days. ``noted``: topic a has all of its messages."""
    kept = {"history": "30d", "topics": "5d", "given_up": "5d"}
    settings = Settings.model_validate({"storage": {"root": str(root)}, "retention": kept})
    found, done = in_batches(rows)
    write(None, Tables.of(settings.storage), found)
    checkpoint(root, batch_id=done)
    if noted:
        note(cast("SparkSession", None), Tables.of(settings.storage), {("a", "query"): done})
    maintained(settings, ms(DONE))
    return Answers(settings)


def _ago(days: int) -> Transaction:
    return Transaction(0, days, DONE - timedelta(days=days, minutes=1))


def test_before_the_horizon_of_a_topic_or_of_what_was_given_up(tmp_path: Path) -> None:
    """The history has all of them still."""
    rows: list[Row] = []
    for t, at in ((_ago(days), DONE - timedelta(days=days)) for days in (9, 8, 3)):
        rows += [t.half(), t.op(), t.published(published_at=at), t.decision(decided_at=at)]
    t, at = _ago(10), DONE - timedelta(days=10)
    rows += [t.half(), *t.checks(), t.decision("DISCARD", decided_at=at), t.discarded(discarded_at=at)]
    answers, then = _answers(tmp_path, rows), DONE - timedelta(days=7)
    assert len(answers.pending(as_of=then)) == 0
    with pytest.raises(SettingsError, match=r"rows of topics/a before 2025-12-28T00:00:00\S+ were removed"):
        answers.topics(as_of=then)
    with pytest.raises(SettingsError, match="rows of discarded before 2025-12-28"):
        answers.discarded(as_of=then)
    assert answers.topics(as_of=DONE - timedelta(days=2))["messages"].to_pylist() == [1]


def test_published_late_and_removed_since(tmp_path: Path) -> None:
    """Not waiting as of a time since the topic's horizon; before it that is not known any more."""
    rows: list[Row] = []
    for waited, published in ((9, 8), (7, 2)):
        t, at = _ago(waited), DONE - timedelta(days=waited)
        rows += [t.half(), t.op(), t.decision(decided_at=at), t.unpublished(unpublished_at=at, application="query")]
        rows.append(t.published(published_at=DONE - timedelta(days=published)))
    answers = _answers(tmp_path, rows, noted=True)
    assert len(answers.unpublished()) == 0
    assert answers.unpublished(as_of=DONE - timedelta(days=4))["queue_offset"].to_pylist() == [7]
    assert len(answers.unpublished(as_of=DONE - timedelta(days=1))) == 0
    for ask in (answers.unpublished, answers.count_unpublished, answers.status):
        with pytest.raises(SettingsError, match="rows of topics/a before"):
            ask(as_of=DONE - timedelta(days=6))
