"""One token's requests leave room for the others', and do not go before them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from checkback.gateway.journal import commit_loop
from checkback.gateway.journal.commit_loop import CommitSize, drive, gather, to_table
from checkback.gateway.journal.group_commit import COMMIT_ROWS, GroupCommit
from checkback.messages.limits import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from checkback.gateway.journal.record import Record

_LOUD, _QUIET = frozenset({"loud"}), frozenset({"quiet"})


class _Target:
    """Commits when it may, and keeps what each commit had."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.commits: list[list[str]] = []

    def prepare(self, batch: Sequence[str]) -> list[str]:
        return list(batch)

    def write(self, prepared: object) -> None:
        self.may.wait(60)
        assert isinstance(prepared, list)
        self.commits.append(prepared)

    def records(self, prepared: object) -> list[Record]:  # noqa: ARG002 - as CommitTarget has it
        raise AssertionError("there is no journal")

    def settle(self, batch: Sequence[str], prepared: object) -> None:
        """Nothing to remember."""

    def failed(self, batch: Sequence[str], error: Exception) -> None:  # noqa: ARG002 - as CommitTarget has it
        raise error


def test_one_token_has_half_of_the_room_and_no_more_than_its_turn() -> None:
    async def run() -> list[list[str]]:
        target = _Target()
        commits: GroupCommit[str] = GroupCommit(target, max_waiting=30 * BATCH_MAX)
        loud = 0
        while commits.refusal(BATCH_MAX, 1, _LOUD) is None:
            commits.submit(["loud"] * BATCH_MAX, 1, _LOUD)
            loud += 1
        assert loud == 15
        assert commits.refusal(1, 1, _QUIET) is None
        commits.submit(["quiet"], 1, _QUIET)
        running = asyncio.create_task(drive("test", [commits], to_table))
        target.may.set()
        commits.close()
        await running
        assert (commits.waiting, commits.waiting_bytes) == (0, 0)
        return target.commits

    first, *others = asyncio.run(run())
    assert "quiet" in first
    assert len(first) <= COMMIT_ROWS + BATCH_MAX
    assert sum(map(len, others)) + len(first) == 15 * BATCH_MAX + 1


def test_without_tokens_there_is_one_room_for_all() -> None:
    async def run() -> None:
        commits: GroupCommit[str] = GroupCommit(_Target(), max_waiting=4)
        for _ in range(4):
            assert commits.refusal(1, 1, None) is None
            commits.submit(["one"], 1, None)
        assert commits.refusal(1, 1, None) is not None

    asyncio.run(run())


def test_a_commit_waits_for_as_many_requests_as_came_together_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(size: CommitSize, requests: int) -> int:
        commits, came = GroupCommit[str](_Target(), max_waiting=100), asyncio.Event()
        commits.came = came

        async def client(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            commits.submit(["one"], 1, None)

        clients = [asyncio.create_task(client(number)) for number in range(requests)]
        await came.wait()
        await gather([commits], came, size, 60.0)
        found = commits.requests
        await asyncio.gather(*clients)
        return found

    size = CommitSize()
    monkeypatch.setattr(commit_loop, "GATHERING_S", 60.0)
    assert asyncio.run(run(size, 1)) == 1
    size.found(1, 3, 0.0, 1.0)
    assert asyncio.run(run(size, 3)) == 3
    monkeypatch.setattr(commit_loop, "GATHERING_S", 0.0)
    assert asyncio.run(run(size, 2)) <= 2
    assert size.wanted() <= 2


def test_a_commit_does_not_wait_for_a_client_that_takes_longer() -> None:
    """One that pauses between its requests would make all others pause with it."""
    size = CommitSize()
    size.found(1, 2, 0.0005, 0.0003)
    assert size.wanted() == 2
    size.found(1, 2, 0.0015, 0.0003)
    assert size.wanted() == 1


def test_a_commit_looks_for_more_clients_now_and_then() -> None:
    size = CommitSize()
    wanted = [size.wanted() for _ in range(1000)]
    assert set(wanted) == {1, COMMIT_ROWS}
    assert 10 < wanted.count(COMMIT_ROWS) < 50
