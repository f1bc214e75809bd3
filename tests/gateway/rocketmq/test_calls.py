"""The calls of RocketMQ's interface, as a bare stub makes them, on a real gateway."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from checkback.gateway.health import now_ms
from checkback.gateway.rocketmq import servicer
from checkback.gateway.rocketmq import streams as streams_
from checkback.gateway.rocketmq.codes import DOMAIN_NAME, IPV4, STATE_OF, Code, MessageType
from checkback.gateway.rocketmq.interface import SERVICE, message, parser, serialized
from checkback.gateway.rocketmq.shares import Shares
from checkback.gateway.rocketmq.transaction_ids import Half, TransactionIds, apart
from checkback.messages.limits import BODY_MAX
from checkback.rotated import read_again
from gateway.process import PATIENCE_S, Gateway, rows, table
from gateway.rocketmq.calls import TOKEN, TOPIC, Client, at, msg, settings, signed, with_clients

if TYPE_CHECKING:
    from checkback.gateway.rocketmq.server import RocketMQServer
    from checkback.gateway.service import GatewayService

COMMIT, ROLLBACK = 1, 2
PRODUCERS: dict[str, object] = {"orders": {"token": TOKEN}, "stock": {"token": "fedcba9876543210"}}


def check(place: tuple[int, int], message_id: str, **fields: Any) -> bytes:
    """The POST of `reconcile`."""
    named = {"transaction_id": message_id, "producer_group": TOPIC, "real_topic": TOPIC, "check_times": 1}
    queue_id, queue_offset = place
    message = {"body": None, "tags": None, "keys": None, "properties": None}
    return json.dumps({**named, "queue_id": queue_id, "queue_offset": queue_offset, **message, **fields}).encode()


def test_messages_land_as_over_http(tmp_path: Path) -> None:
    """Several of a request, each with its own entry; the transaction id of a message without one is its message id."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        sent = await Client(channel).send(msg(body=b"1", message_id="A"), msg(body=b"2", message_id="B", tag="t"))
        assert sent.status.code == Code.OK
        assert [(e.status.code, e.message_id, e.transaction_id, e.offset) for e in sent.entries] == [
            (Code.OK, "A", "A", 0),
            (Code.OK, "B", "B", 1),
        ]

    with_clients(tmp_path, act)
    names = ("transaction_id", "producer_group", "committed", "body")
    landed = [tuple(row[name] for name in names) for row in rows(tmp_path, "half")]
    assert landed == [("A", TOPIC, True, b"1"), ("B", TOPIC, True, b"2")]


def test_message_sent_again_is_stored_once(tmp_path: Path) -> None:
    """Clients send thrice under one message id, half messages, too: RocketMQ stores each."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        halves = await asyncio.gather(*(client.half(message_id="A") for _ in range(3)))
        assert {(half.offset, half.transaction_id) for half in halves} == {(0, halves[0].transaction_id)}
        again = [msg(message_id="B", born_timestamp=at(born)) for born in (1, 2)]
        assert [(await client.send(one)).entries[0].offset for one in again] == [1, 1]
        other = await client.send(msg(message_id="B", body=b"other"))
        assert (other.status.code, other.entries[0].offset) == (Code.OK, 2)

    with_clients(tmp_path, act)
    assert [row["transaction_id"] for row in rows(tmp_path, "half")] == ["A", "B", apart("B", "client-1")]


def test_scheduled_message_is_recalled_until_its_time(tmp_path: Path) -> None:
    """Again, too; not by another topic's handle, nor by anything else that looks like one."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)

        async def recall(handle: str, topic: str = TOPIC) -> tuple[Code, str]:
            request = message("RecallMessageRequest", topic=message("Resource", name=topic), recall_handle=handle)
            told = await client.call("RecallMessage", request, "RecallMessageResponse")
            return Code(told.status.code), told.message_id

        async def sent(message_id: str, **system: Any) -> Any:
            return (await client.send(msg(message_id=message_id, **system))).entries[0]

        hour = now_ms() + 3_600_000
        delayed = await sent("A", kind=MessageType.DELAY, delivery_timestamp=at(hour))
        assert await recall(delayed.recall_handle) == (Code.OK, "A")
        assert await recall(delayed.recall_handle) == (Code.OK, "A")
        assert (await recall(delayed.recall_handle, "stock"))[0] == Code.INTERNAL_SERVER_ERROR
        transaction = (await client.half(message_id="B")).transaction_id
        for handle in ("", "bogus", transaction):
            assert (await recall(handle))[0] == Code.INTERNAL_SERVER_ERROR
        assert [(await sent("C")).recall_handle, (await client.half()).recall_handle] == ["", ""]
        past = await sent("D", kind=MessageType.DELAY, delivery_timestamp=at(now_ms() - 1))
        due = TransactionIds(service.table_id).recall_handle(Half(0, past.offset, TOPIC, "D"), now_ms() - 1, TOPIC)
        assert (past.recall_handle, (await recall(due))[0]) == ("", Code.INTERNAL_SERVER_ERROR)

    with_clients(tmp_path, act)
    ops = [(row["queue_offset"], row["transaction_id"], row["state"], row["source"]) for row in rows(tmp_path, "op")]
    assert ops == [(0, "A", "CANCEL", "producer")]


def test_says_whose_transactions_nobody_is_asked_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each group."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        for topic in (TOPIC, "stock", TOPIC):
            await client.half(topic)

    here, elsewhere = "http://127.0.0.1:8900/v1/rocketmq/check", "http://127.0.0.1:1/check"
    with_clients(
        tmp_path,
        act,
        {"orders": {"endpoints": [elsewhere]}, "stock": {"endpoints": [elsewhere, here], "include_body": True}},
    )
    told = [record.getMessage() for record in caplog.records if record.name == "checkback.gateway"]
    assert told == [
        "checks of orders do not come to a gateway: name its /v1/rocketmq/check in producers.orders.endpoints"
    ]


def test_messages_of_two_clients_with_one_id(tmp_path: Path) -> None:
    """Containers have the same network card and process id, of which ids are made: neither's message is lost."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        one, two = Client(channel, "one"), Client(channel, "two")
        async with one.stream(), two.stream() as stream:
            first, second, again = [await each.half(message_id="A") for each in (one, two, two)]
            assert [(half.message_id, half.offset) for half in (first, second, again)] == [("A", 0), ("A", 1), ("A", 1)]
            (_, half) = await landed(tmp_path, 2)
            reply = asyncio.create_task(
                server.bridge.reply(check((0, 1), half["transaction_id"], properties=dict(half["properties"])), {})
            )
            command = await stream.check()
            assert command.message.system_properties.message_id == "A"
            assert (await two.end(command.transaction_id, ROLLBACK)).code == Code.OK
            assert json.loads((await reply)[1])["transaction_id"] == half["transaction_id"]
            assert (await one.end(first.transaction_id, COMMIT)).code == Code.OK

    with_clients(tmp_path, act)
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT", "ROLLBACK"]


def test_messages_of_two_clients_with_one_id_and_the_gateways_restart_between_them(tmp_path: Path) -> None:
    """Also with the same content."""

    async def sent(client_id: str) -> int:
        offsets: list[int] = []

        async def act(_: RocketMQServer, channel: Any, __: GatewayService) -> None:
            offsets.append((await Client(channel, client_id).half(message_id="A")).offset)

        await asyncio.to_thread(with_clients, tmp_path, act)
        return offsets[0]

    async def run() -> list[int]:
        return [await sent(client_id) for client_id in ("one", "two", "one", "two")]

    assert asyncio.run(run()) == [0, 1, 0, 1]


def test_check_without_the_message_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sender would not be known, and another client might be asked in its place."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        async with Client(channel).stream():
            asked = {name: value for name, value in json.loads(check((0, 0), "A")).items() if name != "properties"}
            assert (await server.bridge.reply(json.dumps(asked).encode(), {}))[0] == 422

    with_clients(tmp_path, act)
    assert "set producers.orders.include_body" in caplog.text


def test_calls_whose_request_never_comes_hold_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits behind them is told so, before its own deadline is over."""
    monkeypatch.setattr(servicer, "PLACE_S", 0.01)

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client, many = Client(channel), 2 * server.receiving_max
        begin = channel.stream_unary(f"/{SERVICE}/SendMessage", serialized, parser("SendMessageResponse"))
        stalled = [begin(metadata=client.metadata) for _ in range(many)]
        answers = [asyncio.ensure_future(call) for call in stalled]
        while sum(answer.done() for answer in answers) < many - server.receiving_max:
            await asyncio.sleep(0)
        assert {answer.result().status.code for answer in answers if answer.done()} == {Code.TOO_MANY_REQUESTS}
        assert (await client.send(msg())).status.code == Code.TOO_MANY_REQUESTS
        for call in stalled:
            call.cancel()
        while (await client.send(msg())).status.code != Code.OK:
            pass

    with_clients(tmp_path, act)


def test_command_that_is_too_large_ends_its_stream(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        async with client.stream() as stream:
            await stream.call.write(message("TelemetryCommand", settings=settings(*["t"] * 100_000)))
            with pytest.raises(grpc.aio.AioRpcError, match="a command of over 262144 bytes"):
                await stream.read()

    with_clients(tmp_path, act)


def test_call_that_is_given_up_leaves_the_same_message_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send a message again when their deadline is over: the first call's answer is the second one's, too."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client, begun, go_on = Client(channel), threading.Event(), threading.Event()
        write = service.halves.write

        def slowly(prepared: Any) -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            write(prepared)

        monkeypatch.setattr(service.halves, "write", slowly)
        half = msg(kind=MessageType.TRANSACTION, message_id="A")
        first = asyncio.create_task(client.send(half))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        second = asyncio.create_task(client.send(half))
        await client.route()  # one connection: what comes before is there then
        first.cancel()
        await client.route()
        go_on.set()
        assert (await second).entries[0].offset == 0

    with_clients(tmp_path, act)


async def landed(root: Path, count: int) -> list[dict[str, Any]]:
    """The half messages, once so many are in the table."""
    while len(found := rows(root, "half")) < count:
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
def test_second_end_of_a_transaction(tmp_path: Path, first: int, second: int) -> None:
    """The same again is OK, the other one is told what stands: RocketMQ answers 50001 to both."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        transaction_id = (await client.half()).transaction_id
        ends = [await client.end(transaction_id, resolution) for resolution in (first, first, second)]
        assert [status.code for status in ends] == [Code.OK, Code.OK, Code.PRECONDITION_FAILED]
        assert f"ended with {STATE_OF[first]}" in ends[2].message

    with_clients(tmp_path, act)
    assert [row["state"] for row in rows(tmp_path, "op")] == [STATE_OF[first]]


def test_undecided_end_leaves_the_transaction_open(tmp_path: Path) -> None:
    """RocketMQ refuses a commit after it."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        transaction_id = (await client.half()).transaction_id
        assert [(await client.end(transaction_id, n)).code for n in (0, 7, COMMIT)] == [Code.OK] * 3

    with_clients(tmp_path, act)
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT"]


def test_ends_that_name_no_half_message(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        transaction_id = (await client.half()).transaction_id
        told = [await client.end(*ids) for ids in (("NOSUCH", COMMIT), ("", COMMIT), (transaction_id, COMMIT, "other"))]
        assert [status.code for status in told] == [Code.INVALID_TRANSACTION_ID] * 3
        assert (await client.end(transaction_id, COMMIT, "")).code == Code.ILLEGAL_TOPIC
        for offset in (9, 2**80):
            forged = TransactionIds(service.table_id).of(Half(0, offset, TOPIC, "A"), TOPIC)
            assert (await client.end(forged, COMMIT)).code == Code.INVALID_TRANSACTION_ID

    with_clients(tmp_path, act)
    assert not len(table(tmp_path, "op"))


def test_transaction_is_ended_after_a_restart(tmp_path: Path) -> None:
    """The gateway keeps nothing of it: the id says all."""
    ids: list[str] = []

    async def send(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        ids.append((await Client(channel).half()).transaction_id)

    async def end(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        assert (await Client(channel, "another").end(ids[0], COMMIT)).code == Code.OK

    with_clients(tmp_path, send)
    with_clients(tmp_path, end)
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT"]


def test_other_groups_are_out_of_reach(tmp_path: Path) -> None:
    """To send, to end, to hear of a topic; and nobody without a signature."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        mine = Client(channel, headers=signed("orders", TOKEN))
        theirs = Client(channel, headers=signed("stock", "fedcba9876543210"))
        half = await mine.half()
        assert half.status.code == Code.OK
        assert (await theirs.half()).status.code == Code.FORBIDDEN
        assert (await theirs.end(half.transaction_id, COMMIT)).code == Code.FORBIDDEN
        assert (await theirs.route()).status.code == Code.FORBIDDEN
        assert (await mine.route("unheard-of")).status.code == Code.FORBIDDEN
        assert (await mine.end(half.transaction_id, COMMIT)).code == Code.OK
        for client in (Client(channel), Client(channel, headers=signed("orders", "x"))):
            assert (await client.route()).status.code == Code.UNAUTHORIZED
            assert (await client.send(msg())).status.code == Code.UNAUTHORIZED
            # It sends nothing: a write to a stream that is closed already would be an error.
            assert (await client.telemetry().read()).status.code == Code.UNAUTHORIZED

    with_clients(tmp_path, act, PRODUCERS)


def test_stream_ends_once_its_token_is_removed(tmp_path: Path) -> None:
    """Before a check that was to be asked over it, and also without Settings, which may come later; others stay."""
    file, new = tmp_path / "token", "fedcba9876543210"
    file.write_text(f"{TOKEN} {new}")

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        def to_ask() -> list[streams_.Stream]:
            return sorted(server.streams.to_ask(TOPIC, TOPIC, None), key=lambda one: one.caller.client_id)

        removed, stays = (
            Client(channel, headers=signed(TOPIC, token, client_id=name)) for name, token in (("a", TOKEN), ("b", new))
        )
        silent = removed.telemetry()
        async with removed.stream(TOPIC) as ended, stays.stream(TOPIC):
            while len(server.streams._open) < 3:
                await asyncio.sleep(0.01)
            asked = to_ask()
            file.write_text(new)
            read_again()
            assert [server.streams.turn(stream) for stream in asked] == [False, True]
            server.streams.add(asked[0], [TOPIC])  # by Settings that were under way
            assert to_ask() == asked[1:]
            assert await ended.read() is grpc.aio.EOF
            assert await silent.read() is grpc.aio.EOF
            assert (await stays.call("Heartbeat", message("AnyRequest"))).status.code == Code.OK
            assert len(server.streams._open) == 1

    with_clients(tmp_path, act, {TOPIC: {"token": f"file:{file}"}})


def test_route_is_where_the_client_came_from(tmp_path: Path) -> None:
    """Python's client opens its lost stream again only for an address it does not know: each start renames it."""
    names: list[tuple[int, str]] = []

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        (queue,) = (await Client(channel).route()).message_queues
        (address,) = queue.broker.endpoints.addresses
        assert (queue.topic.name, queue.broker.id, queue.broker.endpoints.scheme) == (TOPIC, 0, IPV4)
        assert (address.host, address.port) == ("127.0.0.1", 8081)
        assert set(queue.accept_message_types) == {1, 2, 3, 4}
        python = Client(channel, headers={"x-mq-client-id": "p", "x-mq-language": "PYTHON"})
        endpoints = (await python.route()).message_queues[0].broker.endpoints
        names.append((endpoints.scheme, endpoints.addresses[0].host))

    for _ in range(3):
        with_clients(tmp_path, act)
    assert sorted(names[:2]) == [(IPV4, "127.0.0.1"), (DOMAIN_NAME, "127.0.0.1")]
    assert names[2] == names[0]


def test_settings_are_answered_in_full(tmp_path: Path) -> None:
    """Java's client does not start without a backoff_policy, Python's sends nothing without a max_body_size."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        heartbeats = [(await client.call("Heartbeat", message("AnyRequest"))).status.code]
        async with client.stream(TOPIC) as stream:
            answered = stream.answered
            heartbeats.append((await client.call("Heartbeat", message("AnyRequest"))).status.code)
        assert heartbeats == [Code.UNRECOGNIZED_CLIENT_TYPE, Code.OK]
        assert answered.status.code == Code.OK
        assert answered.settings.client_type == 1
        assert [topic.name for topic in answered.settings.publishing.topics] == [TOPIC]
        assert answered.settings.publishing.max_body_size == BODY_MAX
        backoff = answered.settings.backoff_policy
        assert (backoff.max_attempts, backoff.exponential_backoff.multiplier) == (3, 2)

    with_clients(tmp_path, act)


def test_check_goes_to_the_sender_and_its_end_is_the_answer(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        sender, other = Client(channel, "sender"), Client(channel, "other")
        async with other.stream(TOPIC), sender.stream() as stream:  # its Settings do not name the topic
            half = await sender.half(message_id="A")
            about = {"tags": "t", "keys": "k1 k2", "properties": {"a": "b"}}
            body = check((0, half.offset), "A", body="AP8=", check_times=2, **about)
            reply = asyncio.create_task(server.bridge.reply(body, {}))
            command = await stream.check()
            asked = command.message
            properties = {pair.key: pair.value for pair in asked.user_properties}
            assert (asked.body, asked.topic.name, asked.system_properties.tag) == (b"\0\xff", TOPIC, "t")
            assert (asked.system_properties.message_id, list(asked.system_properties.keys)) == ("A", ["k1", "k2"])
            assert properties == {"a": "b", "__transactionId__": "A", "TRANSACTION_CHECK_TIMES": "2"}
            assert (await sender.end(command.transaction_id, COMMIT)).code == Code.OK
            status, content, _, _ = await reply
            assert (status, json.loads(content)) == (
                200,
                {"transaction_id": "A", "state": "COMMIT", "queue_id": 0, "queue_offset": 0},
            )

    with_clients(tmp_path, act)
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT"]


def test_check_is_answered_by_an_id_of_its_transaction_only(tmp_path: Path) -> None:
    """Not by one of another group, or of another lake, that names the same place."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        async with client.stream(TOPIC) as stream:
            half = await client.half(message_id="A")
            reply = asyncio.create_task(server.bridge.reply(check((0, half.offset), "A"), {}))
            asked = (await stream.check()).transaction_id
            for group, message_id in (("stock", "A"), (TOPIC, "B")):
                other = TransactionIds(service.table_id).of(Half(0, half.offset, group, message_id), group)
                for resolution in (COMMIT, 0):
                    await client.end(other, resolution, group)
            await client.end(asked, ROLLBACK)
            assert json.loads((await reply)[1])["state"] == "ROLLBACK"

    with_clients(tmp_path, act)


def test_undecided_answer_is_unknown(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        async with client.stream(TOPIC) as stream:
            half = await client.half(message_id="A")
            reply = asyncio.create_task(server.bridge.reply(check((0, half.offset), "A"), {}))
            await client.end((await stream.check()).transaction_id, 0)
            assert json.loads((await reply)[1])["state"] == "UNKNOWN"

    with_clients(tmp_path, act)


def test_second_client_is_asked_if_the_first_is_silent(tmp_path: Path) -> None:
    """Within the time of one check."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        sender, other = Client(channel, "sender"), Client(channel, "other")
        async with other.stream(TOPIC) as second, sender.stream() as first:
            half = await sender.half(message_id="A")
            reply = asyncio.create_task(server.bridge.reply(check((0, half.offset), "A"), {}))
            await first.check()
            await other.end((await second.check()).transaction_id, ROLLBACK)
            assert json.loads((await reply)[1])["state"] == "ROLLBACK"

    with_clients(tmp_path, act)


def test_nobody_connected_is_not_delivered(tmp_path: Path) -> None:
    """And silence is: the client may have been asked."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        half = await client.half(message_id="A")
        body = check((0, half.offset), "A")
        status, _, _, headers = await server.bridge.reply(body, {})
        assert (status, dict(headers or {})) == (404, {"checkback-delivered": "false"})
        async with client.stream(TOPIC) as stream:
            began = time.monotonic()
            status, _, _, headers = await server.bridge.reply(body, {})
            assert (status, headers) == (408, {})
            assert time.monotonic() - began < 2  # check.timeout
            await stream.check()
        await client.call("NotifyClientTermination", message("AnyRequest"))
        assert (await server.bridge.reply(body, {}))[0] == 404

    with_clients(tmp_path, act)


def test_consumers_are_told_that_they_are_not_served(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        assert (await client.call("QueryAssignment", message("AnyRequest"))).status.code == Code.UNSUPPORTED
        receive = channel.unary_stream(f"/{SERVICE}/ReceiveMessage", serialized, parser("AnyResponse"))
        told = [one.status.code async for one in receive(message("AnyRequest"), metadata=client.metadata)]
        assert told == [Code.UNSUPPORTED]
        stream = client.telemetry()
        await stream.call.write(message("TelemetryCommand", settings=settings(TOPIC, client_type=2)))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED

    with_clients(tmp_path, act)


def test_hostile_bytes_harm_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, a message over the limit, streams without end, ids without end. They fill no log."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client = Client(channel)
        raw = channel.unary_unary(f"/{SERVICE}/SendMessage", None, parser("AnyResponse"))
        for content in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f"):
            assert (await raw(content, metadata=client.metadata)).status.code == Code.BAD_REQUEST
        for method in ("Telemetry", "ReceiveMessage"):
            call = channel.stream_stream(f"/{SERVICE}/{method}", None, None)(metadata=client.metadata)
            await call.write(b"\xff" * 6)
            with suppress(grpc.aio.AioRpcError):
                await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.send(msg(body=b"z" * (5 << 20)))
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        long = Client(channel, headers={"x-mq-client-id": "x" * 513})
        assert (await long.route()).status.code == Code.BAD_REQUEST
        opened = [client.stream() for _ in range(streams_.STREAMS_MAX)]
        for stream in opened:
            await stream.__aenter__()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async with client.stream():
                pass
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in opened:
            await stream.__aexit__(None, None, None)
        assert (await Client(channel, "2").send(msg())).status.code == Code.OK

    with_clients(tmp_path, act)
    assert "Traceback" not in caplog.text


def test_refused_while_transactions_are(tmp_path: Path) -> None:
    """What the gateway's own service says is what clients hear."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        service.halves._rejecting = True
        assert (await Client(channel).send(msg(kind=MessageType.TRANSACTION))).status.code == Code.FORBIDDEN

    with_clients(tmp_path, act)


def test_end_of_the_gateway_ends_streams_at_once(tmp_path: Path) -> None:
    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        async with Client(channel).stream(TOPIC) as stream:
            began = time.monotonic()
            await server.stop(PATIENCE_S)
            assert time.monotonic() - began < PATIENCE_S / 3
            assert await stream.read() is grpc.aio.EOF

    with_clients(tmp_path, act)


def test_token_takes_half_of_the_streams_and_of_the_calls(tmp_path: Path) -> None:
    """A stream without Settings ends, as a call without its request does."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        calls = server._calls
        calls._telemetry._room, calls._in_flight, calls._telemetry._timeout_s = Shares(2), Shares(2), 0.1
        orders = Client(channel, headers=signed("orders", TOKEN))
        stock = Client(channel, headers=signed("stock", "fedcba9876543210"))
        assert await stock.telemetry().read() is grpc.aio.EOF
        unsent = channel.stream_unary(f"/{SERVICE}/SendMessage", serialized, parser("SendMessageResponse"))
        async with stock.stream("stock"), orders.stream(TOPIC):
            with pytest.raises(grpc.aio.AioRpcError, match="too many clients"):
                async with stock.stream("stock"):
                    pass
            held = unsent(metadata=stock.metadata)
            while not calls._in_flight._taken:
                await asyncio.sleep(0)
            assert (await stock.route("stock")).status.code == Code.TOO_MANY_REQUESTS
            assert (await orders.route()).status.code == Code.OK
            held.cancel()

    with_clients(tmp_path, act, PRODUCERS)


@pytest.mark.processes
def test_connections_are_limited(tmp_path: Path) -> None:
    """Those that say nothing, too: each is an open file of the gateway."""
    most = 10
    with (
        Gateway(tmp_path, "gateway.rocketmq.plain_port=0", f"gateway.max_connections={most}") as gateway,
        ExitStack() as opened,
    ):
        address = "127.0.0.1", gateway.ports["rocketmq_plain_port"]
        connections = [opened.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(3 * most)]
        greeted = 0
        for connection in connections:
            connection.settimeout(PATIENCE_S)
            with suppress(ConnectionError):
                greeted += bool(connection.recv(1))
        assert greeted <= most


def test_message_sent_again_after_its_recall_is_refused(tmp_path: Path) -> None:
    """It is not published any more."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        client, hour = Client(channel), at(now_ms() + 3_600_000)
        delayed = msg(message_id="A", kind=MessageType.DELAY, delivery_timestamp=hour)
        named = {"topic": message("Resource", name=TOPIC)}
        handle = (await client.send(delayed)).entries[0].recall_handle
        recall = message("RecallMessageRequest", recall_handle=handle, **named)
        assert (await client.call("RecallMessage", recall, "RecallMessageResponse")).status.code == Code.OK
        assert (await client.send(delayed)).status.code == Code.PRECONDITION_FAILED

    with_clients(tmp_path, act)


def test_streams_leave_room_for_other_calls(tmp_path: Path) -> None:
    """gateway.max_connections of them; one that ends makes room."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        server._calls._telemetry._room = Shares(2)
        async with Client(channel, "1").stream():
            async with Client(channel, "2").stream():
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    async with Client(channel, "3").stream():
                        pass
                assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert (await Client(channel, "3").send(msg())).status.code == Code.OK
            while len(server.streams) > 1:
                await asyncio.sleep(0)
            async with Client(channel, "3").stream() as stream:
                assert stream.answered.status.code == Code.OK

    with_clients(tmp_path, act)


def test_request_that_does_not_come_holds_nothing(tmp_path: Path) -> None:
    """Not longer than gateway.timeout; and not at all for who may not call."""

    async def act(server: RocketMQServer, channel: Any, service: GatewayService) -> None:
        server._calls._timeout_s = 0.1
        for client, code in ((Client(channel, headers=signed("orders", TOKEN)), 40800), (Client(channel), 40100)):
            open_ = channel.stream_unary(f"/{SERVICE}/SendMessage", serialized, parser("AnyResponse"))
            call = open_(metadata=client.metadata)
            assert (await call).status.code == code
        call = open_(iter(()), metadata=signed("orders", TOKEN).items())
        assert (await call).status.code == Code.BAD_REQUEST

    with_clients(tmp_path, act, PRODUCERS)
