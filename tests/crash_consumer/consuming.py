"""A process of the group: it notes the beginning and the end of each call before the consumer learns of its result."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

from checkback.consumer import ConsumeResult, PushConsumer
from crash_consumer.kinds import COMMIT_S, GROUP, LEVELS, MOST, SESSION_S, SUSPEND_S, TOPICS, Kind, fails, pause_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.consumer import MessageExt

#: a line of a process: kind, time (monotonic, ns), topic, queue_id, half_queue_offset, reconsume_times
BEGAN, SUCCEEDED, FAILED, TAKEN_FOR_DEAD, STARTED, ENDED = "b", "s", "f", "d", "started", "ended"


class Journal:
    """Lines that are in the file when `write` returns: what a kill -9 leaves."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, messages: Sequence[MessageExt] = ()) -> None:
        """One line for each message, of the same time; one line if there are none."""
        now = time.monotonic_ns()
        lines = [
            f"{kind} {now} {each.topic} {each.queue_id} {each.half_queue_offset} {each.reconsume_times}\n"
            for each in messages
        ]
        os.write(self._file, "".join(lines or [f"{kind} {now}\n"]).encode())


class _Deaths(logging.Handler):
    """Notes when the group has taken this member for dead."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if "taken this one for dead" in record.msg:
            self._journal.write(TAKEN_FOR_DEAD)


class Listener:
    """Succeeds or fails by the rules of `kinds`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __call__(self, argument: Any, connection: Any = None) -> ConsumeResult | None:
        """``argument``: a message, or a list of them."""
        messages: list[MessageExt] = argument if isinstance(argument, list) else [argument]
        self._journal.write(BEGAN, messages)
        if connection is not None:
            apply(connection, messages)
        pause = max(pause_s(each.half_queue_offset) for each in messages)
        if pause:
            time.sleep(pause)
        failed = [each for each in messages if fails(each.half_queue_offset, each.reconsume_times)]
        self._journal.write(FAILED if failed else SUCCEEDED, messages)
        if not failed:
            return ConsumeResult.SUCCESS
        if failed[0].half_queue_offset % 3 == 0:
            raise ValueError("it fails by rule")
        return ConsumeResult.RECONSUME_LATER if failed[0].half_queue_offset % 3 == 1 else None


def apply(connection: Any, messages: Sequence[MessageExt]) -> None:
    """The effect, in the transaction that keeps the position."""
    from sqlalchemy import text

    rows = [{"topic": each.topic, "offset": each.half_queue_offset} for each in messages]
    connection.execute(text("INSERT INTO applied VALUES (:topic, :offset)"), rows)


def positions(database: str) -> Any:
    """Positions in a SQLite database beside the effects."""
    from sqlalchemy import create_engine, text

    from checkback.consumer import SqlPositions

    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(text("PRAGMA journal_mode=WAL"))
        connection.execute(text('CREATE TABLE IF NOT EXISTS applied (topic TEXT, "offset" INTEGER)'))
    return SqlPositions(engine)


def consume(root: str, folder: str, name: str, member: str, kind: Kind) -> None:
    """Consume until SIGTERM. ``folder``: of this round's files, those of this process begin with its ``name``."""
    said = os.open(f"{folder}/{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.register(signal.SIGUSR1)
    stopping = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.append(True)

    signal.signal(signal.SIGTERM, stop)
    journal = Journal(f"{folder}/{name}.journal")
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("checkback.consumer").addHandler(_Deaths(journal))
    more = {"positions": positions(f"{folder}/applied.db")} if kind.exactly_once else {}
    if kind.batch is None:
        more["listener"] = Listener(journal)
    else:
        more |= {"listener_batch": Listener(journal), "max_batch_size": kind.batch}
    consumer = PushConsumer(
        GROUP,
        root,
        threads=kind.threads,
        orderly=kind.orderly,
        max_reconsume_times=MOST,
        retry_levels=[timedelta(seconds=level) for level in LEVELS],
        suspend=timedelta(seconds=SUSPEND_S),
        session_timeout=timedelta(seconds=SESSION_S),
        commit_interval=timedelta(seconds=COMMIT_S),
        member=member,
        **more,
    )
    for topic in TOPICS:
        consumer.subscribe(topic, kind.tags if topic == TOPICS[1] else "*")
    with consumer:
        journal.write(STARTED)
        while not stopping:
            time.sleep(0.05)
    journal.write(ENDED)
