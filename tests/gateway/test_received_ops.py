"""Ops of one request that stay together, and duplicates and restarts: with a journal and without, all is the same."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from checkback.gateway.http.api import message_routes
from checkback.gateway.received_ops import ReceivedOps
from gateway.process import half, op, rows
from gateway.test_journal_service import run, started
from support.examples import DEAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.service import GatewayService

BORN = {"born_timestamp": 1_795_227_064_579}
NAMES = [f"t-{number}" for number in range(6)]
#: a request: its path and messages; those of a step are sent at once
HALVES = st.lists(
    st.builds(lambda name, tags: half(name, tags=tags, **BORN), st.sampled_from(NAMES), st.sampled_from("aaab")),
    min_size=1,
    max_size=4,
)
OPS = st.lists(
    st.builds(
        lambda offset, other, state: op(offset, NAMES[(offset + other) % 6], state) | BORN,
        st.integers(0, 6),
        st.sampled_from([0, 0, 0, 0, 0, 1]),
        st.sampled_from(["COMMIT"] * 4 + ["ROLLBACK"]),
    ),
    min_size=1,
    max_size=5,
)
#: the ops of the half messages at first offsets, each once: what a bulk producer sends
WHOLE = st.permutations(range(3)).map(lambda offsets: [op(offset, NAMES[offset]) | BORN for offset in offsets])
REQUEST = st.tuples(st.just("halves"), HALVES) | st.tuples(st.just("ops"), OPS) | st.tuples(st.just("ops"), WHOLE)
#: steps until a restart, and whether the gateway is killed then
RUNS = st.lists(
    st.tuples(st.lists(st.lists(REQUEST, min_size=1, max_size=3), min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=3,
)
FIRST = ("halves", [half(name, tags="a", **BORN) for name in NAMES])


async def answered(service: GatewayService, requests: list[tuple[str, list[dict[str, Any]]]]) -> list[Any]:
    """The answers to requests that are sent at once."""
    routes = message_routes(service)
    waiting = []
    for path, messages in requests:
        body = orjson.dumps({"messages" if path == "halves" else "ops": messages})
        waiting.append(routes[f"/v1/{path}"](body, None, []))
    replies = await asyncio.gather(*waiting)
    assert [status for status, *_ in replies] == [200] * len(requests)
    return [orjson.loads(body)["results"] for _, body, *_ in replies]


@pytest.mark.slow
@settings(DEAR, phases=[Phase.generate])
@given(RUNS)
def test_same_with_a_journal_whatever_is_sent_again_and_whenever_it_restarts(runs: Any) -> None:
    found: dict[str, list[Any]] = {"journal": [], "table": []}
    tables: dict[str, Any] = {}
    for acknowledge, answers in found.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for number, (steps, kill) in enumerate(runs):

                async def act(service: GatewayService) -> None:
                    for requests in [[FIRST]] * (not number) + steps:  # noqa: B023 - called at once
                        answers.extend(await answered(service, requests))  # noqa: B023

                service = started(root, acknowledge=acknowledge, linger="0s", flush="1h" if kill else "1ms")
                assert run(service, act, kill and acknowledge == "journal") is None
            assert run(started(root, acknowledge=acknowledge), answered_nothing) is None
            tables[acknowledge] = [
                [{name: value for name, value in row.items() if name != "store_timestamp"} for row in rows(root, name)]
                for name in ("half", "op")
            ]
    assert found["journal"] == found["table"]
    assert tables["journal"][0] == tables["table"][0]
    assert by_place(tables["journal"][1]) == by_place(tables["table"][1])
    ended = [row["queue_offset"] for row in tables["journal"][1]]
    assert len(set(ended)) == len(ended)


async def answered_nothing(_: GatewayService) -> None:
    pass


def by_place(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(ops, key=lambda row: (row["queue_id"], row["queue_offset"]))


def blocks_of(service: GatewayService) -> list[int]:
    """Sizes of the blocks that will be committed from now on."""
    sizes: list[int] = []
    settle = service.ops.settle

    def settled(batch: Sequence[Any], prepared: object) -> None:
        sizes.extend(len(block) for block in batch if isinstance(block, ReceivedOps))
        settle(batch, prepared)

    service.ops.settle = settled  # type: ignore[method-assign]
    return sizes


def test_ops_of_recent_half_messages_stay_together(tmp_path: Path) -> None:
    """In any order, also those that a start has read; an op that is no first one makes single ops of its request."""
    whole = [op(offset, name) for offset, name in enumerate(NAMES)]

    async def act(service: GatewayService) -> None:
        sizes = blocks_of(service)
        await answered(service, [FIRST])
        await answered(service, [("ops", whole[:2])])
        await answered(service, [("ops", [whole[3], whole[2]]), ("ops", [whole[2], whole[4]])])
        assert sizes == [2, 2]

    async def more(service: GatewayService) -> None:
        sizes = blocks_of(service)
        assert [one["repeated"] for one in (await answered(service, [("ops", whole[:5])]))[0]] == [True] * 5
        await answered(service, [("ops", whole[5:])])
        assert sizes == [1]

    assert run(started(tmp_path), act) is None
    assert run(started(tmp_path), more) is None
    assert [row["queue_offset"] for row in by_place(rows(tmp_path, "op"))] == list(range(6))


def test_half_message_is_remembered_until_its_op_is_in_the_table(tmp_path: Path) -> None:
    """Although gateway.dedup_window is over: a look-up would not find the op, which is in the journal only."""

    async def send(service: GatewayService) -> None:
        await answered(service, [FIRST])

    async def act(service: GatewayService) -> None:
        sizes = blocks_of(service)
        service._dedup_window_ms = -(1 << 40)
        waiting = asyncio.ensure_future(answered(service, [("ops", [op(2, NAMES[2]), op(3, NAMES[3])])]))
        while not service.ops._in_flight:
            await asyncio.sleep(0)
        service.forget()  # on its way
        await waiting
        service.forget()  # in the journal
        assert len(service.cache) == 4
        other = (await answered(service, [("ops", [op(2, NAMES[2], "ROLLBACK")])]))[0]
        assert ([one["code"] for one in other], sizes) == (["contradiction"], [2])

    assert run(started(tmp_path), send) is None
    assert run(started(tmp_path, flush=timedelta(hours=1)), act) is None
    assert [row["queue_offset"] for row in rows(tmp_path, "op")] == [2, 3]


def test_ops_of_older_half_messages_keep_none_in_the_cache(tmp_path: Path) -> None:
    """Or it could grow beyond gateway.dedup_max: from the half message of such an op on, all would stay."""

    async def send(service: GatewayService) -> None:
        await answered(service, [FIRST])

    async def act(service: GatewayService) -> None:
        sizes = blocks_of(service)
        assert service.journal is not None
        for offset, kept in ((2, {}), (3, {0: 3})):
            ((ended,),) = await answered(service, [("ops", [op(offset, NAMES[offset])])])
            assert (ended["status"], ended["repeated"]) == (200, False)
            assert service.journal.unflushed_offsets() == kept
        assert sizes == [1]

    assert run(started(tmp_path), send) is None
    assert run(started(tmp_path, flush=timedelta(hours=1), dedup_max=6), act) is None
