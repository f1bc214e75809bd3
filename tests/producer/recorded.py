"""The bundled trace of a real broker as behaviours that a producer can play: what it does, when, what it answers."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.messages.half import IMMUNITY_PROPERTY
from checkback.producer import Message
from examples.producer import read_script, said
from support.expected import lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMIT, ROLLBACK, UNKNOWN, EXCEPTION = "COMMIT", "ROLLBACK", "UNKNOWN", "EXCEPTION"
DECISIVE = (COMMIT, ROLLBACK)
#: nobody answers this group's checks
GONE = "g_gone"
#: seconds within which a recorded op was the local transaction's own end, not one sent later by hand
_AT_ONCE_S = 0.5
_SLOW_LOCAL, _LOCAL_EXCEPTION = "slow_local", "local_exception"
#: whose producers sent their late op because a check had come
_AFTER_CHECK = ("late_commit", "late_rollback", "dup_check")
#: first of all an op that is not obeyed: another group's, or at an offset of another transaction
_WRONG_GROUP, _WRONG_OFFSET = "commit_wrong_group", "commit_wrong_offset"


@dataclass(frozen=True)
class Behaviour:
    """What one producer does with one transaction; times in seconds, of the play.

    ``local``: how its local transaction ends (EXCEPTION: it raises), ``local_s`` after it began. ``later``: the ops
    that it sends by hand, (state, seconds after the half message), or after its first check if ``awaits_check``.
    ``answers``: what it says to the 1st, 2nd ... check, see demo.producer.said. ``immunity_s``: None = the timeout.
    ``misdirected``: its local transaction sends an op that must not be obeyed, "group" or "offset".
    """

    label: str
    script: str
    group: str
    begins_s: float
    message: Message
    local: str
    local_s: float
    later: tuple[tuple[str, float], ...]
    answers: tuple[str, ...]
    awaits_check: bool
    misdirected: str | None

    @property
    def own(self) -> tuple[str, ...]:
        """The ops that it gives of its own accord, in order."""
        return (*((self.local,) if self.local in DECISIVE else ()), *(state for state, _ in self.later))

    @property
    def ends_at_once(self) -> bool:
        """Does its first op come before anybody can ask?"""
        return self.local in DECISIVE and self.local_s == 0

    def says(self, check_times: int, instance: str) -> str:
        """What ``instance`` (A or B) says to the check of that number: COMMIT, ROLLBACK, UNKNOWN or EXCEPTION."""
        return said(self.answers, check_times, instance)

    def may_end(self, check_max: int) -> frozenset[str]:
        """The decisions that its script allows, when each of its checks is answered in time.

        Its first op at once decides. Later ones and the first decisive answer of either instance race.
        """
        if self.ends_at_once:
            return frozenset(self.own[:1])
        numbers = () if self.group == GONE else range(1, check_max + 1)
        told = next((states for n in numbers if (states := self._decisive(n))), frozenset[str]())
        return frozenset(self.own[:1]) | told or frozenset({"DISCARD"})

    def _decisive(self, check_times: int) -> frozenset[str]:
        return frozenset({self.says(check_times, instance) for instance in "AB"} & set(DECISIVE))


def behaviours(folder: Path, scale: float, copies: int) -> list[Behaviour]:
    """Each recorded behaviour ``copies`` times, its times multiplied by ``scale``; immunities in whole seconds.

    A transaction whose number is odd leaves its name to the producer, and has its immunity in a property.
    """
    scripts = {name: entry["script"] for name, entry in _entries(folder).items()}
    answers = read_script(folder / "check_answers.json")
    ops: dict[int, list[tuple[str, int]]] = {}
    for op in sorted(lines(folder / "op.jsonl"), key=lambda op: op["born_timestamp"]):
        ops.setdefault(op["half_offset"], []).append((op["state"], op["born_timestamp"]))
    halves = lines(folder / "half.jsonl")
    first = min(half["born_timestamp"] for half in halves)
    found = []
    for number, half in enumerate(half for _ in range(copies) for half in halves):
        script, born = scripts[half["transaction_id"]], half["born_timestamp"]
        own = [(state, (at - born) / 1000) for state, at in ops.get(half["queue_offset"], [])]
        own = [(state, 0.0 if after < _AT_ONCE_S else after * scale) for state, after in own]
        slow = script.startswith(_SLOW_LOCAL)
        local, local_s = own.pop(0) if own and (slow or own[0][1] == 0) else (UNKNOWN, 0.0)
        awaits_check = script.startswith(_AFTER_CHECK)
        found.append(
            Behaviour(
                label=f"{half['keys']} #{number}",
                script=script,
                group=half["producer_group"],
                begins_s=(born - first) / 1000 * scale,
                message=_message(half, number, scale),
                local=EXCEPTION if script.startswith(_LOCAL_EXCEPTION) else local,
                local_s=local_s,
                later=tuple((state, scale * script.startswith("dup_check") if awaits_check else s) for state, s in own),
                answers=tuple(answers[half["transaction_id"]]),
                awaits_check=awaits_check,
                misdirected="group" if script.startswith(_WRONG_GROUP) else _offset(script),
            )
        )
    return found


def immunity_s(message: Message) -> int | None:
    """The check immunity of a message, wherever it says it."""
    if message.check_immunity is not None:
        return round(message.check_immunity.total_seconds())
    text = message.properties.get(IMMUNITY_PROPERTY)
    return None if text is None else int(text)


def _offset(script: str) -> str | None:
    return "offset" if script.startswith(_WRONG_OFFSET) else None


def _message(half: Mapping[str, object], number: int, scale: float) -> Message:
    properties = dict(half["properties"])  # type: ignore[call-overload]  # a JSON object
    immunity = properties.pop(IMMUNITY_PROPERTY, None)
    scaled = None if immunity is None else max(1, round(int(immunity) * scale))
    odd = number % 2 == 1
    if odd and scaled is not None:
        properties[IMMUNITY_PROPERTY] = str(scaled)
    return Message(
        topic=str(half["real_topic"]),
        body=base64.b64decode(str(half["body"])) + b" #%d \x00\xff" % number,
        tags=str(half["tags"]),
        keys=f"{half['keys']} #{number}",
        properties=properties,
        check_immunity=None if odd or scaled is None else timedelta(seconds=scaled),
        real_queue_id=int(str(half["real_queue_id"])),
        transaction_id="" if odd else f"{half['transaction_id']}-{number}",
    )


def _entries(folder: Path) -> dict[str, dict[str, str]]:
    entries: dict[str, dict[str, str]] = json.loads((folder / "check_answers.json").read_text("utf-8"))
    return entries
