"""The start after a power cut: on what the cut has left, the real gateway and the real reconcile go on."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError
from checkback.gateway.appender import Appender, half_rows, op_rows
from checkback.gateway.health import now_ms
from checkback.gateway.metrics import Metrics
from checkback.gateway.service import GatewayService
from checkback.messages.half import Half
from checkback.messages.op import Op
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.torn_commits import find_torn
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from crash.books import rows
from crash.process import TOO_SLOW
from power.disk import Disk, Note
from power.record import FATES, GROUP, name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from random import Random

    from pyspark.sql import SparkSession

    from checkback.settings import Settings

_LATER = "later"
#: of reconcile, at most: on a busy machine Spark's workers may come too late
_STARTS = 5


@dataclass
class Promised:
    """What had been acknowledged when the power was cut: by the transaction's number, its offset."""

    half: dict[int, int] = field(default_factory=dict)
    op: dict[int, int] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """A mark of the journal."""
        kind, number, offset = text.split()
        (self.half if kind == "half" else self.op)[int(number)] = int(offset)


@dataclass
class Outcome:
    """What was found after one cut."""

    moment: int
    rebuilt: bool = False
    warned: int = 0
    faults: list[str] = field(default_factory=list)


def moments(notes: Sequence[Note], root: Path, number: int, random: Random) -> Iterator[tuple[int, Promised]]:
    """``number`` times, in order, a moment of the record; the folder is then as a power cut at it has left it."""
    chosen = sorted(random.sample(range(1, len(notes) + 1), number))
    disk, promised = Disk(str(root)), Promised()
    for moment, note in enumerate(notes, 1):
        if note.kind == "!":
            promised.add(note.data.decode())
        else:
            disk.apply(note)
        if chosen and moment == chosen[0]:
            while root.exists():  # threads of Spark may still write to the checkpoint of the round before
                shutil.rmtree(root, ignore_errors=True)
            disk.cut(root, random)
            chosen.pop(0)
            yield moment, promised


def restart(settings: Settings, moment: int, promised: Promised, random: Random, spark: SparkSession | None) -> Outcome:
    """Start the gateway, and `reconcile` where there is Spark, in any order; look whether all is kept.

    `reconcile` may be refused, once, by a line that names `checkback rebuild`, which is then run.
    """
    outcome = Outcome(moment)
    if spark is not None and random.random() < 0.5:
        _reconcile(spark, settings, outcome)
    try:
        _gateway(settings, moment)
    except CheckbackError as error:
        outcome.faults.append(f"the gateway does not start: {error}")
        return outcome
    if spark is not None:
        _reconcile(spark, settings, outcome)
        # Its threads would go on writing to the checkpoint, whose folder is the next cut's, too.
        jvm: Any = spark._jvm
        getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$").__getattr__("MODULE$").stop()
    _readable(settings, outcome, ("half", "op") if spark is None else (*SCHEMAS, "topics/a", "topics/b"))
    _books(settings, promised, outcome, finished=spark is not None)
    return outcome


def _gateway(settings: Settings, moment: int) -> None:
    """Open the door, as the gateway does, then store a transaction that comes now."""
    root = settings.storage.root
    service = GatewayService(settings, Metrics(), print)
    offset = service.cache.next_offset(0)
    half, op = (Appender(root, table, [0]) for table in ("half", "op"))
    epoch = 1 + max(half.epoch(), op.epoch())
    half.claim(epoch)
    op.claim(epoch)
    later = f"{_LATER}-{moment}"
    now = now_ms()
    half.append(half_rows([Half(-1, -1, later, GROUP, "a", 0, None, None, {}, b"later", now, None)], 0, offset, now))
    op.append(op_rows([Op(0, offset, later, GROUP, "COMMIT", now)], [None], now))


def _reconcile(spark: SparkSession, settings: Settings, outcome: Outcome) -> None:
    from checkback.application.queries import reconcile
    from checkback.application.rebuild import rebuild

    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for _ in range(_STARTS):
        try:
            reconcile(spark, settings, available_now=True)
        except CheckbackError as error:
            if TOO_SLOW in str(error):
                continue
            if "checkback rebuild" not in str(error) or "\n" in str(error) or outcome.rebuilt:
                outcome.faults.append(f"reconcile does not go on: {error}")
                return
        else:
            return
        outcome.rebuilt = True
        try:
            rebuild(spark, settings, lambda _: None)
        except CheckbackError as error:
            outcome.faults.append(f"rebuild does not help: {error}")
            return
    outcome.faults.append("reconcile does not go on: this machine is too busy")


def _readable(settings: Settings, outcome: Outcome, names: Iterable[str]) -> None:
    places = [Tables.of(settings.storage).location(table) for table in names]
    found = [find_torn(place) for place in places]
    outcome.faults += [f"{place}: {torn.said}" for place, torn in zip(places, found, strict=True) if torn is not None]
    for place in places:
        if DeltaLog.exists(place):
            DeltaLog("half", place).data_files()


def _books(settings: Settings, promised: Promised, outcome: Outcome, finished: bool) -> None:
    root, faults = settings.storage.root, outcome.faults
    halves: dict[tuple[str, int], int] = Counter(
        (row["transaction_id"], row["queue_offset"]) for row in rows(root, "half", "transaction_id", "queue_offset")
    )
    offsets = Counter(offset for _, offset in halves)
    faults += [f"offset {offset} was given out {times} times" for offset, times in offsets.items() if times > 1]
    for number, offset in promised.half.items():
        if halves.get((name(number), offset)) != 1:
            faults.append(f"{name(number)} was acknowledged at {offset}, and is not there")
    ops = {(row["transaction_id"], row["state"]) for row in rows(root, "op", "transaction_id", "state")}
    for number in promised.op:
        if (name(number), FATES[number % len(FATES)][0]) not in ops:
            faults.append(f"the op of {name(number)} was acknowledged, and is not there")
    if not finished:
        return
    decided = Counter(row["queue_offset"] for row in rows(root, "decisions", "queue_offset"))
    faults += [f"{offset} is decided {times} times" for offset, times in decided.items() if times > 1]
    states = {row["queue_offset"]: row["state"] for row in rows(root, "decisions", "queue_offset", "state")}
    published = Counter(
        row["half_queue_offset"] for topic in "ab" for row in rows(root, f"topics/{topic}", "half_queue_offset")
    )
    faults += [f"{offset} is published {times} times" for offset, times in published.items() if times > 1]
    faults += [
        f"{offset} is {states.get(offset)} and published" for offset in published if states.get(offset) != "COMMIT"
    ]
    faults += [
        f"{offset} is COMMIT and not published"
        for offset, state in states.items()
        if state == "COMMIT" and not published[offset]
    ]
    for number, offset in promised.op.items():
        wanted = FATES[number % len(FATES)][0]
        if states.get(offset) != wanted:
            faults.append(f"{name(number)} is {states.get(offset)}, its acknowledged op says {wanted}")
