"""Arrow over HTTP: each message is answered and stored as JSON's is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings

from checkback.gateway.problems import Problem
from checkback.gateway.requests import json_decoder
from checkback.gateway.requests.arrow_decoder import HalfColumns, halves_of_stream
from checkback.gateway.requests.half_blocks import Placed
from gateway.arrow import ARROW, HALVES, OPS, SHAPE, columns, stream
from gateway.process import PATIENCE_S, Gateway, half, op, rows
from gateway.services import with_service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import requests

    from checkback.gateway.service import GatewayService

pytestmark = pytest.mark.slow
LIMITS = ("gateway.max_body=100000", "gateway.gather=0s")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("tables"), *LIMITS) as running:
        yield running


@pytest.fixture(scope="module", params=["table", "journal"])
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways that are sent the same, one as Arrow, one as JSON; at the end their tables are the same."""
    roots = [tmp_path_factory.mktemp("tables") for _ in range(2)]
    settings = ("gateway.gather=0s", f"gateway.acknowledge={request.param}")
    with Gateway(roots[0], *settings) as arrow, Gateway(roots[1], *settings) as json:
        yield arrow, json
    for name in ("half", "op"):
        tables = [rows(root, name) for root in roots]
        for row in (row for table in tables for row in table):
            del row["store_timestamp"]
        assert tables[0] == tables[1]
        assert tables[0]


def post(gateway: Gateway, path: str, body: bytes, kind: str = ARROW) -> requests.Response:
    headers = {"Content-Type": kind}
    return gateway.session.post(f"{gateway.url}{path}", data=body, headers=headers, timeout=PATIENCE_S)


def answers(response: requests.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == ARROW
    with pa.ipc.open_stream(response.content) as stream:
        found: list[dict[str, Any]] = stream.read_all().to_pylist()
    return found


def as_rows(results: list[dict[str, Any]], messages: list[dict[str, Any]], names: Mapping[str, Any]) -> Any:
    """JSON's results as Arrow's answer has them."""
    found = []
    for result, message in zip(results, messages, strict=True):
        row = {name: result.get(name) for name in names}
        found.append(row | {"transaction_id": message.get("transaction_id")})
        if "first_state" in result:
            found[-1]["state"] = result["first_state"]
    return found


# No shrinking: the gateways keep what they were sent before.
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(HALVES, SHAPE, OPS)
def test_same_as_json(
    both: tuple[Gateway, Gateway], messages: list[dict[str, Any]], shape: Any, ops: list[dict[str, Any]]
) -> None:
    """Half messages, messages without a transaction, ops: the answers, also to those that were sent before."""
    which, size, compression = shape
    for fields in messages:  # a time that both gateways would make themselves
        fields["born_timestamp"] = fields.get("born_timestamp") or 1_795_227_064_579
    for fields in ops:
        fields["born_timestamp"] = fields.get("born_timestamp") or 1_795_227_064_960
    for path, member, said in (
        ("halves", "messages", messages),
        ("messages", "messages", messages),
        ("ops", "ops", ops),
    ):
        sent = [{name: value for name, value in fields.items() if value is not None} for fields in said]
        taken = answers(post(both[0], f"/v1/{path}", stream(columns(sent, which), size, compression)))
        results = both[1].post(f"/v1/{path}", {member: sent}).json()["results"]
        assert taken == as_rows(results, sent, taken[0])


def test_answer_of_half_messages(gateway: Gateway) -> None:
    sent = [half("one"), half("one"), half("one", tags="x"), half("", producer_group="orders"), half("two")]
    first, again, other, unfit, last = answers(post(gateway, "/v1/halves", stream(columns(sent))))
    assert first == again
    offset = first["queue_offset"]
    nothing = {"code": None, "detail": None}
    assert first == {"status": 200, "transaction_id": "one", "queue_id": 0, "queue_offset": offset, **nothing}
    assert (other["status"], other["code"], other["queue_offset"]) == (409, "contradiction", offset)
    assert (unfit["status"], unfit["code"], unfit["queue_offset"]) == (422, "unfit", None)
    assert unfit["detail"] == "transaction_id: empty"
    assert (last["status"], last["queue_offset"]) == (200, offset + 1)
    assert gateway.post("/v1/half", half("two")).json()["queue_offset"] == offset + 1


def test_answer_of_ops(gateway: Gateway) -> None:
    offset = gateway.post("/v1/half", half("ends")).json()["queue_offset"]
    sent = [op(offset, "ends"), op(offset, "ends"), op(offset, "ends", "ROLLBACK"), op(10**9, "ends")]
    taken = answers(post(gateway, "/v1/ops", stream(columns(sent))))
    assert [(one["status"], one["code"], one["state"], one["repeated"]) for one in taken] == [
        (200, None, "COMMIT", False),
        (200, None, "COMMIT", True),
        (409, "contradiction", "COMMIT", None),
        (404, "unknown_offset", None, None),
    ]


def test_refusals_are_problems(gateway: Gateway) -> None:
    body = stream(columns([half("refused")]))
    for path, sent, status, code in (
        ("/v1/half", body, 415, "unsupported_media_type"),
        ("/v1/op", body, 415, "unsupported_media_type"),
        ("/v1/halves", b"", 400, "malformed"),
        ("/v1/halves", b"{}", 400, "malformed"),
        ("/v1/ops", body[:100], 400, "malformed"),
        ("/v1/halves", body + body, 400, "malformed"),
        ("/v1/halves", bytes(200_000), 413, "body_too_large"),
        ("/v1/halves", stream({"body": pa.array([bytes(200_000)])}, compression="zstd"), 413, "body_too_large"),
        ("/v1/messages", stream({"tags": pa.array([1])}), 422, "unfit"),
    ):
        answer = post(gateway, path, sent)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert post(gateway, "/v1/halves", body, "Application/vnd.apache.arrow.stream; x=y").status_code == 200


def test_group_of_another_token_is_refused_by_row(tmp_path: Any) -> None:
    environ = {"CHECKBACK__PRODUCERS__orders__TOKEN": "env:T_ORDERS", "T_ORDERS": "orders-token-0123456789"}
    with Gateway(tmp_path, *LIMITS, environ=environ) as running:
        body = stream(columns([half("mine"), half("theirs", producer_group="stock")]))
        assert post(running, "/v1/halves", body).status_code == 401
        running.session.headers["Authorization"] = f"Bearer {environ['T_ORDERS']}"
        taken = answers(post(running, "/v1/halves", body))
        assert [(one["status"], one["code"]) for one in taken] == [(200, None), (403, "unknown_group")]


def test_description_has_the_media_type(gateway: Gateway) -> None:
    paths = gateway.get("/openapi.json").json()["paths"]
    for path, column in (("halves", "delay_ms"), ("messages", "body"), ("ops", "half_offset")):
        operation = paths[f"/v1/{path}"]["post"]
        assert column in operation["requestBody"]["content"][ARROW]["schema"]["description"]
        assert set(operation["requestBody"]["content"]) == {ARROW, "application/json"}
        assert set(operation["responses"]["200"]["content"]) == {ARROW, "application/json"}
    assert set(paths["/v1/half"]["post"]["requestBody"]["content"]) == {"application/json"}


def test_what_only_the_journal_has_lands_after_a_kill(tmp_path: Path) -> None:
    """Streams and single messages at their offsets; sent again in either form they keep them."""
    names = [f"t-{number}" for number in range(6)]
    body = stream(columns([half(name, properties={"a": "1", "b": name}) for name in names[:4]]))
    single = [half(name, properties={"a": "1", "b": name}) for name in names]
    with Gateway(tmp_path, "gateway.flush=1h") as running:
        first = answers(post(running, "/v1/halves", body))
        second = running.post("/v1/halves", {"messages": single}).json()["results"]
        running.kill()
    assert [one["queue_offset"] for one in second] == list(range(6))
    with Gateway(tmp_path) as running:
        assert [row["transaction_id"] for row in rows(tmp_path, "half")] == names
        assert answers(post(running, "/v1/halves", body)) == first
        assert running.post("/v1/halves", {"messages": single}).json()["results"] == second
        other = answers(post(running, "/v1/halves", stream(columns([half(names[0]), single[1]]))))
        assert [one["status"] for one in other] == [409, 200]


def test_messages_that_are_on_their_way_are_waited_for(tmp_path: Path) -> None:
    """In a stream that was sent twice at once, and one by one meanwhile: each is stored once."""
    sent = [half(f"t-{number}") for number in range(4)]

    async def act(service: GatewayService, _: object) -> None:
        def taken(*messages: dict[str, Any]) -> Any:
            read = halves_of_stream(stream(columns(messages)), 1, 1 << 20)
            assert isinstance(read, HalfColumns)
            return service.halves.take_columns(read, None)

        whole, again, more = taken(*sent[:2]), taken(*sent[:2]), taken(*sent[1:], sent[3], half("t-3", tags="x"))
        single = service.halves.take([json_decoder.half(half("t-1", tags="x"), 1)], None)
        found = await asyncio.gather(whole, again, more, single)
        assert found[0] == Placed(0, 0)
        offsets = [[one["queue_offset"] if isinstance(one, dict) else one.code for one in each] for each in found[1:]]
        assert offsets == [[0, 1], [1, 2, 3, 3, "contradiction"], ["contradiction"]]

    with_service(tmp_path, act)
    assert len(rows(tmp_path, "half")) == 4


def test_stream_for_which_there_is_little_room_is_taken_in_part(tmp_path: Path) -> None:
    async def act(service: GatewayService, _: object) -> None:
        read = halves_of_stream(stream(columns([half(f"t-{number}") for number in range(40)])), 1, 1 << 20)
        assert isinstance(read, HalfColumns)
        found = await service.halves.take_columns(read, None)
        codes = [one.code if isinstance(one, Problem) else None for one in found]
        assert codes == [None] * 15 + ["queue_full"] * 25

    with_service(tmp_path, act, max_waiting=15)
    assert len(rows(tmp_path, "half")) == 15
