"""Who gets in: tokens of groups, hosts, and a gateway that refuses half messages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.gateway.authentication import BearerTokens
from checkback.gateway.problems import Problem
from checkback.settings import Settings
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, half, op, rows
from gateway.services import SlowHistory, code, half_sent, op_sent, with_service

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService

pytestmark = pytest.mark.processes

ORDERS, STOCK = "orders-token-0123456789", "stock-token-0123456789"
ENVIRON = {
    "CHECKBACK__PRODUCERS__orders__TOKEN": "env:T_ORDERS",
    "CHECKBACK__PRODUCERS__stock__TOKEN": "env:T_STOCK",
    "T_ORDERS": ORDERS,
    "T_STOCK": STOCK,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("tables")
    with Gateway(root, TO_TABLE, "producers.silent.endpoints=[]", environ=ENVIRON) as running:
        yield running


@pytest.mark.parametrize("token", [None, "wrong", ORDERS[:-1], ORDERS + "x", STOCK.upper(), "ä"])
@pytest.mark.parametrize("path", ["/v1/half", "/v1/halves", "/v1/op", "/v1/ops"])
def test_nobody_gets_in_without_a_token(gateway: Gateway, path: str, token: str | None) -> None:
    answer = gateway.post(path, half(), token.encode().decode("latin-1") if token else None)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert not token or token not in answer.text


def test_token_must_be_a_bearers(gateway: Gateway) -> None:
    headers = {"Authorization": f"Basic {ORDERS}"}
    assert gateway.session.post(f"{gateway.url}/v1/half", json=half(), headers=headers).status_code == 401
    headers = {"Authorization": f"bearer  {ORDERS}"}
    assert gateway.session.post(f"{gateway.url}/v1/half", json=half("lower"), headers=headers).status_code == 200


def test_token_of_one_group_is_no_other_groups(gateway: Gateway) -> None:
    """It can neither send for it, nor end or read its transactions; in a batch each message counts for itself."""
    offset = gateway.post("/v1/half", half("mine"), ORDERS).json()["queue_offset"]
    refused = [
        gateway.post("/v1/half", half("theirs"), STOCK),
        gateway.post("/v1/op", op(offset, "mine"), STOCK),
        gateway.get("/v1/transactions/mine", STOCK, producer_group="orders"),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "forbidden_group")] * 3
    # In its own name it is the wrong group.
    assert gateway.post("/v1/op", op(offset, "mine", producer_group="stock"), STOCK).json()["code"] == "wrong_group"
    assert gateway.get("/v1/transactions/mine", STOCK, producer_group="stock").status_code == 404
    assert gateway.get("/v1/transactions/mine", producer_group="orders").status_code == 401
    batch = {"messages": [half("b-1"), half("b-2", producer_group="stock")]}
    results = gateway.post("/v1/halves", batch, STOCK).json()["results"]
    assert [result["status"] for result in results] == [403, 200]
    assert gateway.post("/v1/op", op(offset, "mine"), ORDERS).status_code == 200
    assert [row["state"] for row in rows(gateway.root, "op")] == ["COMMIT"]


def test_group_that_is_not_configured_is_unknown(gateway: Gateway) -> None:
    answer = gateway.post("/v1/half", half(producer_group="nobody"), ORDERS)
    assert (answer.status_code, answer.json()["code"]) == (403, "unknown_group")


def test_health_needs_no_token_and_the_description_names_it(gateway: Gateway) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert gateway.get(path).status_code == 200
    described = gateway.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["paths"]["/v1/half"]["post"]["security"] == [{"token": []}]


def test_groups_without_tokens_are_still_a_list() -> None:
    """Named groups are the only ones, with or without tokens."""
    tokens = BearerTokens(Settings.model_validate({"producers": {"orders": {}}}).producers)
    assert not tokens.needed
    assert tokens.groups(b"") is None
    assert tokens.refused("orders", None) is None
    refused = tokens.refused("stock", None)
    assert isinstance(refused, Problem)
    assert refused.code == "unknown_group"
    assert BearerTokens({}).refused("anybody", None) is None


def test_token_of_two_groups_is_both() -> None:
    producers = {"a": {"token": ORDERS}, "b": {"token": ORDERS}, "c": {"token": STOCK}}
    tokens = BearerTokens(Settings.model_validate({"producers": producers}).producers)
    assert tokens.groups(f"Bearer {ORDERS}".encode()) == frozenset("ab")
    assert tokens.groups(f"Bearer {STOCK}".encode()) == frozenset("c")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["gateway.host=0.0.0.0"], "without tokens it serves this machine only"),
        (["storage.root=hdfs://nameserver/x"], "object stores only"),
        (["storage.catalog=main", "storage.schema=x", "storage.checkpoints=x"], "so in no catalog"),
        (["storage.writer=spark"], "the gateway writes without Spark"),
        (["gateway.queues=[1,1]"], "names a queue twice"),
        (["gateway.max_receiving=2000B"], "gateway.max_receiving is less than gateway.max_body; a body must fit"),
        (["gateway.port=70000"], "gateway.port"),
    ],
)
def test_setting_that_does_not_fit_is_one_line(tmp_path: Path, overrides: list[str], told: str) -> None:
    """And exit code 2."""
    command = [sys.executable, "-m", "checkback", "gateway", "--set", f"storage.root={tmp_path}"]
    for override in overrides:
        command += ["--set", override]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr.count("\n"), run.stdout) == (2, 1, "")
    assert told in run.stderr


def test_port_that_is_taken_disturbs_nobody(tmp_path: Path) -> None:
    """A second start by mistake does not take the queue from the first."""
    with Gateway(tmp_path) as gateway:
        command = [sys.executable, "-m", "checkback", "gateway", "--set", f"storage.root={tmp_path}"]
        run = subprocess.run(
            [*command, "--port", str(gateway.port)], capture_output=True, text=True, check=False, timeout=60
        )
        assert run.returncode == 2
        assert "cannot listen" in run.stderr
        assert gateway.post("/v1/half", half()).status_code == 200


def test_half_messages_may_be_refused_while_ops_are_taken(tmp_path: Path) -> None:
    """RocketMQ's rejectTransactionMessage."""
    with Gateway(tmp_path) as gateway:
        gateway.post("/v1/half", half())
    with Gateway(tmp_path, "gateway.reject_transactions=true") as gateway:
        refused = gateway.post("/v1/half", half("t-2"))
        assert (refused.status_code, refused.json()["code"]) == (503, "transactions_rejected")
        assert gateway.post("/v1/op", op(0)).status_code == 200
    assert len(rows(tmp_path, "half")) == 1


def test_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    """What fits is taken, the rest is not."""
    with Gateway(tmp_path, "gateway.max_waiting=3") as gateway:
        answer = gateway.post("/v1/halves", {"messages": [half(f"t-{n}") for n in range(5)]})
        results = answer.json()["results"]
        assert [result.get("code") for result in results] == [None, None, None, "queue_full", "queue_full"]
        again = gateway.post("/v1/halves", {"messages": [half(f"t-{n}") for n in range(5)]}).json()["results"]
        assert [result.get("queue_offset") for result in again] == [0, 1, 2, 3, 4]
    by_table = "gateway.acknowledge=table", "gateway.linger=1h"
    with Gateway(tmp_path, "gateway.max_waiting=1", *by_table) as gateway:
        import threading

        import requests

        first = threading.Thread(target=requests.post, args=(f"{gateway.url}/v1/half",), kwargs={"json": half("w")})
        first.start()
        while 'checkback_gateway_waiting{table="half"} 1.0' not in gateway.get("/metrics").text:
            pass
        full = gateway.post("/v1/half", half("x"))
        assert (full.status_code, full.json()["code"]) == (503, "queue_full")
        assert int(full.headers["retry-after"]) > 0
        gateway.stop()
        first.join()


def test_start_imports_no_pandas() -> None:
    """Arrow would, at its first array; what comes later is not kept from it."""
    code = (
        "import sys; from checkback.cli import main; assert main(['gateway', '--host', '0.0.0.0']) == 2;"
        "assert 'checkback.gateway.server' in sys.modules and 'pandas' not in sys.modules; import pandas"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr.count("\n")) == (0, 1), run.stderr


def test_look_ups_that_are_shared_tell_a_token_nothing_of_other_groups(tmp_path: Path) -> None:
    """Ops of two tokens come while a third is looked up: they are looked up together, and answered each on its own.

    Of the other group's half message an op learns that it is another group's: no id, no state. A question is refused.
    """
    orders, pay = frozenset({"orders"}), frozenset({"pay"})
    names = {"orders": ("order-1", "order-2", "order-3"), "pay": ("pay-1",)}
    producers: dict[str, object] = {name: {"token": name[:1] * 32} for name in names}

    async def act(service: GatewayService, history: SlowHistory) -> None:
        at = {}
        for group, ids in names.items():
            messages = [half_sent(half(name, producer_group=group), 1) for name in ids]
            for stored in await service.halves.take(messages, frozenset({group})):
                assert isinstance(stored, dict)
                at[stored["transaction_id"]] = stored["queue_offset"]
        ended = op_sent(op(at["order-3"], "order-3", "ROLLBACK"), 1)
        assert [code(one) for one in await service.ops.take([ended], orders)] == [None]
        service.cache.forget(2**62, 0)
        begun, end, find, asked = threading.Event(), threading.Event(), service.ops._older._find, []

        def slow(places: Collection[Place]) -> dict[Place, RememberedHalf]:
            asked.append({offset for _, offset in places})
            begun.set()
            assert end.wait(PATIENCE_S)
            return find(places)

        service.ops._older._find = slow

        def ops(groups: frozenset[str], *sent: dict[str, Any]) -> asyncio.Future[list[Answer]]:
            return asyncio.ensure_future(service.ops.take([op_sent(one, 1) for one in sent], groups))

        first = ops(orders, op(at["order-1"], "order-1"))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        theirs = ops(orders, op(at["order-2"], "order-2"))
        strange = [op(at[name], name, producer_group="pay") for name in ("order-2", "order-3")]
        mine = ops(pay, op(at["pay-1"], "pay-1", producer_group="pay"), *strange)
        alone = asyncio.ensure_future(service.ops._older.of([(0, at["pay-1"])], {}, pay))
        await asyncio.sleep(0)
        end.set()
        assert [code(one) for one in [*await first, *await theirs]] == [None, None]
        own, *others = await mine
        assert (code(own), [code(one) for one in others]) == (None, ["wrong_group"] * 2)
        for answer in others:
            assert isinstance(answer, Problem)
            assert not any(text in str(answer.members()) for text in ("order-", "orders", "ROLLBACK", "COMMIT"))
        found = await alone
        assert not isinstance(found, Problem)
        assert {offset for _, offset in found.halves} == {at["pay-1"]}
        assert asked[1] == {at["order-2"], at["order-3"], at["pay-1"]}  # it was one look-up
        history.end.set()
        for name in names["orders"]:
            assert code(await service.questions.transaction(name, "orders", pay)) == "forbidden_group"
            assert code(await service.questions.transaction(name, "pay", pay)) == "unknown_transaction"

    with_service(tmp_path, act, producers)
