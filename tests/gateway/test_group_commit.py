"""One token's requests leave room for the others', and do not go before them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from checkback.gateway.journal.group_commit import COMMIT_ROWS, GroupCommit, drive, to_table
from checkback.messages.limits import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

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
