"""What became of a half message, and what an operator may do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.consumer import dead_letter_requests
from checkback.consumer.dead_letters import TABLE
from checkback.consumer.reconsume import AGAIN
from checkback.errors import CheckbackError
from checkback.operate.tables import FileStore
from checkback.query.answers import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.consumer.reconsume import Judged
    from checkback.query.answers import Answers, AsOf
    from checkback.storage.tables import Tables

#: `half` was restored to an older version: what was resumed may be resumed again
GONE = "GONE"
#: consumer groups whose dead letter a message may be shown to be
_GROUPS = 20


@dataclass(frozen=True)
class Fate:
    """``pending``: its row of `pending`, with ``check_max``; ``scheduled``: it is published later.

    ``resumed_as``, ``resumed_from``: queue_id, queue_offset, transaction_id, producer_group of the half message made of
    it, and of the one it was made of; the former's ``state``, None = pending, GONE = it is not in
    `half` any more. ``acts``: the actions that are allowed.
    """

    pending: Mapping[str, Any] | None = None
    check_max: int | None = None
    scheduled: bool = False
    resumed_as: Mapping[str, Any] | None = None
    resumed_from: Mapping[str, Any] | None = None
    acts: tuple[str, ...] = ()


def fate_of(answers: Answers, then: AsOf, half: Mapping[str, Any]) -> Fate:
    """That of a row of `Answers.transactions`."""
    if not half["taken"]:
        return Fate()
    place, group = (half["queue_id"], half["queue_offset"]), half["producer_group"]
    resumes = records(answers.resumes(half["transaction_id"], then, group=group))
    named = {name: half[name] for name in ("transaction_id", "producer_group")}
    later = [one for one in resumes if (one["queue_id"], one["queue_offset"]) == place]
    earlier = [one for one in resumes if (one["new_queue_id"], one["new_queue_offset"]) == place]
    origin = {name: earlier[-1][name] for name in ("queue_id", "queue_offset")} | named if earlier else None
    if not half["state"]:
        waiting = records(answers.pending(then, group=group, place=place))
        acts = ("commit", "rollback") if waiting and waiting[0]["op_waiting"] is None else ()
        return Fate(waiting[0] if waiting else None, answers.check_max(then), resumed_from=origin, acts=acts)
    if half["state"] == "COMMIT":
        scheduled = bool(half["scheduled_for"]) and bool(answers.scheduled(then, group=group, place=place).num_rows)
        return Fate(scheduled=scheduled, resumed_from=origin, acts=("cancel",) if scheduled else ())
    if half["state"] not in ("DISCARD", "CANCEL"):
        return Fate(resumed_from=origin)
    if not later:
        return Fate(resumed_from=origin, acts=("resume",))
    new = later[-1]["new_queue_id"], later[-1]["new_queue_offset"]
    found = records(answers.transactions(then, place=new))
    state = next((one["state"] for one in found if all(one[name] == half[name] for name in named)), GONE)
    there = {"queue_id": new[0], "queue_offset": new[1], "state": state}
    return Fate(resumed_as=there | named, resumed_from=origin, acts=("resume",) if state == GONE else ())


def dead_letters_of(tables: Tables, half: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The consumer groups that gave a message up now: group, topic, and fate, what became of it (`AGAIN`: nothing).

    Of a group that cannot be read, e.g. as its table is gone, the topic is None, and the fate why it is not known.
    """
    equal = {"transaction_id": [half["transaction_id"]], "half_queue_id": [half["queue_id"]]}
    equal["half_queue_offset"] = [half["queue_offset"]]
    rows = FileStore(tables).rows(TABLE, equal, ["consumer_group"]).to_pylist()
    found: list[dict[str, Any]] = []
    for group in sorted({row["consumer_group"] for row in rows if row["consumer_group"]})[:_GROUPS]:
        try:
            letters = dead_letter_requests.dead_letters(tables, group, None, [half["transaction_id"]])
        except CheckbackError as error:  # the story, and the other groups, are shown all the same
            found.append({"group": group, "topic": None, "fate": f"not known: {error}"})
            continue
        found += [
            {"group": group, "topic": one.buried.queue.topic, "fate": fate_of_letter(one)}
            for one in letters
            if (one.buried.half_queue_id, one.buried.half_queue_offset) == (half["queue_id"], half["queue_offset"])
        ]
    return found


def fate_of_letter(one: Judged) -> str:
    """What became of a dead letter; AGAIN is what `reconsume` would do."""
    return "given up" if one.fate == AGAIN else one.fate
