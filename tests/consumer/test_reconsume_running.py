"""`checkback group reconsume`: what it adds is consumed, by members that run and by those that start later."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine

from checkback.cli import main
from checkback.consumer import PushConsumer, SqlPositions
from checkback.consumer.dead_letter_requests import Request, act, look
from checkback.consumer.group.group_table import GroupTable
from consumer.heard import Heard, until
from consumer.test_push_consumer import dead_letters, start

if TYPE_CHECKING:
    from checkback.consumer.group.group_state import MessageQueue, QueueState
    from checkback.consumer.sql_positions import KeptState
    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_clocks_of_operators_differ(lake: Published, running: list[PushConsumer], tmp_path: Path) -> None:
    """What is asked for by the machine that is behind is consumed, too; by the one that is ahead, at once."""
    positions = SqlPositions(create_engine(f"sqlite:///{tmp_path / 'p.db'}"))
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard({1: 1, 2: 1})
    start(lake, running, heard, max_reconsume_times=0, positions=positions)
    heard.wait_for(0, 1, 2)
    until(lambda: len(dead_letters(lake)) == 2)
    for number, now in ((1, round(time.time() * 1000) + 86_400_000), (2, 1_700_000_000_000)):
        request = Request.of("g", None, [f"tx-{number}"], False, "alice", "mended")
        assert len(act(lake.tables, request, look(lake.tables, request), now)) == 1
        heard.wait(lambda heard, number=number: heard.times[number] == 2)  # type: ignore[misc]
    assert heard.times == Counter([0, 1, 1, 2, 2])


def resume(lake: Published) -> None:
    arguments = ["group", "reconsume", "g", "--all", "--actor", "alice", "--reason", "mended", "--yes"]
    assert main([*arguments, "--set", f"storage.root={lake.tables.root}"]) == 0


@pytest.mark.parametrize("running_meanwhile", [False, True])
@pytest.mark.parametrize("kind", ["concurrent", "orderly", "sql"])
def test_a_dead_letter_is_consumed_again_once(
    lake: Published, running: list[PushConsumer], tmp_path: Path, kind: str, running_meanwhile: bool
) -> None:
    options: dict[str, Any] = {
        "max_reconsume_times": 0,
        "orderly": kind == "orderly",
        "suspend": timedelta(seconds=0.01),
    }
    if kind == "sql":
        options["positions"] = SqlPositions(create_engine(f"sqlite:///{tmp_path / 'p.db'}"))
    lake.publish({"pay": [lake.messages(3)]})
    first = Heard({1: 1})
    start(lake, running, first, **options)
    first.wait_for(0, 1, 2)
    until(lambda: dead_letters(lake))
    if not running_meanwhile:
        running.pop().close()
    resume(lake)
    heard = first
    if not running_meanwhile:
        heard = Heard()
        start(lake, running, heard, **options)
    heard.wait(lambda heard: heard.messages and heard.messages[-1].reconsume_times == 1)
    lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(3)
    running.pop().close()
    again = Heard()
    lake.publish({"pay": [lake.messages(1)]})
    start(lake, running, again, **options)
    again.wait_for(4)
    assert again.offsets == [4]
    total = heard.times if running_meanwhile else first.times + heard.times
    assert total == Counter([0, 1, 1, 2, 3])


def test_resumed_while_the_position_is_loaded(lake: Published, running: list[PushConsumer], tmp_path: Path) -> None:
    """The member beats after the operator has added the retry, and before it has the position."""
    positions = SqlPositions(create_engine(f"sqlite:///{tmp_path / 'p.db'}"))
    lake.publish({"pay": [lake.messages(3)]})
    first = Heard({1: 1})
    start(lake, running, first, max_reconsume_times=0, positions=positions)
    first.wait_for(0, 1, 2)
    until(lambda: dead_letters(lake))
    running.pop().close()
    loads = []

    class Slow(SqlPositions):
        def load(self, group: str, queue: MessageQueue, start: QueueState, table_id: str) -> KeptState:
            kept = super().load(group, queue, start, table_id)
            if queue.queue_id == 0:
                loads.append(kept)
                if len(loads) == 1:
                    resume(lake)
                    beats = _beats(lake)
                    until(lambda: _beats(lake) > beats)
            return kept

    again = Heard()
    start(lake, running, again, positions=Slow(positions.engine), session_timeout=timedelta(seconds=1.0))
    again.wait_for(1)
    assert not loads[0].state.retries
    lake.publish({"pay": [lake.messages(1)]})
    again.wait_for(3)
    assert again.offsets == [1, 3]


def _beats(lake: Published) -> list[int]:
    """The heartbeats of the group's only member."""
    return [each.heartbeat for each in GroupTable(lake.tables, "g").state.members.values()]
