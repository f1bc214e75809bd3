"""The HTTP contract, by a real server and a client that knows nothing of it."""

from __future__ import annotations

import base64
import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.messages.half import real_queue_of
from gateway.process import TO_TABLE, Gateway, half, op, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

pytestmark = [pytest.mark.processes, pytest.mark.spine("the gateway as a process, each route")]

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(
        tmp_path_factory.mktemp("tables"), TO_TABLE, "gateway.max_body=100000B", "gateway.linger=5ms"
    ) as running:
        yield running


def problem(answer: requests.Response, status: int, code: str) -> dict[str, Any]:
    """The members of a problem, which must be this one."""
    assert answer.headers["content-type"] == PROBLEM
    members: dict[str, Any] = answer.json()
    assert (answer.status_code, members["status"], members["code"]) == (status, status, code)
    assert members["type"] == f"urn:checkback:problem:{code}"
    assert members["title"]
    assert members["detail"]
    return members


def sent(gateway: Gateway, transaction_id: str, **fields: Any) -> int:
    """The offset of a half message that is sent now."""
    answer = gateway.post("/v1/half", half(transaction_id, **fields))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["queue_offset"])


def test_message_without_a_transaction_is_its_own_commit(gateway: Gateway) -> None:
    """Stored once under its transaction id, in one row; an op COMMIT repeats it, a ROLLBACK contradicts."""
    sent_at = int(time.time() * 1000)
    message = half("alone", delay="2s")
    answers = [gateway.post("/v1/message", message) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    offset = answers[0].json()["queue_offset"]
    row = rows(gateway.root, "half")[offset]
    assert (row["committed"], row["delay_ms"], row["deliver_at"]) == (True, 2_000, None)
    ended = {"queue_id": 0, "queue_offset": offset, "transaction_id": "alone", "producer_group": "orders"}
    assert gateway.post("/v1/op", ended | {"state": "COMMIT"}).json()["repeated"] is True
    assert gateway.post("/v1/op", ended | {"state": "ROLLBACK"}).status_code == 409
    assert gateway.post("/v1/half", message).status_code == 409
    batch = [half("b1", deliver_at=sent_at + 60_000), half("b2"), half("b3", delay="41d"), half("b4", committed=True)]
    results = gateway.post("/v1/messages", {"messages": batch}).json()["results"]
    assert [result["status"] for result in results] == [200, 200, 422, 422]
    stored = [rows(gateway.root, "half")[result["queue_offset"]] for result in results[:2]]
    assert [row["committed"] for row in stored] == [True, True]
    assert stored[0]["deliver_at"] == datetime.fromtimestamp((sent_at + 60_000) / 1000, timezone.utc)
    plain = gateway.post("/v1/halves", {"messages": [half("c1", delay_level=99), half("c2")]})
    stored = [rows(gateway.root, "half")[result["queue_offset"]] for result in plain.json()["results"]]
    assert [(row["committed"], row["delay_ms"]) for row in stored] == [(None, 7_200_000), (None, None)]


def test_half_is_in_the_table_when_it_is_answered(gateway: Gateway) -> None:
    """With all its fields, what is not said being RocketMQ's defaults."""
    before = datetime.now(timezone.utc)
    message = half("whole", real_queue_id=3, tags="a", keys="b", properties={"x": "y"}, check_immunity="30s")
    answer = gateway.post("/v1/half", message | {"born_timestamp": 1795227064579})
    assert answer.status_code == 200
    offset = answer.json()["queue_offset"]
    assert answer.json() == {"transaction_id": "whole", "queue_id": 0, "queue_offset": offset}
    row = rows(gateway.root, "half")[offset]
    store_timestamp = row.pop("store_timestamp")
    assert before.replace(microsecond=0) <= store_timestamp <= datetime.now(timezone.utc)
    assert row == {
        "queue_id": 0,
        "queue_offset": offset,
        "transaction_id": "whole",
        "producer_group": "orders",
        "real_topic": "payments",
        "real_queue_id": 3,
        "tags": "a",
        "keys": "b",
        "properties": [("x", "y")],
        "body": b"body of whole",
        "erased_at": None,
        "born_timestamp": datetime.fromtimestamp(1795227064.579, timezone.utc),
        "check_immunity_s": 30,
        "delay_ms": None,
        "deliver_at": None,
        "committed": None,
    }
    offset = sent(gateway, "least", properties=None, real_queue_id=None)
    least = rows(gateway.root, "half")[offset]
    assert (least["real_queue_id"], least["properties"], least["tags"]) == (real_queue_of("least"), [], None)
    assert before.replace(microsecond=0) <= least["born_timestamp"] <= datetime.now(timezone.utc)


def test_ordering_key_is_kept_and_names_the_queue(gateway: Gateway) -> None:
    """A retry may say what the gateway has worked out, and the key by RocketMQ's property."""
    queue = real_queue_of("account-7")
    offset = sent(gateway, "ordered", ordering_key="account-7", properties={"x": "y"})
    row = rows(gateway.root, "half")[offset]
    assert (row["real_queue_id"], row["properties"]) == (queue, [("x", "y"), ("__SHARDINGKEY", "account-7")])
    by_property = {"properties": {"x": "y", "__SHARDINGKEY": "account-7"}}
    assert sent(gateway, "ordered", **by_property) == offset
    assert sent(gateway, "ordered", **by_property, real_queue_id=queue) == offset
    problem(gateway.post("/v1/half", half("ordered", ordering_key="account-8")), 409, "contradiction")
    both = half("both", ordering_key="account-7", real_queue_id=queue)
    assert problem(gateway.post("/v1/half", both), 422, "unfit")["field"] == "ordering_key"


@pytest.mark.parametrize(
    ("field", "meant"), [("tag", "tags"), ("key", "keys"), ("delay_s", "delay"), ("committed", None), ("host", None)]
)
def test_unknown_field_is_refused_and_the_known_one_named(gateway: Gateway, field: str, meant: str | None) -> None:
    """Ignored, a message would be published at once, without what it says; alone, among others, and beside them."""
    told = f"{field}: no such field" + (f", did you mean {meant}?" if meant else "")
    message = half("typo", **{field: None})
    for path in ("/v1/half", "/v1/message"):
        members = problem(gateway.post(path, message), 422, "unfit")
        assert (members["field"], members["detail"]) == (field, told)
    (result,) = gateway.post("/v1/halves", {"messages": [message]}).json()["results"]
    assert (result["status"], result["detail"]) == (422, told)
    members = problem(gateway.post("/v1/halves", {"messages": [half("typo")], field: 1}), 422, "unfit")
    assert members["field"] == field
    assert problem(gateway.post("/v1/op", op(0) | {field: 1}), 422, "unfit")["field"] == field
    assert "typo" not in [row["transaction_id"] for row in rows(gateway.root, "half")]


def test_half_sent_again_keeps_its_offset(gateway: Gateway) -> None:
    """One after the other, all at once, twice in one request; and lands once."""
    first = sent(gateway, "again")
    assert sent(gateway, "again", born_timestamp=1) == first
    with ThreadPoolExecutor(8) as pool:
        offsets = set(pool.map(lambda _: sent(gateway, "at-once"), range(16)))
    assert len(offsets) == 1
    both = gateway.post("/v1/halves", {"messages": [half("twice"), half("twice")]}).json()["results"]
    assert both[0] == both[1]
    names = [row["transaction_id"] for row in rows(gateway.root, "half")]
    assert [names.count(name) for name in ("again", "at-once", "twice")] == [1, 1, 1]


def test_same_id_of_another_group_is_another_transaction(gateway: Gateway) -> None:
    assert sent(gateway, "shared") != sent(gateway, "shared", producer_group="stock")


def test_same_id_with_other_content_is_refused(gateway: Gateway) -> None:
    """Also when the first one is still on its way."""
    first = sent(gateway, "other")
    members = problem(gateway.post("/v1/half", half("other", tags="x")), 409, "contradiction")
    assert members["queue_offset"] == first
    results = gateway.post("/v1/halves", {"messages": [half("racing"), half("racing", keys="x")]}).json()["results"]
    assert [result["status"] for result in results] == [200, 409]


def test_several_halves_are_answered_each_for_itself(gateway: Gateway) -> None:
    messages = [half("several-1"), {"transaction_id": "x"}, 7, half("several-2"), half("bad", body="!")]
    answer = gateway.post("/v1/halves", {"messages": messages})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["status"] for result in results] == [200, 422, 400, 200, 422]
    assert results[3]["queue_offset"] == results[0]["queue_offset"] + 1
    assert results[3]["transaction_id"] == "several-2"
    assert (results[1]["field"], results[4]["field"]) == ("producer_group", "body")


def test_op_ends_its_transaction_once(gateway: Gateway) -> None:
    offset = sent(gateway, "ends")
    first = gateway.post("/v1/op", op(offset, "ends", remark="paid", born_timestamp=1795227064960))
    expected = {"transaction_id": "ends", "queue_id": 0, "queue_offset": offset, "state": "COMMIT"}
    assert (first.status_code, first.json()) == (200, expected | {"repeated": False})
    again = gateway.post("/v1/op", op(offset, "ends"))
    assert (again.status_code, again.json()) == (200, expected | {"repeated": True})
    members = problem(gateway.post("/v1/op", op(offset, "ends", "ROLLBACK")), 409, "contradiction")
    assert members["first_state"] == "COMMIT"
    (row,) = [row for row in rows(gateway.root, "op") if row["queue_offset"] == offset]
    assert row.pop("store_timestamp") <= datetime.now(timezone.utc)
    assert row == {
        "queue_id": 0,
        "queue_offset": offset,
        "transaction_id": "ends",
        "producer_group": "orders",
        "state": "COMMIT",
        "source": "producer",
        "remark": "paid",
        "born_timestamp": datetime.fromtimestamp(1795227064.960, timezone.utc),
    }


def test_op_that_belongs_to_no_half_is_refused(gateway: Gateway) -> None:
    """As EndTransactionProcessor does, each with a name of its own; nothing lands."""
    offset = sent(gateway, "belongs")
    problem(gateway.post("/v1/op", op(10**12, "belongs")), 404, "unknown_offset")
    problem(gateway.post("/v1/op", op(offset, "belongs", queue_id=4)), 404, "unknown_offset")
    problem(gateway.post("/v1/op", op(offset, "belongs", producer_group="stock")), 422, "wrong_group")
    problem(gateway.post("/v1/op", op(offset, "another")), 422, "wrong_transaction_id")
    assert offset not in [row["queue_offset"] for row in rows(gateway.root, "op")]


def test_ops_of_places_that_were_not_given_out_are_not_stored(gateway: Gateway) -> None:
    """However many, in this gateway's queues and in others'; each is told for itself."""
    offset = sent(gateway, "last")
    before = len(rows(gateway.root, "op"))
    places = [(0, offset + 1 + 4096 * n) for n in range(200)] + [(7 + n, 4096 * n) for n in range(200)]
    ops = [op(offset, "last", queue_id=queue) for queue, offset in places]
    results = gateway.post("/v1/ops", {"ops": ops}).json()["results"]
    assert {(result["status"], result["code"]) for result in results} == {(404, "unknown_offset")}
    assert len(rows(gateway.root, "op")) == before


def test_several_ops_are_answered_each_for_itself(gateway: Gateway) -> None:
    """Of two for one half message the first stands, also when both are on their way."""
    first, second = sent(gateway, "ops-1"), sent(gateway, "ops-2")
    ops = [op(first, "ops-1"), op(first, "ops-1", "ROLLBACK"), op(second, "ops-2", "ROLLBACK"), op(first, "ops-1"), {}]
    results = gateway.post("/v1/ops", {"ops": ops}).json()["results"]
    assert [result["status"] for result in results] == [200, 409, 200, 200, 422]
    assert [results[n].get("repeated") for n in (0, 2, 3)] == [False, False, True]
    assert results[1]["first_state"] == "COMMIT"
    landed = [(row["queue_offset"], row["state"]) for row in rows(gateway.root, "op")]
    assert [one for one in landed if one[0] in (first, second)] == [(first, "COMMIT"), (second, "ROLLBACK")]


def test_transaction_tells_its_state(gateway: Gateway) -> None:
    """Also under an id that is no plain word."""
    name = "order/47 11?ä%2F"
    offset = sent(gateway, name, born_timestamp=1795227064579)
    path = f"/v1/transactions/{name.replace('%', '%25').replace('?', '%3F')}"
    answer = gateway.get(path, producer_group="orders")
    expected = {
        "transaction_id": name,
        "producer_group": "orders",
        "real_topic": "payments",
        "queue_id": 0,
        "queue_offset": offset,
        "state": "PENDING",
        "reason": None,
        "check_times": 0,
        "born_timestamp": 1795227064579,
        "decided_at": None,
        "deliver_at": None,
        "delivered_at": None,
    }
    assert (answer.status_code, answer.json()) == (200, expected)
    gateway.post("/v1/op", op(offset, name, "ROLLBACK"))
    assert gateway.get(path, producer_group="orders").json() == expected | {"state": "ROLLBACK"}
    place = {"queue_id": "0", "queue_offset": str(offset)}
    assert gateway.get(path, producer_group="orders", **place).json() == expected | {"state": "ROLLBACK"}
    place["queue_offset"] = str(offset + 1000)
    problem(gateway.get(path, producer_group="orders", **place), 404, "unknown_transaction")
    for wrong in ({"queue_id": "0"}, {**place, "queue_id": "-1"}, {**place, "queue_offset": "9" * 30}):
        problem(gateway.get(path, producer_group="orders", **wrong), 422, "unfit")
    problem(gateway.get(path, producer_group="stock"), 404, "unknown_transaction")
    problem(gateway.get(path), 422, "unfit")
    problem(gateway.get("/v1/transactions/", producer_group="orders"), 422, "unfit")


@pytest.mark.parametrize(
    "name",
    [
        "a\nb",
        "line\n",
        "\n",
        "\r\n",
        "\0",
        "\x7f\x85\u2028",
        "a//b/",
        "/",
        "%",
        "%0A",
        "..",
        ".",
        "?#&+ ;",
        "\U0001f600" * 1024,
    ],
)
def test_transaction_of_any_id_is_found(gateway: Gateway, name: str) -> None:
    """Each character by its percent-encoding: none ends the path, and none is another transaction's."""
    offset = sent(gateway, name)
    path = "".join(f"%{byte:02X}" for byte in name.encode())
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=30)  # others take dots for folders
    try:
        connection.request("GET", f"/v1/transactions/{path}?producer_group=orders")
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    assert (answer["transaction_id"], answer["queue_offset"]) == (name, offset)
    problem(gateway.get("/v1/transactions/line", producer_group="orders"), 404, "unknown_transaction")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transaction_id", ""),
        ("transaction_id", None),
        ("transaction_id", "x" * 1025),
        ("producer_group", "a b"),
        ("real_topic", "rmq_sys_x"),
        ("real_topic", "_delta_log"),
        ("real_topic", "Com1"),
        ("real_topic", "x" * 128),
        ("real_topic", "a%b"),
        ("real_queue_id", -1),
        ("real_queue_id", True),
        ("properties", {"a": 1}),
        ("properties", {"a": "x" * 33000}),
        ("body", "no base64"),
        ("body", None),
        ("born_timestamp", 1.5),
        ("born_timestamp", 10**18),
        ("check_immunity", "7"),
        ("check_immunity", 7),
        ("delay", 7),
        ("tags", 7),
    ],
)
def test_field_that_is_not_fit_is_named(gateway: Gateway, field: str, value: object) -> None:
    members = problem(gateway.post("/v1/half", half("unfit") | {field: value}), 422, "unfit")
    assert members["field"] == field
    assert members["detail"].startswith(f"{field}:")
    assert "unfit" not in [row["transaction_id"] for row in rows(gateway.root, "half")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "UNKNOWN"),
        ("state", None),
        ("queue_id", "0"),
        ("queue_offset", -1),
        ("remark", 7),
        ("remark", "x" * 1025),
    ],
)
def test_field_of_an_op_that_is_not_fit_is_named(gateway: Gateway, field: str, value: object) -> None:
    members = problem(gateway.post("/v1/op", op(0) | {field: value}), 422, "unfit")
    assert members["field"] == field


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "malformed"),
        (b"{", 400, "malformed"),
        (b"[]", 400, "malformed"),
        (b"null", 400, "malformed"),
        (b"\xff", 400, "malformed"),
        (b'{"transaction_id": "\\ud800"}', 400, "malformed"),
        (b'{"born_timestamp": NaN}', 400, "malformed"),
        (b"[" * 90000, 400, "malformed"),
        (b" " * 100001, 413, "body_too_large"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/half", "/v1/halves", "/v1/op", "/v1/ops"])
def test_body_that_is_no_request(gateway: Gateway, path: str, content: bytes, status: int, code: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = gateway.session.post(f"{gateway.url}{path}", data=content, headers=headers, timeout=30)
    problem(answer, status, code)


def test_body_too_large_is_refused_while_it_comes(gateway: Gateway) -> None:
    """Without a length, too."""
    headers = {"Content-Type": "application/json"}
    parts = (b" " * 10000 for _ in range(20))
    answer = gateway.session.post(f"{gateway.url}/v1/half", data=parts, headers=headers, timeout=30)
    problem(answer, 413, "body_too_large")


@pytest.mark.parametrize(("path", "name"), [("/v1/halves", "messages"), ("/v1/ops", "ops")])
def test_too_many_or_too_few_of_one_request(gateway: Gateway, path: str, name: str) -> None:
    problem(gateway.post(path, {name: []}), 422, "unfit")
    problem(gateway.post(path, {name: [0] * 1001}), 422, "unfit")
    problem(gateway.post(path, {name: {}}), 400, "malformed")
    problem(gateway.post(path, {}), 400, "malformed")


def test_every_error_is_a_problem(gateway: Gateway) -> None:
    """Paths, methods, media types, hosts and headers that are not ours."""
    problem(gateway.get("/nowhere"), 404, "not_found")
    assert problem(gateway.get("/v1/half"), 405, "method_not_allowed")
    assert gateway.get("/v1/half").headers["allow"] == "POST"
    problem(gateway.session.post(f"{gateway.url}/readyz", timeout=30), 405, "method_not_allowed")
    send = gateway.session.post
    url = f"{gateway.url}/v1/half"
    for kind in ("text/plain", "application/vnd.apache.arrow.stream"):
        refused = send(f"{gateway.url}/v1/halves", data=b"{}", headers={"Content-Type": kind}, timeout=30)
        assert problem(refused, 415, "unsupported_media_type")["detail"] == "send Content-Type: application/json"
    problem(send(url, data=json.dumps(half()), timeout=30), 415, "unsupported_media_type")
    problem(send(url, json=half(), headers={"Host": "evil.example"}, timeout=30), 421, "wrong_host")
    problem(send(url, json=half(), headers={f"x-{n}": "y" for n in range(70)}, timeout=30), 431, "headers_too_large")
    problem(send(url, json=half(), headers={"x": "y" * 33000}, timeout=30), 431, "headers_too_large")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/v1/transactions/x?producer_group=orders"])
def test_head_is_get_without_the_body(gateway: Gateway, path: str) -> None:
    """As load balancers probe. On the same connection: a body would be taken for the next answer."""
    for _ in range(2):
        head, get = gateway.session.head(f"{gateway.url}{path}", timeout=30), gateway.get(path)
        assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
        assert head.content == b""
        assert get.json()
    refused = gateway.session.head(f"{gateway.url}/v1/half", timeout=30)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    allowed = gateway.session.post(f"{gateway.url}{path}", timeout=30).headers["allow"]
    assert sorted(allowed.split(", ")) == ["GET", "HEAD"]


@pytest.mark.parametrize("encoding", ["gzip", "gzip, identity", "zstd, br, x", "IDENTITY"])
def test_encoded_body_is_refused_unread(gateway: Gateway, encoding: str) -> None:
    """Also one that is not what its header says."""
    for body in (gzip.compress(json.dumps(half(encoding)).encode()), json.dumps(half(encoding)).encode()):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        answer = gateway.session.post(f"{gateway.url}/v1/half", data=body, headers=headers, timeout=30)
        if encoding == "IDENTITY":
            assert answer.status_code == (200 if body.startswith(b"{") else 400)
        else:
            assert "Content-Encoding" in problem(answer, 415, "unsupported_media_type")["detail"]


def test_a_problem_never_shows_the_body(gateway: Gateway) -> None:
    secret = base64.b64encode(b"card 4111 1111 1111 1111").decode()
    for message in (half(body=secret + "!"), half(body=[secret]), half(real_topic=7, body=secret)):
        answer = gateway.post("/v1/half", message)
        assert answer.status_code == 422
        assert secret[:12] not in answer.text


def test_health_and_metrics(gateway: Gateway) -> None:
    sent(gateway, "counted")
    assert gateway.get("/healthz").json() == gateway.get("/readyz").json() == {"status": "ok"}
    text = gateway.get("/metrics").text
    for line in (
        'checkback_gateway_requests_total{route="/v1/half",status="200"}',
        'checkback_gateway_rows_total{table="half"}',
        'checkback_gateway_commit_seconds_count{table="half"}',
        'checkback_gateway_waiting{table="op"} 0.0',
        f'checkback_gateway_last_offset{{queue_id="0"}} {len(rows(gateway.root, "half")) - 1}.0',
    ):
        assert line in text


def test_offsets_have_no_gap(gateway: Gateway) -> None:
    """After all of the above."""
    assert [row["queue_offset"] for row in rows(Path(gateway.root), "half")] == list(
        range(len(rows(gateway.root, "half")))
    )
