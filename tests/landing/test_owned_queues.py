"""Lines for queues that are the gateway's or the operator's are rejected, once, whoever claims a queue when."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from checkback.errors import CheckbackError
from checkback.landing.batch import Landing
from checkback.landing.landing_queries import Landed
from checkback.storage.checkpoints.checkpoint import plan_versions
from checkback.storage.horizon import versions_of
from checkback.storage.queue_owners import OwnedQueues, QueueOwner
from landing.fixtures import Lakehouse, half, killed_before, op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Any

    from pyspark.sql import Column, DataFrame


def test_queues_of_the_gateway_and_the_operator_take_no_lines(lake: Lakehouse, inbox: Path) -> None:
    halves, ops = inbox / "halves", inbox / "ops"
    for folder in (halves, ops):
        folder.mkdir()
    (halves / "a.jsonl").write_text(half(0))
    assert lake.land(half=halves) == Landed(half=1)
    # A gateway starts later on a queue into which files have landed.
    lake.gateway(0, 3)
    own = lake.settings.operator.queue
    (halves / "b.jsonl").write_text("\n".join([half(1), half(1, queue_id=own), half(1, queue_id=1), half(0)]))
    several = json.loads(op(0)) | {"queue_offsets": "5,6,"}
    del several["queue_offset"], several["transaction_id"]
    (ops / "a.jsonl").write_text("\n".join([op(0, queue_id=3), op(0, queue_id=1), json.dumps(several)]))
    assert lake.land(halves, ops) == Landed(half=1, op=1, rejected=5)
    assert lake.rows("half", "queue_id", "queue_offset") == [(0, 0), (1, 1)]
    assert lake.rows("op", "queue_id", "queue_offset") == [(1, 0)]
    told = "queue_id: {} is the {}'s, whose messages come by no other door".format
    rejected = [
        ("half", told(0, "gateway"), half(0)),
        ("half", told(0, "gateway"), half(1)),
        ("half", told(own, "operator"), half(1, queue_id=own)),
        ("op", told(0, "gateway"), json.dumps(several)),
        ("op", told(3, "gateway"), op(0, queue_id=3)),
    ]
    assert lake.rows("rejected", "source", "reason", "raw") == rejected
    # Done again, a batch rejects nothing that it has landed before the queue had an owner.
    lake.gateway(1)
    lake.forget_last_batch("land-half")
    lake.forget_last_batch("land-op")
    assert lake.land(halves, ops).half == 1
    assert lake.rows("rejected", "source", "reason", "raw") == rejected


@pytest.mark.parametrize("killed", ["half", "op", "rejected"])
def test_batch_that_is_done_again_under_other_settings_has_each_line_once(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Killed before one of its commits; what was refused then is taken now, and the other way round."""
    kind = "op" if killed == "op" else "half"
    line = op if kind == "op" else half
    told = "queue_id: {} is the operator's, whose messages come by no other door".format
    texts = [line(0), line(0, queue_id=7), line(0, queue_id=8), line(1, queue_id=8), "nonsense", "nonsense", line(1)]
    (inbox / "a.jsonl").write_text("\n".join(texts))

    def land(lake: Lakehouse) -> Landed:
        return lake.land(op=inbox) if kind == "op" else lake.land(half=inbox)

    with monkeypatch.context() as patch:
        killed_before(patch, killed)
        with pytest.raises(CheckbackError):
            land(_with_operator(lake, 7))
    now = _with_operator(lake, 8)
    taken, rejected = {"half": (2, 5), "op": (2, 5), "rejected": (3, 4)}[killed]
    landed = Landed(op=taken, rejected=rejected) if kind == "op" else Landed(half=taken, rejected=rejected)
    assert land(now) == landed
    after = now.rows(kind, "queue_id"), now.rows("rejected", "reason", "raw")
    raws = [row.raw for row in after[1]]
    assert sorted(raws + [text for text in texts if text not in raws]) == sorted(texts)
    assert len(after[0]) == taken
    assert {row.reason for row in after[1]} == {
        told(8),
        *([] if killed == "rejected" else [told(7)]),
        "not JSON: Expecting value at character 0",
    }
    # Whole, and done again under the first settings: nothing moves.
    lake.forget_last_batch(f"land-{kind}")
    assert land(_with_operator(lake, 7)) == landed
    assert (now.rows(kind, "queue_id"), now.rows("rejected", "reason", "raw")) == after


def _with_operator(lake: Lakehouse, queue: int) -> Lakehouse:
    operator = lake.settings.operator.model_copy(update={"queue": queue})
    return replace(lake, settings=lake.settings.model_copy(update={"operator": operator}))


def test_of_two_that_land_at_once_one_takes_a_message(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own checkpoint. The other one commits when this one has looked for repeated messages."""
    (inbox / "a.jsonl").write_text(half(0))
    assert lake.land(half=inbox) == Landed(half=1)
    write = Landing._write

    def come_late(landing: Landing, good: DataFrame, *given: Any) -> None:
        monkeypatch.undo()
        queues = OwnedQueues(lake.tables, "half", QueueOwner.FILES, lake.settings.operator.queue)
        queues.refused([0])
        assert lake.tables.append(good, "half", "land/other/half", 0, fence=queues.fence())
        write(landing, good, *given)

    monkeypatch.setattr(Landing, "_write", come_late)
    (inbox / "b.jsonl").write_text("\n".join(["nonsense", half(0), half(1)]))
    assert lake.land(half=inbox) == Landed(rejected=3)
    assert lake.rows("half", "queue_offset") == [(0,), (1,)]
    assert lake.rows("rejected", "reason") == [
        ("not JSON: Expecting value at character 0",),
        ("repeated (queue_id, queue_offset) 0/0",),
        ("repeated (queue_id, queue_offset) 0/1",),
    ]


def _after_another(lake: Lakehouse, time: Callable[[Landing], int], **columns: Column) -> Callable[..., None]:
    """In place of `Landing._write`: another process has rejected the lines, with these columns, as the same batch.

    ``time``: that of its plan, in ms.
    """
    write = Landing._write

    def come_late(
        landing: Landing, good: DataFrame, taken: int, bad: DataFrame, number: int, app: str, batch_id: int
    ) -> None:
        name = f"{app}/rejected"
        others = bad.withColumns({"source": F.lit("half"), **columns})
        lake.tables.append(others, "rejected", name, batch_id, plan_versions(name, batch_id, time(landing)))
        write(landing, good, taken, bad, number, app, batch_id)

    return come_late


def test_what_another_has_rejected_as_the_same_batch_is_not_taken_for_done(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two have one checkpoint, which in an object store nobody notices: the other one has planned other files."""
    monkeypatch.setattr(Landing, "_write", _after_another(lake, lambda _: 1, file=F.lit("other")))
    # As in a batch that is not the first one of a run.
    monkeypatch.setattr(Landing, "_again", property(lambda _: False, lambda *_: None), raising=False)
    (inbox / "a.jsonl").write_text(f"nonsense\n{half(0)}")
    with pytest.raises(CheckbackError, match="another process writes the same batches"):
        lake.land(half=inbox)
    assert lake.rows("half") == []


def test_lines_that_another_rejects_in_the_same_batch_are_rejected_once(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another `land` has been started on the checkpoint, and replays the batch that this one does."""
    (inbox / "a.jsonl").write_text(f"nonsense\n{half(0)}")
    with monkeypatch.context() as patch:
        patch.setattr(Landing, "_write", _after_another(lake, lambda landing: landing._time))
        with pytest.raises(CheckbackError, match="another process writes the same batches"):
            lake.land(half=inbox)
    assert lake.land(half=inbox) == Landed(half=1, rejected=1)
    assert lake.rows("rejected", "raw") == [("nonsense",)]


def test_messages_that_another_lands_in_the_same_batch_are_not_repeated(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Landing._half

    def come_late(landing: Landing, lines: DataFrame, parsed: DataFrame, app: str, batch_id: int) -> None:
        monkeypatch.undo()
        queues = OwnedQueues(lake.tables, "half", QueueOwner.FILES, lake.settings.operator.queue)
        queues.refused([0])
        plan = plan_versions(f"{app}/half", batch_id, landing._time)
        assert lake.tables.append(parsed, "half", f"{app}/half", batch_id, plan, None, queues.fence())
        take(landing, lines, parsed, app, batch_id)

    monkeypatch.setattr(Landing, "_half", come_late)
    (inbox / "a.jsonl").write_text(half(0))
    with pytest.raises(CheckbackError, match="another process writes the same batches"):
        lake.land(half=inbox)
    assert lake.land(half=inbox) == Landed(half=1)
    assert (lake.rows("half", "queue_offset"), lake.rows("rejected", "raw")) == ([(0,)], [])


def test_gateway_that_claims_a_queue_during_a_batch_keeps_it(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = OwnedQueues.refused

    def look_and_be_late(queues: OwnedQueues, wanted: Iterable[int]) -> dict[int, str]:
        found = look(queues, wanted)
        monkeypatch.undo()
        lake.gateway(0)
        return found

    monkeypatch.setattr(OwnedQueues, "refused", look_and_be_late)
    (inbox / "a.jsonl").write_text(f"{half(0)}\n{half(0, queue_id=1)}")
    assert lake.land(half=inbox) == Landed(half=1, rejected=1)
    assert lake.rows("half", "queue_id") == [(1,)]


def test_message_does_not_land_where_retention_removes_during_its_batch(
    lake: Lakehouse, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been published once, and nothing would tell any more."""
    write = Landing._write

    def come_late(landing: Landing, *given: Any) -> None:
        monkeypatch.undo()
        lake.tables.open_log("half").commit_after([], {}, versions_of(1, {0: 1}))
        write(landing, *given)

    monkeypatch.setattr(Landing, "_write", come_late)
    (inbox / "a.jsonl").write_text("\n".join(half(offset) for offset in range(2)))
    assert lake.land(half=inbox) == Landed(half=1, rejected=1)
    assert lake.rows("half", "queue_offset") == [(1,)]
    assert lake.rows("rejected", "reason") == [("queue_offset: what landed below 1 is removed (retention.history)",)]
